"""Move partitions to other brokers. Each function returns the partition to be written.

- ``begin`` puts the new replicas before the present ones in the assignment.
- ``finish`` ends the reassignment once all new replicas are in sync: one write removes all other
  replicas from the ISR and the assignment, and elects a new replica as leader if needed.
- ``cancel`` returns to the replicas before ``begin``. A second ``begin`` before ``finish`` replaces
  the target of the first.

A write that removes a replica begins a new leader epoch, in which the leader refuses old fetches of
the removed replica that arrive late. If the broker has become a replica again, with an empty log,
it lacks the records that such a fetch confirms (Kafka's PartitionChangeBuilder has the same
rule)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from broker_lite.errors import InvalidReplicaAssignmentError, NoReassignmentInProgressError
from broker_lite.model import LeaderAndIsr, PartitionView, ReplicaId
from broker_lite.replication.election import Live, elect, has_live_leader, led_by
from broker_lite.replication.placement import check_live


def begin(
    name: str, view: PartitionView, target: Sequence[int], live: Live, controller_epoch: int
) -> PartitionView:
    """Return the partition in reassignment to the brokers ``target``, preferred leader first.

    ``name`` is for error messages. Brokers that ``target`` adds must be live. Raises
    InvalidReplicaAssignmentError."""
    target = tuple(target)
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignmentError(
            f"partition {name} cannot be assigned to brokers {list(target)}: give at least one "
            "broker id, and each id only once"
        )
    origin = tuple(broker for broker in view.replicas if broker not in view.adding)
    both = target + tuple(broker for broker in origin if broker not in target)
    adding = tuple(broker for broker in both if broker not in origin)
    removing = tuple(broker for broker in both if broker not in target)
    check_live(f"partition {name}", adding, live)
    moved = dataclasses.replace(view, replicas=both, adding=adding, removing=removing)
    return _led(name, view, moved, live, controller_epoch)


def cancel(name: str, view: PartitionView, live: Live, controller_epoch: int) -> PartitionView:
    """Return the partition with the replicas that it had before its reassignment.

    Raises NoReassignmentInProgressError."""
    if not view.is_reassigning:
        raise NoReassignmentInProgressError(f"partition {name} is not being reassigned")
    origin = tuple(broker for broker in view.replicas if broker not in view.adding)
    back = dataclasses.replace(view, replicas=origin, adding=(), removing=())
    return _led(name, view, back, live, controller_epoch)


def finish(view: PartitionView, live: Live, controller_epoch: int) -> PartitionView | None:
    """Return the partition with only the target replicas of its reassignment; None unless all of
    these are in sync and live."""
    if not view.is_reassigning:
        return None
    target = view.target
    for broker_id in target:
        broker = live.get(broker_id)
        if broker is None or ReplicaId(broker_id, broker.directory_id) not in view.state.isr:
            return None
    state = _restricted_to(view, target, live, controller_epoch)
    assert state is not None, view
    return PartitionView(view.partition, target, state)


def _led(
    name: str, before: PartitionView, view: PartitionView, live: Live, controller_epoch: int
) -> PartitionView:
    """Return ``view`` with the state of ``before``, restricted to the replicas of ``view``."""
    state = _restricted_to(before, view.replicas, live, controller_epoch)
    if state is None:
        raise InvalidReplicaAssignmentError(
            f"partition {name}: none of brokers {list(view.replicas)} is in sync, and all "
            "in-sync replicas would be removed; wait until one of these brokers is in sync"
        )
    return dataclasses.replace(view, state=state)


def _restricted_to(
    view: PartitionView, replicas: Sequence[int], live: Live, controller_epoch: int
) -> LeaderAndIsr | None:
    """Return the state without the ISR members that ``replicas`` does not list; None if no member
    is left. If ``view`` has replicas beyond these, elect a leader in a new leader epoch."""
    state = view.state
    if set(view.replicas) <= set(replicas):
        return state
    isr = tuple(replica for replica in state.isr if replica.broker_id in replicas)
    if not isr:
        return None
    fewer = dataclasses.replace(state, isr=isr, controller_epoch=controller_epoch)
    if has_live_leader(fewer, live):
        return led_by(fewer, live[state.leader], isr, controller_epoch)
    return elect(fewer, replicas, live, controller_epoch) or fewer
