"""Who leads and who is in sync: functions over the state of a partition and the brokers that live.

A replica is a broker and its disk, so only a broker that is registered with the very directory
that the ISR names counts as that replica. ``live`` are the brokers that are registered and not
suspected. ``replicas`` are the assigned brokers, the preferred leader first. A state that is
returned is one to write: its ``version`` is still the one that the write must find.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from broker_lite.model import NO_BROKER, NO_EPOCH, BrokerView, LeaderAndIsr, ReplicaId

Live = Mapping[int, BrokerView]


def leads(state: LeaderAndIsr, local: ReplicaId, broker_epochs: Collection[int]) -> bool:
    """Whether this process leads: in the ISR with this disk, and elected since it registered."""
    return (
        state.leader == local.broker_id
        and local in state.isr
        and state.leader_broker_epoch in broker_epochs
    )


def has_live_leader(state: LeaderAndIsr, live: Live) -> bool:
    """Whether the leader's registration is the one that was elected, with a disk of the ISR."""
    broker = live.get(state.leader)
    return (
        broker is not None
        and broker.broker_epoch == state.leader_broker_epoch
        and ReplicaId(broker.broker_id, broker.directory_id) in state.isr
    )


def elect(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    live: Live,
    controller_epoch: int,
    *,
    suspected: Live = MappingProxyType({}),
    min_insync: int = 1,
) -> LeaderAndIsr | None:
    """The state to write after brokers came, went or began to drain; None if it stands.

    While the leader lives it stays and the dead leave the ISR, in the same leader epoch. Where it
    does not, the first of the assignment that lives and is in sync leads, with those of the ISR
    that live. Where none lives the leader is -1 and the ISR keeps its last members. A broker that
    is draining or full goes as if it were dead, but for the last ones, of whom a full one leads
    rather than a draining one; a broker that is not assigned (its leader let it in when it just
    was) goes as well. Every change of leader is a new leader epoch.

    ``suspected``: who is registered but seems dead. They go as well, but not where the ISR would
    be smaller than ``min_insync``: nothing is acknowledged there in either case, and where the
    guess was wrong and those that are left lose their disks, they have everything still. For the
    same reason full brokers stay in such an ISR.
    """
    members = tuple(r for r in state.isr if _lives(r, live) and r.broker_id in replicas)
    lasting = tuple(r for r in members if not live[r.broker_id].draining)
    able = tuple(r for r in lasting if not live[r.broker_id].is_full) or lasting or members
    heir, isr = _first(replicas, able), able
    if isr and len(isr) < min_insync:
        full = [r for r in lasting if r not in able]
        kept = [r for r in state.isr if r not in members and _lives(r, suspected)]
        spare = [*full, *(r for r in kept if r.broker_id in replicas)][: min_insync - len(isr)]
        isr = tuple(r for r in state.isr if r in isr or r in spare)
    if has_live_leader(state, live) and state.leader in [r.broker_id for r in able]:
        if isr == state.isr:
            return None
        return dataclasses.replace(state, isr=isr, controller_epoch=controller_epoch)
    if heir != NO_BROKER:
        return led_by(state, live[heir], isr, controller_epoch)
    if state.leader == NO_BROKER:
        return None
    return dataclasses.replace(
        state,
        leader=NO_BROKER,
        leader_epoch=state.leader_epoch + 1,
        controller_epoch=controller_epoch,
        leader_broker_epoch=NO_EPOCH,
    )


def elect_preferred(
    state: LeaderAndIsr, preferred: int, live: Live, controller_epoch: int
) -> LeaderAndIsr | None:
    """Leadership back to the preferred replica; None where it leads or cannot."""
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
    """A leader that is not in sync, where no replica that is lives: what it lacks is lost.

    None where one that is in sync is ``registered``, though suspected: a guess may cost
    availability, but no record. None also where no assigned broker lives.
    """
    if any(_lives(replica, registered) for replica in state.isr):
        return None
    candidates = [live[broker_id] for broker_id in replicas if broker_id in live]
    for broker in sorted(candidates, key=lambda broker: not broker.takes_records):
        isr = (ReplicaId(broker.broker_id, broker.directory_id),)
        return led_by(state, broker, isr, controller_epoch)
    return None


def led_by(
    state: LeaderAndIsr, leader: BrokerView, isr: tuple[ReplicaId, ...], controller_epoch: int
) -> LeaderAndIsr:
    """A new leader epoch of this broker's present process."""
    return dataclasses.replace(
        state,
        leader=leader.broker_id,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        controller_epoch=controller_epoch,
        leader_broker_epoch=leader.broker_epoch,
    )


def withdrawn(
    state: LeaderAndIsr, replicas: Sequence[int], own: ReplicaId, live: Live
) -> LeaderAndIsr | None:
    """The state without this replica, which misses what was flushed; None if it has to stay.

    It stays where it is the only one in sync, and where it leads while no other lives. Where its
    broker is not registered, nobody needs to live: the others keep everything. Always a new leader
    epoch: within the present one the leader may have counted what is about to be cut.
    """
    others = tuple(replica for replica in state.isr if replica != own)
    if own not in state.isr or not others:
        return None
    if state.leader != own.broker_id:
        return dataclasses.replace(state, leader_epoch=state.leader_epoch + 1, isr=others)
    alive = [replica for replica in others if _lives(replica, live)]
    heir = _first(replicas, [r for r in alive if live[r.broker_id].takes_records])
    if heir == NO_BROKER:
        heir = _first(replicas, alive)
    if heir != NO_BROKER:
        return led_by(state, live[heir], others, state.controller_epoch)
    if own.broker_id in live:
        return None
    return dataclasses.replace(
        state,
        leader=NO_BROKER,
        leader_epoch=state.leader_epoch + 1,
        isr=others,
        leader_broker_epoch=NO_EPOCH,
    )


def can_be_left(state: LeaderAndIsr, own: BrokerView, live: Live) -> bool:
    """Whether a draining broker is in an ISR that has another member that stays."""
    replica = ReplicaId(own.broker_id, own.directory_id)
    return replica in state.isr and any(
        other != replica and _lives(other, live) and not live[other.broker_id].draining
        for other in state.isr
    )


def leaderless_reason(state: LeaderAndIsr, replicas: Sequence[int], live: Live) -> str | None:
    """Why nobody leads, in words for people; None if somebody does or is about to."""
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
    return "no in-sync replica lives; " + "; ".join(parts)


def _lives(replica: ReplicaId, live: Live) -> bool:
    broker = live.get(replica.broker_id)
    return broker is not None and broker.directory_id == replica.directory_id


def _first(replicas: Sequence[int], among: Iterable[ReplicaId]) -> int:
    candidates = [replica.broker_id for replica in among]
    return next((broker_id for broker_id in replicas if broker_id in candidates), NO_BROKER)
