"""Delay a batch until a new coordinator has aborted the batch's transaction.

The sequence needs a client with transaction version 1, whose abort does not bump the producer
epoch:

1. The client adds a partition at the coordinator and sends a batch, which is delayed.
2. The controller suspects that the coordinator is dead and appoints a new one. The client aborts
   there.
3. The former coordinator and the partition's leader do not know of the change yet.
4. The batch arrives. The leader verifies the batch with the former coordinator, which still has the
   transaction as open.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from sim.cluster import SimCluster, pick
from sim.net import CLIENTS
from sim.process import Process
from sim.transaction_clients import TIMEOUTS_MS, Transactional
from sim.transaction_truth import TransactionTruth

from broker_lite.errors import LogbusError
from broker_lite.server.coordinators.state_log import state_partition

STATE_PARTITIONS = 2
LATE_S = 20.0
"""Longest delay in seconds of ZooKeeper's watch events."""
SENT_S, ENDED_S = 1.0, 8.0
"""Seconds in which the client must send the batch, and must have aborted."""


class Roles(NamedTuple):
    """A client's coordinator, the leader to which the client writes, and their partitions: one of
    the transaction state, one of the output topic."""

    coordinator: Process
    leader: Process
    state_partition: int
    partition: int


async def late_batch(
    cluster: SimCluster, rng: random.Random, suspect: Callable[[Process, Process], None]
) -> None:
    """Run the sequence that the module describes, if three brokers can be the controller, the
    coordinator and the leader.

    ``suspect(one, other)`` makes process ``one`` consider process ``other`` dead.
    """
    controllers = [p for p in cluster.processes.values() if p.serving and p.registry.is_controller]
    found = late_client(cluster, rng, controllers[:1]) if controllers else None
    if found is None:
        return
    late, roles = found
    name = late.label
    leader_id, former_id = roles.leader.broker_id, roles.coordinator.broker_id
    cut: list[int] = []
    try:
        await late.begin()
        cut.append(leader_id)
        cluster.net.cut(CLIENTS, leader_id)
        late.send(roles.partition, [f"{name}/0".encode()])
        await asyncio.sleep(SENT_S * rng.random())
        for process in (roles.coordinator, roles.leader):
            process.zk.lag_s = LATE_S
        cut.append(former_id)
        cluster.net.cut(CLIENTS, former_id)
        suspect(controllers[0], roles.coordinator)
        async with asyncio.timeout(ENDED_S):
            await late.end(is_commit=False)
        cluster.count("aborts at the next coordinator")
    except (LogbusError, TimeoutError) as error:
        cluster.trace(name, "failed", type(error).__name__)
    finally:
        for broker_id in cut:
            await asyncio.sleep(rng.random())
            if cluster.net.is_cut(CLIENTS, broker_id):
                cluster.net.heal(CLIENTS, broker_id)
        for process in (roles.coordinator, roles.leader):
            process.zk.lag_s = 0.0


def late_client(
    cluster: SimCluster, rng: random.Random, without: Sequence[Process] = ()
) -> tuple[Transactional, Roles] | None:
    """Return a new client with transaction version 1, its coordinator, and another broker to which
    the client shall write. Neither broker is in ``without``. Return None if no two brokers have
    these roles."""
    truth = cluster.checker.transactions
    roles = None if truth is None else _roles(cluster, truth, rng, without)
    if truth is None or roles is None:
        return None
    number = len(truth.of_version_1)
    name = next(
        name
        for name in (f"late{number}.{n}" for n in count())
        if state_partition(name.encode(), STATE_PARTITIONS) == roles.state_partition
    )
    truth.of_version_1.add(name)
    client = Transactional(cluster, truth, name, name, version=1, timeout_ms=max(TIMEOUTS_MS))
    return client, roles


def _roles(
    cluster: SimCluster, truth: TransactionTruth, rng: random.Random, without: Sequence[Process]
) -> Roles | None:
    serving = {p.broker_id: p for p in cluster.processes.values() if p.serving}
    found = []
    for key, state in cluster.checker.states.items():
        for other, its in cluster.checker.states.items():
            brokers = (state.leader, its.leader)
            if (
                key.topic_id == truth.state_topic
                and other.topic_id in truth.topics
                and all(n in serving and serving[n] not in without for n in brokers)
                and state.leader != its.leader
            ):
                found.append((key.partition, other.partition, *brokers))
    if not found:
        return None
    at, partition, coordinator, leader = pick(rng, found)
    return Roles(serving[coordinator], serving[leader], at, partition)
