"""Handle RecordTimes, logbus API 10001: return the time of the first record from an offset on.

From the timestamp at a group's committed offset, a client computes the age of the oldest unread
record. The offset index locates the batch. The batch is decoded only if it begins before the
offset; else the timestamp of its first record, in its header, is the answer. Transaction markers
and aborted records are skipped; the search ends at the last stable offset. If the disk fails
a read, the answer is KAFKA_STORAGE_ERROR, and leadership moves to another in-sync replica."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from broker_lite.errors import LogbusError, wire_code
from broker_lite.model import NO_OFFSET, NO_TIMESTAMP
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.log_lookups import LogLookup, look_up
from broker_lite.server.network.context import RequestContext
from broker_lite.storage.lookups import first_at
from broker_lite.storage.reader import LogReader
from broker_lite.wire.calls.offsets import RecordTimesResponse, TimeAnswer, TimePartition

NONE = TimeAnswer(0, NO_OFFSET, NO_TIMESTAMP)
"""The answer for an offset at or after which there is no committed record."""


async def handle(
    parts: BrokerContext, request: RequestContext, message: Any
) -> RecordTimesResponse:
    """Return, in request order, the timestamp of the first record at or after each offset."""
    rows: list[TimeAnswer | LogLookup[TimeAnswer]] = []
    for _, group in itertools.groupby(
        message.partitions, key=lambda row: (row.topic_id, row.partition)
    ):
        rows += _lookups(parts, request, list(group))
    answers = await look_up(parts.disk, rows, request.spent)
    return RecordTimesResponse(
        tuple(_failed(each) if isinstance(each, LogbusError) else each for each in answers)
    )


def _lookups(
    parts: BrokerContext, request: RequestContext, rows: Sequence[TimePartition]
) -> list[TimeAnswer | LogLookup[TimeAnswer]]:
    """Return for each requested offset of one partition the lookup of its record; or an answer,
    such as an error, if no lookup is needed."""
    first = rows[0]
    try:
        request.access.check_topic_id(first.topic_id, parts.registry.snapshot.topics_by_id)
        replica = parts.replicas.find_by_id(first.topic_id, first.partition)
        replica.check_leader()
    except LogbusError as error:
        return [_failed(error)] * len(rows)
    reader, end = replica.log.reader, replica.last_stable_offset
    return [
        NONE if row.offset >= end else LogLookup(replica, partial(_first, reader, row.offset, end))
        for row in rows
    ]


def _first(reader: LogReader, offset: int, end: int) -> TimeAnswer:
    listed = first_at(reader, offset, end)
    return NONE if listed is None else TimeAnswer(0, listed.offset, listed.timestamp_ms)


def _failed(error: LogbusError) -> TimeAnswer:
    return TimeAnswer(wire_code(error), NO_OFFSET, NO_TIMESTAMP)
