"""Leader election and ISR changes: compute a partition's new state from the live brokers.

- A replica is a broker together with its data directory. A broker counts as a member of the ISR
  only if it is registered with the directory that the ISR names: another directory lacks the
  records.
- ``live`` holds the brokers that are registered and not suspected to be dead.
- ``replicas`` holds the ids of the assigned brokers, preferred leader first.
- The caller writes a returned state with a compare-and-set on the znode's version (``version``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from broker_lite.model import NO_BROKER, NO_EPOCH, BrokerView, LeaderAndIsr, ReplicaId

Live = Mapping[int, BrokerView]


def leads(state: LeaderAndIsr, local: ReplicaId, broker_epochs: Collection[int]) -> bool:
    """Return whether this broker process leads the partition.

    The ISR must list the broker with its present data directory (``local``). The leader's broker
    epoch must be one of this process (``broker_epochs``), not of an earlier process of the
    broker."""
    return (
        state.leader == local.broker_id
        and local in state.isr
        and state.leader_broker_epoch in broker_epochs
    )


def has_live_leader(state: LeaderAndIsr, live: Live) -> bool:
    """Return whether the leader is live, still has the broker epoch with which it was elected, and
    has the data directory that the ISR lists for it."""
    broker = live.get(state.leader)
    return (
        broker is not None
        and broker.broker_epoch == state.leader_broker_epoch
        and ReplicaId(broker.broker_id, broker.directory_id) in state.isr
    )


def is_election_due(state: LeaderAndIsr, live: Live) -> bool:
    """Return whether the controller will change the leader, given the live brokers."""
    if has_live_leader(state, live):
        return False
    return state.leader != NO_BROKER or any(_is_live(replica, live) for replica in state.isr)


def elect(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    live: Live,
    controller_epoch: int,
    *,
    suspected: Live = MappingProxyType({}),
    min_insync: int = 1,
) -> LeaderAndIsr | None:
    """Return the state to write after the set of brokers changed; None if no change is needed.

    - While the leader is live it stays leader. Dead members leave the ISR without a new leader
      epoch.
    - Otherwise the first assigned broker that is live and in sync becomes leader, and the live
      members become the ISR.
    - If no member is live, the leader is -1 and the ISR keeps its last members.
    - A draining broker, which prepares to stop, or one with a full disk counts as dead, unless the
      ISR has no other live members. Among draining and full brokers, a full one is preferred.
    - A broker that is no longer assigned leaves the ISR.

    Every change of leader begins a new leader epoch.

    ``suspected`` has the registered brokers that are probably dead. They and full brokers leave the
    ISR too, as long as ``min_insync`` members remain; otherwise as many of them stay as this number
    requires. With acks=all, a record is acknowledged only once every ISR member has it, so a
    suspected member that stays may lead if the suspicion is wrong."""
    members = tuple(r for r in state.isr if _is_live(r, live) and r.broker_id in replicas)
    lasting = tuple(r for r in members if not live[r.broker_id].draining)
    able = tuple(r for r in lasting if not live[r.broker_id].is_full) or lasting or members
    successor, isr = _first(replicas, able), able
    if isr and len(isr) < min_insync:
        full = [r for r in lasting if r not in able]
        suspected_members = [r for r in state.isr if r not in members and _is_live(r, suspected)]
        spare = [*full, *(r for r in suspected_members if r.broker_id in replicas)][
            : min_insync - len(isr)
        ]
        isr = tuple(r for r in state.isr if r in isr or r in spare)
    if has_live_leader(state, live) and state.leader in [r.broker_id for r in able]:
        if isr == state.isr:
            return None
        return dataclasses.replace(state, isr=isr, controller_epoch=controller_epoch)
    if successor != NO_BROKER:
        return led_by(state, live[successor], isr, controller_epoch)
    if state.leader == NO_BROKER:
        return None
    return without_leader(state, state.isr, controller_epoch)


def elect_preferred(
    state: LeaderAndIsr, preferred: int, live: Live, controller_epoch: int
) -> LeaderAndIsr | None:
    """Return the state with the preferred replica as leader; None if it leads or cannot lead.

    It cannot lead if it is not alive or not in sync, or if its broker is draining (about to stop)
    or has a full disk."""
    broker = live.get(preferred)
    if broker is None or not broker.takes_records or not has_live_leader(state, live):
        return None
    if state.leader == preferred or ReplicaId(preferred, broker.directory_id) not in state.isr:
        return None
    return led_by(state, broker, state.isr, controller_epoch)


def elect_unclean(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    live: Live,
    registered: Live,
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """Return the state with an out-of-sync replica as leader. Records that it lacks are lost.

    Return None if any ISR member is still ``registered``, even if suspected to be dead: a wrong
    suspicion must not cost records. Also return None if no assigned broker is live."""
    if any(_is_live(replica, registered) for replica in state.isr):
        return None
    candidates = [live[broker_id] for broker_id in replicas if broker_id in live]
    for broker in sorted(candidates, key=lambda broker: not broker.takes_records):
        isr = (ReplicaId(broker.broker_id, broker.directory_id),)
        return led_by(state, broker, isr, controller_epoch)
    return None


def led_by(
    state: LeaderAndIsr, leader: BrokerView, isr: tuple[ReplicaId, ...], controller_epoch: int
) -> LeaderAndIsr:
    """Return ``state`` in a new leader epoch, led by ``leader``. The new state names the leader's
    broker epoch, which identifies its process."""
    return dataclasses.replace(
        state,
        leader=leader.broker_id,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        controller_epoch=controller_epoch,
        leader_broker_epoch=leader.broker_epoch,
    )


def without_leader(
    state: LeaderAndIsr, isr: tuple[ReplicaId, ...], controller_epoch: int
) -> LeaderAndIsr:
    """Return the state without a leader, in a new leader epoch."""
    return dataclasses.replace(
        state,
        leader=NO_BROKER,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        controller_epoch=controller_epoch,
        leader_broker_epoch=NO_EPOCH,
    )


def withdrawn(
    state: LeaderAndIsr, replicas: Sequence[int], own: ReplicaId, live: Live
) -> LeaderAndIsr | None:
    """Return the state without this replica, whose log lost flushed records; None if it must stay.

    It must stay if it is the only ISR member, or if it leads and no other member is live. But a
    leader whose own broker is not registered yet may leave without a successor, because the other
    members keep all records. The new state always has a new leader epoch: in the current one the
    leader may have counted the missing records as replicated."""
    others = tuple(replica for replica in state.isr if replica != own)
    if own not in state.isr or not others:
        return None
    if state.leader != own.broker_id:
        return dataclasses.replace(state, leader_epoch=state.leader_epoch + 1, isr=others)
    alive = [replica for replica in others if _is_live(replica, live)]
    successor = _first(replicas, [r for r in alive if live[r.broker_id].takes_records])
    if successor == NO_BROKER:
        successor = _first(replicas, alive)
    if successor != NO_BROKER:
        return led_by(state, live[successor], others, state.controller_epoch)
    if own.broker_id in live:
        return None
    return without_leader(state, others, state.controller_epoch)


def can_leave_isr(state: LeaderAndIsr, own: BrokerView, live: Live) -> bool:
    """Return whether ``own``, a broker that drains before it stops, can leave the ISR.

    It can if the ISR has another live member that is not draining."""
    replica = ReplicaId(own.broker_id, own.directory_id)
    return replica in state.isr and any(
        other != replica and _is_live(other, live) and not live[other.broker_id].draining
        for other in state.isr
    )


def leaderless_reason(state: LeaderAndIsr, replicas: Sequence[int], live: Live) -> str | None:
    """Return why the partition has no leader, as text; None if it has one or an election is due."""
    if has_live_leader(state, live):
        return None
    parts = []
    for replica in state.isr:
        broker = live.get(replica.broker_id)
        if broker is None:
            parts.append(f"broker {replica.broker_id} is down: start it")
        elif broker.directory_id != replica.directory_id:
            parts.append(
                f"broker {replica.broker_id} runs with data directory {broker.directory_id}, but "
                f"the records are in {replica.directory_id}: start it with that directory"
            )
        elif replica.broker_id in replicas:
            return None
    return "no in-sync replica is alive; " + "; ".join(parts)


def _is_live(replica: ReplicaId, live: Live) -> bool:
    broker = live.get(replica.broker_id)
    return broker is not None and broker.directory_id == replica.directory_id


def _first(replicas: Sequence[int], among: Iterable[ReplicaId]) -> int:
    candidates = [replica.broker_id for replica in among]
    return next((broker_id for broker_id in replicas if broker_id in candidates), NO_BROKER)
