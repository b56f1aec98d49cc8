"""Who leads: functions over the state of a partition and the brokers that live.

A replica is a broker and its disk, so only a broker that is registered with the very directory
that the ISR names counts as that replica. Unclean election comes with replication.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from broker_lite.model import NO_BROKER, NO_EPOCH, BrokerView, LeaderAndIsr, ReplicaId


def leads(state: LeaderAndIsr, local: ReplicaId, broker_epochs: Collection[int]) -> bool:
    """Whether this process leads: in the ISR with this disk, and elected since it registered."""
    return (
        state.leader == local.broker_id
        and local in state.isr
        and state.leader_broker_epoch in broker_epochs
    )


def has_live_leader(state: LeaderAndIsr, brokers: Mapping[int, BrokerView]) -> bool:
    """Whether the leader's registration is the one that was elected, with a disk of the ISR."""
    broker = brokers.get(state.leader)
    return (
        broker is not None
        and broker.broker_epoch == state.leader_broker_epoch
        and ReplicaId(broker.broker_id, broker.directory_id) in state.isr
    )


def elect(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    brokers: Mapping[int, BrokerView],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """The state to write after brokers came or went, or None if the present one stands.

    The first of the assignment that lives and is in sync leads, with those of the ISR that live.
    Where none lives the leader is -1 and the ISR keeps its last members. Every change is a new
    leader epoch. ``version`` stays the one that the write must find.
    """
    if has_live_leader(state, brokers):
        return None
    live = tuple(replica for replica in state.isr if _lives(replica, brokers))
    candidates = [replica.broker_id for replica in live]
    leader = next((broker_id for broker_id in replicas if broker_id in candidates), NO_BROKER)
    if leader == NO_BROKER:
        if state.leader == NO_BROKER:
            return None
        isr, broker_epoch = state.isr, NO_EPOCH
    else:
        isr, broker_epoch = live, brokers[leader].broker_epoch
    return dataclasses.replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        controller_epoch=controller_epoch,
        leader_broker_epoch=broker_epoch,
    )


def leaderless_reason(
    state: LeaderAndIsr, replicas: Sequence[int], brokers: Mapping[int, BrokerView]
) -> str | None:
    """Why nobody leads, in words for people; None if somebody does or is about to."""
    if has_live_leader(state, brokers):
        return None
    parts = []
    for replica in state.isr:
        broker = brokers.get(replica.broker_id)
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


def _lives(replica: ReplicaId, brokers: Mapping[int, BrokerView]) -> bool:
    broker = brokers.get(replica.broker_id)
    return broker is not None and broker.directory_id == replica.directory_id
