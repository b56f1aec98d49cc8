"""Check that a cluster without faults has reached its target state."""

from __future__ import annotations

from collections.abc import Sequence

from sim.administration import assignment
from sim.cluster import SimCluster

from broker_lite.metadata import znodes
from broker_lite.model import PartitionKey


def unsettled(cluster: SimCluster, topic: str, keys: Sequence[PartitionKey]) -> str | None:
    """Return a description of the first broker, partition or log that is not in its target state.

    Return None if there is none.
    """
    running = list(cluster.processes.values())
    if len(running) < len(cluster.disks):
        return f"only the brokers {sorted(cluster.processes)} run"
    for process in running:
        live = sorted(process.registry.snapshot.brokers)
        if live != sorted(cluster.disks):
            return f"broker {process.broker_id} sees the brokers {live}"
    controllers = [process.broker_id for process in running if process.registry.is_controller]
    if len(controllers) != 1:
        return f"the controllers are {controllers}"
    assigned = assignment(cluster, topic)
    for key in keys:
        if key.partition in assigned.moves:
            return f"partition {key.partition} is still moved: {assigned.moves[key.partition]}"
        wrong = _unsettled_partition(cluster, key, assigned.replicas[key.partition])
        if wrong is not None:
            return f"partition {key.partition} {wrong}"
    return _misplaced(cluster)


def _unsettled_partition(
    cluster: SimCluster, key: PartitionKey, replicas: Sequence[int]
) -> str | None:
    state = cluster.checker.state(key)
    assert state is not None
    if state.leader < 0:
        return f"has no leader: {state}"
    members = {replica.broker_id: replica.directory_id for replica in state.isr}
    if sorted(members) != sorted(replicas):
        return f"has the ISR {sorted(members)} of {sorted(replicas)}"
    for broker_id, directory_id in members.items():
        process = cluster.processes[broker_id]
        assert process.logs is not None and process.replicas is not None
        if process.logs.data.directory_id != directory_id:
            return f"has broker {broker_id} in the ISR with another disk"
        log = process.log(key)
        end = _end(cluster, key, state.leader)
        if log is None or log.log_end_offset != end:
            found = None if log is None else log.log_end_offset
            return f"ends at {found} on broker {broker_id}, {end} are committed"
        if any(r.is_under_replicated for r in process.replicas.replicas if r.key == key):
            return f"is under-replicated, as broker {broker_id} sees it"
    return None


def _end(cluster: SimCluster, key: PartitionKey, leader: int) -> int:
    """Return the log end offset that every replica must reach: the highest known high watermark.

    After an unclean election, it is the leader's log end offset.
    """
    if key.topic_id not in cluster.checker.lossy_topics:
        return cluster.checker.true_end(key)
    log = cluster.processes[leader].log(key)
    return -1 if log is None else log.log_end_offset


def _misplaced(cluster: SimCluster) -> str | None:
    """Describe a log that its broker should have deleted; return None for any other log.

    The broker deletes a log if its topic is deleted or its partition reassigned to other brokers.
    """
    names = cluster.zk.peek_children(znodes.TOPICS)
    wanted: dict[PartitionKey, Sequence[int]] = {}
    for name in names:
        found = assignment(cluster, name)
        for partition, replicas in enumerate(found.replicas):
            wanted[PartitionKey(found.topic_id, partition)] = replicas
    for process in cluster.processes.values():
        assert process.logs is not None
        for key in process.logs.logs:
            if process.broker_id not in wanted.get(key, ()):
                return f"broker {process.broker_id} still has a log of {key}"
    return None
