"""RecordTimes, logbus API 10001: return the timestamp of the first record at or after an offset.

With a group's committed offset, a client computes the age of the oldest unread record. The offset
index locates the batch. The batch is decoded only if the offset lies inside it. The search
ends at the last stable offset, as lag in records does, and skips markers and aborted records.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import LogbusError, wire_code
from broker_lite.model import NO_OFFSET, NO_TIMESTAMP
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.offsets import RecordTimesResponse, TimeAnswer, TimePartition


async def handle(
    parts: BrokerContext, request: RequestContext, message: Any
) -> RecordTimesResponse:
    """Answer each partition, in the request's order."""
    return RecordTimesResponse(
        tuple([await _answer(parts, request, row) for row in message.partitions])
    )


async def _answer(parts: BrokerContext, request: RequestContext, row: TimePartition) -> TimeAnswer:
    try:
        request.access.check_topic_id(row.topic_id, parts.registry.snapshot.topics_by_id)
        replica = parts.replicas.find_by_id(row.topic_id, row.partition)
        replica.check_leader()
        log, end = replica.log, replica.last_stable_offset
        if row.offset >= end:
            return TimeAnswer(0, NO_OFFSET, NO_TIMESTAMP)
        found = await parts.disk.run_read(lambda: log.first_at(row.offset, end))
    except LogbusError as error:
        return TimeAnswer(wire_code(error), NO_OFFSET, NO_TIMESTAMP)
    if found is None:
        return TimeAnswer(0, NO_OFFSET, NO_TIMESTAMP)
    return TimeAnswer(0, found.offset, found.timestamp_ms)
