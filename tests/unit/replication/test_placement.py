"""Tests of the placement of new partitions' replicas on brokers and racks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.errors import BrokerNotAvailableError, InvalidReplicationFactorError
from broker_lite.model import BrokerView, Endpoint
from broker_lite.replication.placement import default_factor, place


def brokers_of(*racks: str | None) -> dict[int, BrokerView]:
    return {
        number: BrokerView(number, Endpoint("h", 1), f"D{number}", number, rack)
        for number, rack in enumerate(racks, 1)
    }


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(0, 1000))
def test_replicas_use_different_brokers_and_leaders_are_spread_evenly(
    size: int, factor: int, count: int, first: int
) -> None:
    live = brokers_of(*[None] * size)
    if factor > size:
        with pytest.raises(InvalidReplicationFactorError, match="start more"):
            place(count, factor, live, first=first)
        return
    rows = place(count, factor, live, first=first)
    assert len(rows) == count
    for row in rows:
        assert len(set(row)) == len(row) == factor
        assert set(row) <= set(live)
    leaders = Counter(row[0] for row in rows)
    assert max(leaders.values()) - min(leaders.get(number, 0) for number in live) <= 1
    # Partitions that are placed one by one get the same replicas.
    assert rows == [place(1, factor, live, first=first + n)[0] for n in range(count)]


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=9), st.integers(1, 9), st.data())
def test_replicas_of_a_partition_use_as_many_racks_as_possible(
    racks: list[str], factor: int, data: st.DataObject
) -> None:
    live = brokers_of(*racks)
    factor = min(factor, len(racks))
    for row in place(20, factor, live, first=data.draw(st.integers(0, 99))):
        assert len({live[number].rack for number in row}) == min(factor, len(set(racks)))


def test_second_replicas_of_one_brokers_partitions_are_spread_over_all_other_brokers() -> None:
    live = brokers_of(*[None] * 5)
    heirs = Counter(row[1] for row in place(100, 3, live, first=0) if row[0] == 1)
    assert set(heirs) == {2, 3, 4, 5} and max(heirs.values()) - min(heirs.values()) <= 1


def test_placement_without_brokers_is_refused() -> None:
    with pytest.raises(BrokerNotAvailableError):
        place(1, 1, {}, first=0)


def test_default_replication_factor_is_three_or_the_number_of_brokers_if_fewer() -> None:
    assert [default_factor(count) for count in (0, 1, 2, 3, 4, 99)] == [1, 1, 2, 3, 3, 3]


def test_replication_factor_error_names_the_live_brokers() -> None:
    with pytest.raises(InvalidReplicationFactorError, match=r"only 1 broker is live \(id 1\)"):
        place(1, 3, brokers_of(None), first=0)
    with pytest.raises(InvalidReplicationFactorError, match=r"2 brokers are live \(ids 1, 2\)"):
        place(1, 3, brokers_of(None, None), first=0)
