"""Handle AlterPartitionReassignments 0-1: move partitions to other brokers.

The controller answers when the reassignments are in ZooKeeper; ListPartitionReassignments shows
their progress. A partition without target replicas in the request cancels its reassignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from broker_lite.errors import InvalidRequestError, LogbusError
from broker_lite.model import TopicPartition
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import AlterPartitionReassignmentsResponse as Response
from broker_lite.wire.tables import build, error_fields

_Topic = Response.ReassignableTopicResponse
_Partition = _Topic.ReassignablePartitionResponse

FACTOR_FROM = 1
"""The first version of AlterPartitionReassignments with the field
``allow_replication_factor_change``."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Begin or cancel the reassignments. Each partition has its own error in the answer."""
    may_change = request.api_version < FACTOR_FROM or message.allow_replication_factor_change
    rows = [
        (TopicPartition(topic.name, row.partition_index), row.replicas)
        for topic in message.topics
        for row in topic.partitions
    ]
    times = Counter(tp for tp, _ in rows)
    targets: dict[TopicPartition, Sequence[int] | None] = {
        tp: replicas for tp, replicas in rows if times[tp] == 1
    }
    try:
        work = parts.registry.administration.reassign(targets, may_change_factor=may_change)
        outcomes = await within(message.timeout_ms, work)
    except LogbusError as error:
        return Response(
            allow_replication_factor_change=may_change,
            **error_fields(error),
            responses=[],
        )
    outcomes |= {
        tp: InvalidRequestError(
            f"partition {tp} occurs more than once in the request; name it once"
        )
        for tp, count in times.items()
        if count > 1
    }
    topics: dict[str, list[Any]] = {}
    for tp, outcome in outcomes.items():
        row = build(_Partition, partition_index=tp.partition, **error_fields(outcome))
        topics.setdefault(tp.topic, []).append(row)
    return Response(
        allow_replication_factor_change=may_change,
        **error_fields(None),
        responses=[build(_Topic, name=name, partitions=part) for name, part in topics.items()],
    )
