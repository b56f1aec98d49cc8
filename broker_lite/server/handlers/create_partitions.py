"""Handle CreatePartitions 0-3: add partitions to topics. The controller serves the request.

``count`` is the new number of partitions; INVALID_PARTITIONS if it is not larger than the current
one. As in Kafka, records stay in their partitions, while new records of the same key may go to
others."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_lite.errors import InvalidRequestError, LogbusError
from broker_lite.replication.topics import partitions_max
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import CreatePartitionsResponse as Response
from broker_lite.wire.tables import build, error_fields

STRICT_QUOTA_FROM = 3
"""The first version of CreatePartitions whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Add partitions to each topic. Each topic has its own error in the answer."""
    times = Counter(row.name for row in message.topics)
    results = []
    for row in message.topics:
        error: LogbusError | None = None
        if times[row.name] > 1:
            error = InvalidRequestError(
                f"topic {row.name!r} occurs more than once in the request; name it once"
            )
        else:
            error = await _create(parts, request, row, message)
        results.append(
            build(
                Response.CreatePartitionsTopicResult,
                name=row.name,
                **error_fields(error),
            )
        )
    return Response(results=results)


async def _create(
    parts: BrokerContext, request: RequestContext, row: Any, message: Any
) -> LogbusError | None:
    assignment = None
    if row.assignments is not None:
        assignment = [tuple(each.broker_ids) for each in row.assignments]
    charged = 0
    try:
        request.access.check_topic(row.name)
        topic = parts.registry.snapshot.topics.get(row.name)
        if request.quota is not None and topic is not None and not message.validate_only:
            added = max(min(row.count, partitions_max(row.name, 1)) - len(topic.partitions), 0)
            request.quota.mutate(added, is_strict=request.api_version >= STRICT_QUOTA_FROM)
            charged = added
        work = parts.registry.administration.create_partitions(
            row.name, row.count, assignment=assignment, validate_only=message.validate_only
        )
        error = (await within(message.timeout_ms, work)).error
    except LogbusError as raised:
        error = raised
    if request.quota is not None and error is not None:
        request.quota.refund(charged, error)
    return error
