"""Operations (generators that yield requests) that elect leaders, move replicas, retire brokers.

Requests go to the controller, and are repeated if another broker becomes controller. A repetition
has no further effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from broker_lite.client.administration.admin_requests import on_controller
from broker_lite.client.operations.cluster import Cluster, group_by_topic
from broker_lite.client.operations.requests import on_any_broker
from broker_lite.client.transport.steps import CallExchange, Operation
from broker_lite.errors import (
    ElectionNotNeededError,
    LogbusError,
    NoReassignmentInProgressError,
    error_of,
)
from broker_lite.model import TopicPartition
from broker_lite.wire.calls import replicas as calls
from broker_lite.wire.layout import DeclaredCall

T = TypeVar("T")
Outcomes = dict[TopicPartition, LogbusError | None]


class Reassignment(NamedTuple):
    """A reassignment in progress.

    ``replicas`` has all brokers involved: those that will have a replica, then those in
    ``removing``."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def elect_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition] | None,
    deadline_ms: float,
    *,
    unclean: bool,
) -> Operation[Outcomes]:
    """Elect the preferred replicas as leaders; with ``unclean``, out-of-sync replicas in partitions
    without a leader. Return an error, or None, for each partition.

    ``partitions`` None means all; the result then has only those that needed another leader."""
    call = calls.ElectLeadersRequest(
        calls.ELECTION_UNCLEAN if unclean else calls.ELECTION_PREFERRED,
        None if partitions is None else _rows(partitions),
        _timeout(cluster, deadline_ms),
    )
    answer, is_repeat = yield from _ask_controller(cluster, call, deadline_ms)
    outcomes = {
        TopicPartition(topic.topic, row.partition_id): error_of(row.error_code, row.error_message)
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }
    return _without(ElectionNotNeededError, outcomes) if is_repeat else outcomes


def reassign(
    cluster: Cluster,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    deadline_ms: float,
) -> Operation[Outcomes]:
    """Start to move each partition's replicas to the given brokers; None cancels the reassignment.

    Return an error, or None, for each partition."""
    rows = tuple(
        calls.ReassignableTopic(
            name,
            tuple(calls.ReassignablePartition(tp.partition, _tuple(targets[tp])) for tp in tps),
        )
        for name, tps in group_by_topic(list(targets)).items()
    )
    call = calls.AlterPartitionReassignmentsRequest(_timeout(cluster, deadline_ms), rows)
    answer, is_repeat = yield from _ask_controller(cluster, call, deadline_ms)
    outcomes = {
        TopicPartition(topic.name, row.partition_index): error_of(row.error_code, row.error_message)
        for topic in answer.responses
        for row in topic.partitions
    }
    return _without(NoReassignmentInProgressError, outcomes) if is_repeat else outcomes


def reassignments(
    cluster: Cluster, deadline_ms: float
) -> Operation[dict[TopicPartition, Reassignment]]:
    """Return the reassignments in progress, as the controller reports them."""
    call = calls.ListPartitionReassignmentsRequest(_timeout(cluster, deadline_ms))
    answer, _ = yield from _ask_controller(cluster, call, deadline_ms)
    return {
        TopicPartition(topic.name, row.partition_index): Reassignment(
            row.replicas, row.adding_replicas, row.removing_replicas
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def retire_broker(cluster: Cluster, broker_id: int, deadline_ms: float) -> Operation[None]:
    """Remove a broker from the cluster. Raises InvalidRequestError if the broker is live or has
    replicas."""

    def check(answer: calls.UnregisterBrokerResponse) -> LogbusError | None:
        return error_of(answer.error_code, answer.error_message)

    exchange = CallExchange(calls.UnregisterBrokerRequest(broker_id))
    yield from on_any_broker(cluster, exchange, check, deadline_ms)


def _ask_controller(
    cluster: Cluster, call: DeclaredCall[T], deadline_ms: float
) -> Operation[tuple[T, bool]]:
    """Send a request to the controller. Return the response, and whether an earlier attempt, whose
    response was lost, may have taken effect."""
    was_repeated = False

    def check(answer: Any, is_repeat: bool) -> LogbusError | None:
        nonlocal was_repeated
        was_repeated = is_repeat
        return error_of(answer.error_code, getattr(answer, "error_message", None))

    answer = yield from on_controller(cluster, CallExchange(call), check, deadline_ms)
    return answer, was_repeated


def _without(kind: type[LogbusError], outcomes: Outcomes) -> Outcomes:
    """Return ``outcomes`` with success in place of errors of this kind: an earlier attempt has made
    the change, so it was no longer needed."""
    return {tp: None if isinstance(error, kind) else error for tp, error in outcomes.items()}


def _rows(partitions: Collection[TopicPartition]) -> tuple[calls.TopicPartitions, ...]:
    return tuple(
        calls.TopicPartitions(name, tuple(tp.partition for tp in tps))
        for name, tps in group_by_topic(list(partitions)).items()
    )


def _tuple(replicas: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if replicas is None else tuple(replicas)


def _timeout(cluster: Cluster, deadline_ms: float) -> int:
    return max(1, int(deadline_ms - cluster.now_ms()))
