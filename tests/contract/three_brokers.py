"""Start three brokers for tests of replicated metadata.

Functions write the ISR of partition t-0, and wait until brokers have a change in their metadata
snapshot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from brokers import Broker, Cluster
from worlds import until

from broker_lite.model import (
    LeaderAndIsr,
    PartitionView,
    ReplicaId,
    StateChange,
    TopicPartition,
)

T0 = TopicPartition("t", 0)


async def three(cluster: Cluster, *, rebalance_ms: int = -1) -> list[Broker]:
    """Start brokers 1, 2 and 3; wait until each broker's snapshot has all three."""
    brokers = [await cluster.start(number, rebalance_ms=rebalance_ms) for number in (1, 2, 3)]
    await until(lambda: all(len(b.registry.snapshot.brokers) == 3 for b in brokers))
    return brokers


def broker_of(cluster: Cluster, broker_id: int) -> Broker:
    return next(b for b in cluster.running if b.registry._config.broker_id == broker_id)


def view_of(broker: Broker, partition: int = 0) -> PartitionView:
    view = broker.registry.snapshot.partition("t", partition)
    assert view is not None
    return view


def isr_of(broker: Broker, partition: int = 0) -> list[int]:
    return sorted(replica.broker_id for replica in view_of(broker, partition).state.isr)


def suspect(cluster: Cluster, dead: int) -> None:
    """Make all running brokers report that broker ``dead`` refuses their connections."""
    for broker in cluster.running:
        registry = broker.registry
        registry.suspect(dead, registry.snapshot.brokers[dead].broker_epoch)


async def left(brokers: Sequence[Broker], dead: int, partition: int) -> None:
    """Wait until broker ``dead`` has left the partition's ISR in the metadata snapshots of these
    brokers.
    """
    await until(lambda: all(dead not in isr_of(b, partition) for b in brokers))


async def drains(broker: Broker, number: int) -> None:
    """Wait until this broker's snapshot shows that broker ``number`` is draining, which precedes
    its controlled shutdown.
    """
    await until(lambda: broker.registry.snapshot.brokers[number].draining)


async def has_version(broker: Broker, version: int) -> None:
    """Wait until this broker's metadata snapshot has version ``version`` of the znode with leader
    and ISR of t-0.
    """
    await until(lambda: view_of(broker).state.version == version)


async def write(leader: Broker, isr: tuple[int, ...], **changes: int) -> LeaderAndIsr | None:
    """Write this ISR to the znode with leader and ISR of t-0, as the partition's leader does.

    Return the new leader and ISR, or None if the write was refused.
    """
    view = view_of(leader)
    topic = leader.registry.snapshot.topics["t"]
    replicas = tuple(ReplicaId(number, f"directory-{number}") for number in isr)
    state = dataclasses.replace(view.state, isr=replicas, **changes)
    [outcome] = await leader.registry.write_states([StateChange("t", 0, state, topic.topic_id)])
    return outcome
