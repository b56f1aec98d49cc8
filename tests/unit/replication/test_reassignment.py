"""Tests of reassignments: a removal of a replica begins a new leader epoch."""

from __future__ import annotations

from broker_lite.model import BrokerView, Endpoint, LeaderAndIsr, PartitionView, ReplicaId
from broker_lite.replication import reassignment

LIVE = {number: BrokerView(number, Endpoint("h", 1), "A", 10 + number) for number in (1, 2, 3)}
ISR = tuple(ReplicaId(number, "A") for number in (1, 2))
BEFORE = PartitionView(0, (1, 2), LeaderAndIsr(1, 5, ISR, 1, 4, 11))


def test_cancelling_a_reassignment_raises_the_leader_epoch() -> None:
    """Regression: a reassignment was cancelled and begun again. The new replica's fetch from
    the first time, with a complete log, arrived late. Its empty log then counted as in sync.
    """
    began = reassignment.begin("t-0", BEFORE, (1, 2, 3), LIVE, 1)
    assert (began.adding, began.state.leader_epoch) == ((3,), 5)
    cancelled = reassignment.cancel("t-0", began, LIVE, 1)
    assert cancelled.replicas == (1, 2)
    assert (cancelled.state.leader, cancelled.state.isr) == (1, ISR)
    again = reassignment.begin("t-0", cancelled, (1, 2, 3), LIVE, 1)
    assert again.state.leader_epoch == cancelled.state.leader_epoch == 6


def test_changed_reassignment_that_drops_a_replica_raises_the_leader_epoch() -> None:
    began = reassignment.begin("t-0", BEFORE, (1, 2, 3), LIVE, 1)
    other = reassignment.begin("t-0", began, (2, 1), LIVE, 1)
    assert (other.replicas, other.state.leader_epoch) == ((2, 1), 6)


def test_completed_reassignment_begins_a_leader_epoch_if_the_leader_stays() -> None:
    began = reassignment.begin("t-0", BEFORE, (1,), LIVE, 1)
    done = reassignment.finish(began, LIVE, 1)
    assert done is not None and done.replicas == (1,)
    assert (done.state.leader, done.state.leader_epoch, done.state.isr) == (1, 6, ISR[:1])
