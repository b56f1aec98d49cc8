"""Plan replica reassignments for ``Admin.reassign``, and predict leader elections, without I/O.

A plan has the new replicas of each partition that changes: broker ids, the preferred leader first.
A new replica goes to the live broker with the fewest replicas. The argument ``ongoing`` has the
reassignments in progress."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from broker_lite.client.administration.health import broker_loads
from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata
from broker_lite.config import INT_MAX
from broker_lite.errors import (
    BrokerIdNotRegisteredError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)
from broker_lite.model import TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.administration.replica_requests import Reassignment

    Ongoing = Mapping[TopicPartition, Reassignment]

Plan = dict[TopicPartition, tuple[int, ...]]


def to_brokers(
    view: ClusterView, ongoing: Ongoing, tps: Iterable[TopicPartition], brokers: tuple[int, ...]
) -> Plan:
    """Plan to move each partition to exactly these brokers, and spread the preferred leaders."""
    if not brokers or len(set(brokers)) != len(brokers):
        raise InvalidReplicaAssignmentError(
            f"brokers {list(brokers)}: name at least one broker, and each only once"
        )
    _check_ids(brokers)
    plan = {}
    for number, tp in enumerate(tps):
        turn = number % len(brokers)
        plan[tp] = brokers[turn:] + brokers[:turn]
    return _changed(view, ongoing, plan)


def to_factor(
    view: ClusterView, ongoing: Ongoing, tps: Iterable[TopicPartition], factor: int
) -> Plan:
    """Plan to change the number of replicas of each partition to ``factor``.

    Replicas that are not in sync are removed first. Raises InvalidReplicationFactorError for more
    replicas than live brokers."""
    if not 1 <= factor <= len(view.brokers):
        raise InvalidReplicationFactorError(
            f"replication factor {factor}: give 1 to {len(view.brokers)}, the number of live "
            "brokers"
        )
    loads = _loads(view)
    plan = {}
    for tp in tps:
        partition = _partition(view, tp)
        present = target(partition, ongoing.get(tp))
        row = list(present)
        while len(row) > factor:
            # Remove one replica from ``row`` (the replica list): the last that is not in sync. If
            # all are in sync, remove the last.
            lagging = [broker for broker in row if broker not in partition.isr]
            row.remove(lagging[-1] if lagging else row[-1])
        while len(row) < factor:
            row.append(_least(loads, row, tp))
        plan[tp] = tuple(row)
    return _changed(view, ongoing, plan)


def off_broker(
    view: ClusterView, ongoing: Ongoing, tps: Iterable[TopicPartition], broker_id: int
) -> Plan:
    """Plan to move all replicas off a broker. Each receiving broker takes the place of that broker
    in the replica list, also as preferred leader.

    Raises BrokerIdNotRegisteredError for an unknown broker."""
    if broker_id not in broker_loads(view):
        raise BrokerIdNotRegisteredError(
            f"there is no broker {broker_id}, and no partition names it; live brokers: "
            f"{sorted(view.brokers)}"
        )
    loads = _loads(view)
    loads.pop(broker_id, None)
    plan = {}
    for tp in tps:
        row = list(target(_partition(view, tp), ongoing.get(tp)))
        if broker_id in row:
            row[row.index(broker_id)] = _least(loads, row, tp)
            plan[tp] = tuple(row)
    return _changed(view, ongoing, plan)


def from_text(text: str) -> Plan:
    """Parse a plan in the JSON format of ``kafka-reassign-partitions``.

    It has the form ``{"partitions": [{"topic": …, "partition": …, "replicas": […]}]}``. Raises
    InvalidReplicaAssignmentError for other input or a repeated partition."""
    plan: Plan = {}
    try:
        rows = json.loads(text)["partitions"]
        if not isinstance(rows, list):
            raise TypeError("partitions is not a list")
        for row in rows:
            tp, brokers = _planned(row)
            if tp in plan:
                raise InvalidReplicaAssignmentError(
                    f"the plan lists partition {tp} twice; list it once"
                )
            plan[tp] = brokers
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidReplicaAssignmentError(
            f"the plan is not valid ({error!r}); give JSON "
            'such as {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}'
        ) from None
    return plan


class Election(NamedTuple):
    """The expected outcome of a leader election in one partition.

    ``leader`` is the id of the present live leader, or None. ``elected`` is the id of the next
    leader, or None if nothing changes, for the reason ``why``."""

    leader: int | None
    elected: int | None
    why: str | None


def elections(
    view: ClusterView, ongoing: Ongoing, tps: Iterable[TopicPartition], *, unclean: bool
) -> dict[TopicPartition, Election]:
    """Return the expected outcome of a preferred (or ``unclean``) election in each partition."""
    outcomes = {}
    for tp in tps:
        partition = _partition(view, tp)
        leader = partition.leader if partition.leader in view.brokers else None
        elected, why = _elected(view, partition, target(partition, ongoing.get(tp)), unclean)
        outcomes[tp] = Election(leader, elected, why)
    return outcomes


def _elected(
    view: ClusterView, partition: PartitionMetadata, replicas: tuple[int, ...], unclean: bool
) -> tuple[int | None, str | None]:
    """Return the broker that an election would make leader, or why it would change nothing.

    The rules are those of the controller (``replication.controller_requests``)."""
    leads = partition.leader in view.brokers
    if unclean:
        if leads:
            return None, f"broker {partition.leader} leads"
        if known := [broker for broker in partition.isr if broker in view.brokers]:
            return None, f"broker {known[0]}, which has all records, is registered"
        live = [broker for broker in partition.replicas if broker in view.brokers]
        return (live[0], None) if live else (None, "no replica is alive")
    preferred = replicas[0]
    if leads and partition.leader == preferred:
        return None, f"the preferred broker {preferred} leads"
    if preferred not in view.brokers:
        return None, f"the preferred broker {preferred} is not alive"
    if not leads or preferred not in partition.isr:
        return None, f"the preferred broker {preferred} is not in sync"
    return preferred, None


def _planned(row: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    brokers = tuple(map(int, row["replicas"]))
    _check_ids(brokers)
    return TopicPartition(str(row["topic"]), int(row["partition"])), brokers


def _check_ids(brokers: Sequence[int]) -> None:
    for broker_id in brokers:
        if not 0 <= broker_id <= INT_MAX:
            raise InvalidReplicaAssignmentError(
                f"broker {broker_id}: ids are numbers from 0 to {INT_MAX}"
            )


def target(partition: PartitionMetadata, ongoing: Reassignment | None) -> tuple[int, ...]:
    """Return the partition's replicas; during a reassignment, the replicas after its end."""
    if ongoing is None:
        return partition.replicas
    return tuple(broker for broker in ongoing.replicas if broker not in ongoing.removing)


def _changed(view: ClusterView, ongoing: Ongoing, plan: Plan) -> Plan:
    return {
        tp: row for tp, row in plan.items() if row != target(_partition(view, tp), ongoing.get(tp))
    }


def _partition(view: ClusterView, tp: TopicPartition) -> PartitionMetadata:
    partition = view.partition(tp)
    if partition is None:
        raise InvalidReplicaAssignmentError(
            f"there is no partition {tp}; see: logbus topic describe {tp.topic}"
        )
    return partition


def _loads(view: ClusterView) -> dict[int, int]:
    loads = broker_loads(view)
    return {broker_id: loads[broker_id].replicas for broker_id in view.brokers}


def _least(loads: dict[int, int], row: list[int], tp: TopicPartition) -> int:
    free = [broker_id for broker_id in loads if broker_id not in row]
    if not free:
        raise InvalidReplicaAssignmentError(
            f"no broker can take another replica of partition {tp}, because every other live "
            "broker has one already; start another broker, or give the partition fewer replicas"
        )
    chosen = min(free, key=lambda broker_id: (loads[broker_id], broker_id))
    loads[chosen] += 1
    return chosen
