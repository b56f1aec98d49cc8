"""Tests of the health of partitions, and of plans that move replicas."""

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
    """Return the metadata of live brokers 1 to ``live`` and of topic t.

    Each of ``rows`` lists the replicas of one partition. All replicas are in sync, and the first
    one leads.
    """
    partitions = tuple(
        PartitionMetadata(number, row[0], 0, row, row) for number, row in enumerate(rows)
    )
    brokers = {number: Endpoint("h", number) for number in range(1, live + 1)}
    return ClusterView("c", 1, brokers, {"t": TopicMetadata("t", partitions=partitions)})


def test_topics_with_fewer_replicas_than_the_given_number_are_listed() -> None:
    view = view_of(3, (1, 2, 3), (1, 2))
    assert fewer_replicas(view, 2) == []
    assert fewer_replicas(view, 3) == ["t"]


def tps(view: ClusterView) -> list[TopicPartition]:
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
def test_partition_health_names_the_state_and_its_cause(
    leader: int, isr: tuple[int, ...], live: tuple[int, ...], state: str, why: str
) -> None:
    partition = PartitionMetadata(0, leader, 0, (1, 2, 3), isr)
    found = partition_health(T0, partition, live, min_insync=lambda topic, replicas: 2)
    assert found.state == state
    assert found.why.startswith(why) and bool(found.why) == bool(why)


def test_partition_is_not_under_replicated_only_because_a_replica_is_being_added() -> None:
    partition = PartitionMetadata(0, 1, 0, (3, 1, 2), (1, 2))
    assert partition_health(T0, partition, (1, 2, 3)).state == "under-replicated"
    move = Reassignment(partition.replicas, (3,), ())
    assert partition_health(T0, partition, (1, 2, 3), move=move).state == "ok"


def test_min_insync_during_a_reassignment_is_a_majority_of_the_target_replicas() -> None:
    """During the move there are six replicas, three of them in sync: fewer than a majority of
    all six."""
    partition = PartitionMetadata(0, 1, 0, (4, 5, 6, 1, 2, 3), (1, 2, 3))
    brokers = {number: Endpoint("h", number) for number in range(1, 7)}
    view = ClusterView("c", 1, brokers, {"t": TopicMetadata("t", partitions=(partition,))})
    moves = {T0: Reassignment(partition.replicas, (4, 5, 6), (1, 2, 3))}
    [found] = cluster_health(view, moves=moves, min_insync=lambda _, n: min_insync_of("0", n))
    assert (found.state, found.why) == ("ok", "")


@pytest.mark.parametrize(
    ("text", "least"), [("0", 2), ("1", 1), ("3", 3), ("two", 2), ("-1", 2), (None, 2)]
)
def test_min_insync_defaults_to_a_majority(text: str | None, least: int) -> None:
    assert min_insync_of(text, 3) == least


def test_cluster_health_has_a_state_for_every_partition() -> None:
    view = view_of(2, (1, 2), (2, 1), (1,))
    assert [row.state for row in cluster_health(view)] == ["ok"] * 3
    least = cluster_health(view, min_insync=lambda topic, replicas: replicas + 1)
    assert {row.state for row in least} == {"too few in sync"}
    assert broker_loads(view) == {1: BrokerLoad(2, 3, 3), 2: BrokerLoad(1, 2, 2)}


def test_reassignment_plan_for_given_brokers_rotates_the_preferred_leaders() -> None:
    view = view_of(3, (1,), (1,), (2, 3))
    plan = to_brokers(view, {}, tps(view), (2, 3))
    assert plan == {
        TopicPartition("t", 0): (2, 3),
        TopicPartition("t", 1): (3, 2),
    }
    with pytest.raises(InvalidReplicaAssignmentError, match="each only once"):
        to_brokers(view, {}, tps(view), (2, 2))


def test_reassignment_plan_can_change_the_replication_factor() -> None:
    view = view_of(3, (1,), (1,), (1,), (1,))
    plan = to_factor(view, {}, tps(view), 2)
    assert sorted(row[1] for row in plan.values()) == [2, 2, 3, 3]
    assert {row[0] for row in plan.values()} == {1}
    lagging = PartitionMetadata(0, 1, 0, (1, 2, 3), (1, 3))
    view = ClusterView("c", 1, view.brokers, {"t": TopicMetadata("t", partitions=(lagging,))})
    assert to_factor(view, {}, [T0], 2) == {T0: (1, 3)}
    assert to_factor(view, {}, [T0], 1) == {T0: (1,)}
    assert to_factor(view, {}, [T0], 3) == {}
    with pytest.raises(InvalidReplicationFactorError, match="give 1 to 3"):
        to_factor(view, {}, [T0], 4)


def test_reassignment_plan_to_empty_a_broker_keeps_the_position_of_each_replaced_replica() -> None:
    view = view_of(3, (1, 2), (2, 1), (3, 2))
    plan = off_broker(view, {}, tps(view), 1)
    assert plan == {TopicPartition("t", 0): (3, 2), TopicPartition("t", 1): (2, 3)}
    with pytest.raises(InvalidReplicaAssignmentError, match="start another broker"):
        off_broker(view_of(2, (1, 2)), {}, [T0], 1)


def test_reassignment_plan_with_an_unknown_broker_is_refused() -> None:
    view = view_of(2, (1, 2), (9, 1))
    with pytest.raises(BrokerIdNotRegisteredError, match=r"no broker 5.*live brokers: \[1, 2\]"):
        off_broker(view, {}, [T0], 5)
    # Broker 9 is down, but it is known, because it has a replica.
    assert off_broker(view, {}, tps(view), 9) == {TopicPartition("t", 1): (2, 1)}
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
            "lists partition t-0 twice",
        ),
    ],
)
def test_invalid_reassignment_plan_file_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=why):
        from_text(text)


def test_reassignment_plan_of_kafkas_tools_is_parsed() -> None:
    row = '{"topic": "t", "partition": 0, "replicas": [2, 1], "log_dirs": ["any", "any"]}'
    assert from_text(f'{{"version": 1, "partitions": [{row}]}}') == {T0: (2, 1)}


def test_reassignment_plan_treats_a_reassignment_in_progress_as_completed() -> None:
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
def test_every_reassignment_plan_gives_a_partition_distinct_live_brokers(
    live: int, rows: list[list[int]], factor: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 6))
    view = view_of(live, *(tuple(row[:size]) for row in rows))
    if factor <= live:
        for tp, row in to_factor(view, {}, tps(view), factor).items():
            assert len(row) == len(set(row)) == factor
            present = view.partition(tp)
            assert present is not None
            assert all(b in view.brokers for b in row if b not in present.replicas)
    try:
        plan = off_broker(view, {}, tps(view), 1)
    except InvalidReplicaAssignmentError:
        return
    for tp, row in plan.items():
        present = view.partition(tp)
        assert present is not None
        assert 1 not in row and len(set(row)) == len(row) == len(present.replicas)
