"""Tests of planned leader elections: the replica that becomes leader, or why none does."""

from __future__ import annotations

import pytest

from broker_lite.client.administration.replica_plans import Election, elections
from broker_lite.client.administration.replica_requests import Reassignment
from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata, TopicMetadata
from broker_lite.model import Endpoint, TopicPartition

TP = TopicPartition("t", 0)


def view_of(leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> ClusterView:
    """Return a cluster with live brokers 0 and 1, and topic t with one partition."""
    topic = TopicMetadata("t", partitions=(PartitionMetadata(0, leader, 3, replicas, isr),))
    return ClusterView(
        brokers={broker: Endpoint("127.0.0.1", 9092 + broker) for broker in (0, 1)},
        topics={"t": topic},
    )


@pytest.mark.parametrize(
    ("leader", "replicas", "isr", "expected"),
    [
        (1, (0, 1), (0, 1), Election(1, 0, None)),
        (0, (0, 1), (0, 1), Election(0, None, "the preferred broker 0 leads")),
        (1, (0, 1), (1,), Election(1, None, "the preferred broker 0 is not in sync")),
        (1, (2, 1), (2, 1), Election(1, None, "the preferred broker 2 is not alive")),
        (-1, (0, 2), (2,), Election(None, None, "the preferred broker 0 is not in sync")),
    ],
)
def test_preferred_replica_is_elected_if_it_is_in_sync(
    leader: int, replicas: tuple[int, ...], isr: tuple[int, ...], expected: Election
) -> None:
    assert elections(view_of(leader, replicas, isr), {}, [TP], unclean=False) == {TP: expected}


@pytest.mark.parametrize(
    ("leader", "replicas", "isr", "expected"),
    [
        (-1, (2, 1, 0), (2,), Election(None, 1, None)),
        (1, (2, 1), (1,), Election(1, None, "broker 1 leads")),
        (-1, (2, 1), (1,), Election(None, None, "broker 1, which has all records, is registered")),
        (-1, (2, 3), (2,), Election(None, None, "no replica is alive")),
    ],
)
def test_unclean_election_elects_a_live_replica_only_if_no_isr_member_is_registered(
    leader: int, replicas: tuple[int, ...], isr: tuple[int, ...], expected: Election
) -> None:
    assert elections(view_of(leader, replicas, isr), {}, [TP], unclean=True) == {TP: expected}


def test_preferred_replica_during_a_reassignment_is_the_first_target_replica() -> None:
    view = view_of(0, (0, 1), (0, 1))
    move = {TP: Reassignment((1, 0), adding=(1,), removing=(0,))}
    assert elections(view, move, [TP], unclean=False) == {TP: Election(0, 1, None)}
