"""Which brokers partitions should move to: plans for ``Admin.reassign``. Pure.

A plan names the replicas that a partition is to have, the preferred leader first; what stays as it
is is left out. Replicas that are new go to the live brokers that hold the fewest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker_lite.client.cluster import ClusterView, PartitionMetadata
from broker_lite.client.health import broker_loads
from broker_lite.client.replica_requests import Reassignment
from broker_lite.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError
from broker_lite.model import TopicPartition

Plan = dict[TopicPartition, tuple[int, ...]]
Ongoing = Mapping[TopicPartition, Reassignment]


def to_brokers(
    view: ClusterView, ongoing: Ongoing, wheres: Iterable[TopicPartition], brokers: tuple[int, ...]
) -> Plan:
    """To these brokers; each partition begins with the next one, so that all of them lead."""
    if not brokers or len(set(brokers)) != len(brokers):
        raise InvalidReplicaAssignmentError(f"brokers {list(brokers)}: give different ones")
    plan = {}
    for number, where in enumerate(wheres):
        turn = number % len(brokers)
        plan[where] = brokers[turn:] + brokers[:turn]
    return _changed(view, ongoing, plan)


def to_factor(
    view: ClusterView, ongoing: Ongoing, wheres: Iterable[TopicPartition], factor: int
) -> Plan:
    """As many replicas as ``factor``: those that are in sync stay first."""
    if not 1 <= factor <= len(view.brokers):
        raise InvalidReplicationFactorError(
            f"replication factor {factor}: give 1 to {len(view.brokers)}, as many as brokers live"
        )
    loads = _loads(view)
    plan = {}
    for where in wheres:
        partition = _partition(view, where)
        present = target(partition, ongoing.get(where))
        row = list(present)
        while len(row) > factor:
            # The last that is not in sync, else the last.
            lagging = [broker for broker in row if broker not in partition.isr]
            row.remove(lagging[-1] if lagging else row[-1])
        while len(row) < factor:
            row.append(_least(loads, row, where))
        plan[where] = tuple(row)
    return _changed(view, ongoing, plan)


def off_broker(
    view: ClusterView, ongoing: Ongoing, wheres: Iterable[TopicPartition], broker_id: int
) -> Plan:
    """Off this broker: another one takes its place, also as preferred leader."""
    loads = _loads(view)
    loads.pop(broker_id, None)
    plan = {}
    for where in wheres:
        row = list(target(_partition(view, where), ongoing.get(where)))
        if broker_id in row:
            row[row.index(broker_id)] = _least(loads, row, where)
            plan[where] = tuple(row)
    return _changed(view, ongoing, plan)


def target(partition: PartitionMetadata, ongoing: Reassignment | None) -> tuple[int, ...]:
    """The replicas that a partition has, or is on its way to."""
    if ongoing is None:
        return partition.replicas
    return tuple(broker for broker in ongoing.replicas if broker not in ongoing.removing)


def _changed(view: ClusterView, ongoing: Ongoing, plan: Plan) -> Plan:
    return {
        where: row
        for where, row in plan.items()
        if row != target(_partition(view, where), ongoing.get(where))
    }


def _partition(view: ClusterView, where: TopicPartition) -> PartitionMetadata:
    found = view.partition(where)
    if found is None:
        raise InvalidReplicaAssignmentError(f"there is no partition {where}")
    return found


def _loads(view: ClusterView) -> dict[int, int]:
    loads = broker_loads(view)
    return {broker_id: loads[broker_id].replicas for broker_id in view.brokers}


def _least(loads: dict[int, int], row: list[int], where: TopicPartition) -> int:
    free = [broker_id for broker_id in loads if broker_id not in row]
    if not free:
        raise InvalidReplicaAssignmentError(
            f"partition {where} has a replica on every other live broker: start one more, or give "
            "it fewer replicas"
        )
    chosen = min(free, key=lambda broker_id: (loads[broker_id], broker_id))
    loads[chosen] += 1
    return chosen
