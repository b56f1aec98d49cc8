"""Handle RecordTimes, logbus API 10001: return the timestamp of the first record at or after an
offset.

With a group's committed offset, a client computes the age of the oldest unread record. The offset
index locates the batch. The handler decodes the batch only if it begins before the offset. The
search skips transaction markers and aborted records, and ends at the last stable offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from broker_lite.errors import LogbusError, wire_code
from broker_lite.model import NO_OFFSET, NO_TIMESTAMP
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.storage.reader import LogReader
from broker_lite.wire.calls.offsets import RecordTimesResponse, TimeAnswer, TimePartition

NONE = TimeAnswer(0, NO_OFFSET, NO_TIMESTAMP)
"""The answer for an offset after which there is no committed record."""


async def handle(
    parts: BrokerContext, request: RequestContext, message: Any
) -> RecordTimesResponse:
    """Look up the offset of each row. The answer has the order of the request."""
    answers: list[TimeAnswer] = []
    for _, rows in itertools.groupby(
        message.partitions, key=lambda row: (row.topic_id, row.partition)
    ):
        answers += await _answers(parts, request, list(rows))
    return RecordTimesResponse(tuple(answers))


async def _answers(
    parts: BrokerContext, request: RequestContext, rows: Sequence[TimePartition]
) -> list[TimeAnswer]:
    """Look up the offsets of one partition in one job of the disk's read threads."""
    first = rows[0]
    try:
        request.access.check_topic_id(first.topic_id, parts.registry.snapshot.topics_by_id)
        replica = parts.replicas.find_by_id(first.topic_id, first.partition)
        replica.check_leader()
    except LogbusError as error:
        return [_failed(error)] * len(rows)
    reader, end = replica.log.reader, replica.last_stable_offset
    if all(row.offset >= end for row in rows):
        return [NONE] * len(rows)
    return await parts.disk.run_read(lambda: [_first(reader, row.offset, end) for row in rows])


def _first(reader: LogReader, offset: int, end: int) -> TimeAnswer:
    try:
        found = None if offset >= end else reader.first_at(offset, end)
    except LogbusError as error:
        return _failed(error)
    return NONE if found is None else TimeAnswer(0, found.offset, found.timestamp_ms)


def _failed(error: LogbusError) -> TimeAnswer:
    return TimeAnswer(wire_code(error), NO_OFFSET, NO_TIMESTAMP)
