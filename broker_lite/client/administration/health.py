"""Judge the health of partitions by their leaders and in-sync replicas, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata
from broker_lite.model import NO_BROKER, TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.administration.replica_requests import Reassignment

State = Literal["ok", "under-replicated", "too few in sync", "no leader"]

MinInsync = Callable[[str, int], int]
"""Returns a topic's min.insync.replicas. The arguments are the topic's name and its number of
replicas; during a reassignment, the number at its end."""


class PartitionHealth(NamedTuple):
    """The health of a partition. ``why`` explains a state other than "ok".

    "too few in sync" means fewer in-sync replicas than min.insync.replicas, so the leader refuses
    records with acks=all. "no leader" means that the partition can be neither written nor read."""

    tp: TopicPartition
    state: State
    why: str


class BrokerLoad(NamedTuple):
    """The numbers of partitions that a broker leads, of its replicas, and of its in-sync
    replicas."""

    leaders: int
    replicas: int
    in_sync: int


def partition_health(
    tp: TopicPartition,
    partition: PartitionMetadata,
    live: Iterable[int],
    *,
    move: Reassignment | None = None,
    min_insync: MinInsync = lambda topic, replicas: 1,
) -> PartitionHealth:
    """Return a partition's health. ``live`` has the ids of the live brokers.

    ``move`` is the partition's reassignment in progress; the replicas that it adds need not be in
    sync yet."""
    adding, removing = ((), ()) if move is None else (move.adding, move.removing)
    least = min_insync(tp.topic, len(partition.replicas) - len(removing))
    up = set(live)
    missing = [
        broker_id
        for broker_id in partition.replicas
        if broker_id not in partition.isr and broker_id not in adding
    ]
    if partition.leader == NO_BROKER:
        return PartitionHealth(tp, "no leader", _why_leaderless(partition, up))
    down = [broker_id for broker_id in missing if broker_id not in up]
    behind = [broker_id for broker_id in missing if broker_id in up]
    why = "; ".join(
        text
        for brokers, text in (
            (down, f"{_brokers(down)} down"),
            (behind, f"{_brokers(behind)} catching up"),
        )
        if brokers
    )
    if len(partition.isr) < least:
        text = f"{len(partition.isr)} in sync, acks=all needs {least}"
        return PartitionHealth(tp, "too few in sync", f"{text}; {why}" if why else text)
    return PartitionHealth(tp, "under-replicated" if missing else "ok", why)


def cluster_health(
    view: ClusterView,
    *,
    moves: Mapping[TopicPartition, Reassignment] | None = None,
    min_insync: MinInsync = lambda topic, replicas: 1,
) -> list[PartitionHealth]:
    """Return the health of every partition of the cluster.

    ``moves`` has the reassignments in progress."""
    found = moves or {}
    return [
        partition_health(tp, partition, view.brokers, move=found.get(tp), min_insync=min_insync)
        for tp, partition in view.rows
    ]


def fewer_replicas(view: ClusterView, factor: int) -> list[str]:
    """Return the names of topics with a partition that has fewer than ``factor`` replicas."""
    return sorted(
        name
        for name, topic in view.topics.items()
        if any(len(partition.replicas) < factor for partition in topic.partitions)
    )


def broker_loads(view: ClusterView) -> dict[int, BrokerLoad]:
    """Return the ``BrokerLoad`` of each broker that is live or has a replica, by broker id."""
    leaders: dict[int, int] = {}
    replicas: dict[int, int] = {}
    in_sync: dict[int, int] = {}
    for _, partition in view.rows:
        leaders[partition.leader] = leaders.get(partition.leader, 0) + 1
        for broker_id in partition.replicas:
            replicas[broker_id] = replicas.get(broker_id, 0) + 1
        for broker_id in partition.isr:
            in_sync[broker_id] = in_sync.get(broker_id, 0) + 1
    return {
        broker_id: BrokerLoad(
            leaders.get(broker_id, 0), replicas.get(broker_id, 0), in_sync.get(broker_id, 0)
        )
        for broker_id in sorted({*view.brokers, *replicas})
    }


def _why_leaderless(partition: PartitionMetadata, up: set[int]) -> str:
    alive = [broker_id for broker_id in partition.isr if broker_id in up]
    if alive:
        return (
            f"{_brokers(alive)} up, but with another data directory than the one that has the "
            "records, or about to be elected"
        )
    several = len(partition.isr) > 1
    return (
        f"{_brokers(list(partition.isr))} down, and no other replica has all records: start "
        f"{'one of them' if several else 'it'}"
    )


def _brokers(ids: list[int]) -> str:
    if len(ids) == 1:
        return f"broker {ids[0]} is"
    return f"brokers {', '.join(map(str, ids))} are"
