"""What is said of partitions that are not as they should be, and where replicas should move to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.client.administration.health import (
    BrokerLoad,
    broker_loads,
    cluster_health,
    fewer_replicas,
    partition_health,
)
from broker_lite.client.administration.replica_plans import (
    from_text,
    off_broker,
    target,
    to_brokers,
    to_factor,
)
from broker_lite.client.administration.replica_requests import Reassignment
from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata, TopicMetadata
from broker_lite.config import min_insync_of
from broker_lite.errors import (
    BrokerIdNotRegisteredError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)
from broker_lite.model import Endpoint, TopicPartition

T0 = TopicPartition("t", 0)


def view_of(live: int, *rows: tuple[int, ...]) -> ClusterView:
    """Brokers 1 to ``live``; topic t with these replicas, all in sync, the first leads."""
    partitions = tuple(
        PartitionMetadata(number, row[0], 0, row, row) for number, row in enumerate(rows)
    )
    brokers = {number: Endpoint("h", number) for number in range(1, live + 1)}
    return ClusterView("c", 1, brokers, {"t": TopicMetadata("t", partitions=partitions)})


def test_topics_with_fewer_replicas_than_a_new_one() -> None:
    view = view_of(3, (1, 2, 3), (1, 2))
    assert fewer_replicas(view, 2) == []
    assert fewer_replicas(view, 3) == ["t"]


def wheres(view: ClusterView) -> list[TopicPartition]:
    return list(view.partitions_of("t"))


@pytest.mark.parametrize(
    ("leader", "isr", "live", "state", "why"),
    [
        (1, (1, 2, 3), (1, 2, 3), "ok", ""),
        (1, (1, 2), (1, 2), "under-replicated", "broker 3 is down"),
        (1, (1, 2), (1, 2, 3), "under-replicated", "broker 3 is catching up"),
        (1, (1,), (1, 3), "too few in sync", "1 in sync, acks=all needs 2; broker 2 is down"),
        (-1, (2,), (1, 3), "no leader", "broker 2 is down, and no other replica has all records"),
        (-1, (2, 3), (1,), "no leader", "brokers 2, 3 are down"),
        (-1, (2,), (1, 2), "no leader", "broker 2 is up, but with another data directory"),
    ],
)
def test_states_of_partitions(
    leader: int, isr: tuple[int, ...], live: tuple[int, ...], state: str, why: str
) -> None:
    partition = PartitionMetadata(0, leader, 0, (1, 2, 3), isr)
    found = partition_health(T0, partition, live, min_insync=2)
    assert found.state == state
    assert found.why.startswith(why) and bool(found.why) == bool(why)


def test_who_is_being_added_need_not_be_in_sync_yet() -> None:
    partition = PartitionMetadata(0, 1, 0, (3, 1, 2), (1, 2))
    assert partition_health(T0, partition, (1, 2, 3)).state == "under-replicated"
    assert partition_health(T0, partition, (1, 2, 3), adding=(3,)).state == "ok"


def test_what_moves_needs_a_majority_of_where_it_goes() -> None:
    """Not of all six, of which three in sync would be too few."""
    partition = PartitionMetadata(0, 1, 0, (4, 5, 6, 1, 2, 3), (1, 2, 3))
    brokers = {number: Endpoint("h", number) for number in range(1, 7)}
    view = ClusterView("c", 1, brokers, {"t": TopicMetadata("t", partitions=(partition,))})
    moves = {T0: Reassignment(partition.replicas, (4, 5, 6), (1, 2, 3))}
    [found] = cluster_health(view, moves=moves, min_insync=lambda _, n: min_insync_of("0", n))
    assert (found.state, found.why) == ("ok", "")


@pytest.mark.parametrize(
    ("text", "least"), [("0", 2), ("1", 1), ("3", 3), ("two", 2), ("-1", 2), (None, 2)]
)
def test_how_many_must_be_in_sync(text: str | None, least: int) -> None:
    assert min_insync_of(text, 3) == least


def test_the_whole_cluster() -> None:
    view = view_of(2, (1, 2), (2, 1), (1,))
    assert [row.state for row in cluster_health(view)] == ["ok"] * 3
    least = cluster_health(view, min_insync=lambda topic, replicas: replicas + 1)
    assert {row.state for row in least} == {"too few in sync"}
    assert broker_loads(view) == {1: BrokerLoad(2, 3, 3), 2: BrokerLoad(1, 2, 2)}


def test_plans_to_brokers_take_turns() -> None:
    view = view_of(3, (1,), (1,), (2, 3))
    plan = to_brokers(view, {}, wheres(view), (2, 3))
    assert plan == {
        TopicPartition("t", 0): (2, 3),
        TopicPartition("t", 1): (3, 2),
    }
    with pytest.raises(InvalidReplicaAssignmentError, match="different"):
        to_brokers(view, {}, wheres(view), (2, 2))


def test_plans_to_more_and_fewer_replicas() -> None:
    view = view_of(3, (1,), (1,), (1,), (1,))
    plan = to_factor(view, {}, wheres(view), 2)
    assert sorted(row[1] for row in plan.values()) == [2, 2, 3, 3]
    assert {row[0] for row in plan.values()} == {1}
    lagging = PartitionMetadata(0, 1, 0, (1, 2, 3), (1, 3))
    view = ClusterView("c", 1, view.brokers, {"t": TopicMetadata("t", partitions=(lagging,))})
    assert to_factor(view, {}, [T0], 2) == {T0: (1, 3)}
    assert to_factor(view, {}, [T0], 1) == {T0: (1,)}
    assert to_factor(view, {}, [T0], 3) == {}
    with pytest.raises(InvalidReplicationFactorError, match="give 1 to 3"):
        to_factor(view, {}, [T0], 4)


def test_plans_off_a_broker_keep_the_place_of_the_preferred_leader() -> None:
    view = view_of(3, (1, 2), (2, 1), (3, 2))
    plan = off_broker(view, {}, wheres(view), 1)
    assert plan == {TopicPartition("t", 0): (3, 2), TopicPartition("t", 1): (2, 3)}
    with pytest.raises(InvalidReplicaAssignmentError, match="start one more"):
        off_broker(view_of(2, (1, 2)), {}, [T0], 1)


def test_brokers_that_nobody_knows_are_no_plan() -> None:
    view = view_of(2, (1, 2), (9, 1))
    with pytest.raises(BrokerIdNotRegisteredError, match=r"no broker 5.*live brokers: \[1, 2\]"):
        off_broker(view, {}, [T0], 5)
    # One that is down for good is known by its replicas.
    assert off_broker(view, {}, wheres(view), 9) == {TopicPartition("t", 1): (2, 1)}
    for broker_id in (-1, 1 << 31):
        with pytest.raises(InvalidReplicaAssignmentError, match=f"broker {broker_id}: ids are"):
            to_brokers(view, {}, [T0], (broker_id,))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nope", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "'partitions'"),
        ('{"partitions": {}}', "not a list"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "'replicas'"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": ["x"]}]}', "'x'"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [-1]}]}', "broker -1"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
            ' {"topic": "t", "partition": 0, "replicas": [2]}]}',
            "partition t-0 is there twice",
        ),
    ],
)
def test_what_is_no_plan_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=why):
        from_text(text)


def test_a_plan_is_read_as_kafkas_tools_write_it() -> None:
    row = '{"topic": "t", "partition": 0, "replicas": [2, 1], "log_dirs": ["any", "any"]}'
    assert from_text(f'{{"version": 1, "partitions": [{row}]}}') == {T0: (2, 1)}


def test_what_is_on_its_way_counts_as_there() -> None:
    view = view_of(3, (3, 1, 2))
    ongoing = {T0: Reassignment((3, 1, 2), (3,), (2,))}
    assert target(view.topics["t"].partitions[0], ongoing[T0]) == (3, 1)
    assert to_brokers(view, ongoing, [T0], (3, 1)) == {}
    assert off_broker(view, ongoing, [T0], 2) == {}
    assert off_broker(view, ongoing, [T0], 1) == {T0: (3, 2)}


@given(
    st.integers(1, 6),
    st.lists(st.permutations(range(1, 7)), min_size=1, max_size=8),
    st.integers(1, 6),
    st.data(),
)
def test_every_plan_can_be_carried_out(
    live: int, rows: list[list[int]], factor: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 6))
    view = view_of(live, *(tuple(row[:size]) for row in rows))
    if factor <= live:
        for where, row in to_factor(view, {}, wheres(view), factor).items():
            assert len(row) == len(set(row)) == factor
            present = view.partition(where)
            assert present is not None
            assert all(b in view.brokers for b in row if b not in present.replicas)
    try:
        plan = off_broker(view, {}, wheres(view), 1)
    except InvalidReplicaAssignmentError:
        return
    for where, row in plan.items():
        present = view.partition(where)
        assert present is not None
        assert 1 not in row and len(set(row)) == len(row) == len(present.replicas)
