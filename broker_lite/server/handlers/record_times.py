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
from typing import Any, NamedTuple

from broker_lite.errors import LogbusError, UnreadableRecordsError, wire_code
from broker_lite.model import NO_OFFSET, NO_TIMESTAMP
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.server.partitions.replica import Replica
from broker_lite.storage.lookups import first_at
from broker_lite.wire.calls.offsets import RecordTimesResponse, TimeAnswer, TimePartition

NONE = TimeAnswer(0, NO_OFFSET, NO_TIMESTAMP)
"""The answer for an offset at or after which there is no committed record."""


class _TimeLookup(NamedTuple):
    """A lookup of the timestamp of the first record whose offset is at least ``offset`` and below
    ``end``."""

    replica: Replica
    offset: int
    end: int


async def handle(
    parts: BrokerContext, request: RequestContext, message: Any
) -> RecordTimesResponse:
    """Return, in request order, the timestamp of the first record at or after each offset."""
    rows: list[TimeAnswer | _TimeLookup] = []
    for _, group in itertools.groupby(
        message.partitions, key=lambda row: (row.topic_id, row.partition)
    ):
        rows += _lookups(parts, request, list(group))
    lookups = [row for row in rows if isinstance(row, _TimeLookup)]
    answers = await parts.disk.run_reads([partial(_first, lookup) for lookup in lookups])
    for lookup, answer in zip(lookups, answers, strict=True):
        if isinstance(answer, UnreadableRecordsError):
            lookup.replica.report_corruption(answer.offset, answer)
    times = (_failed(each) if isinstance(each, LogbusError) else each for each in answers)
    return RecordTimesResponse(
        tuple(next(times) if isinstance(row, _TimeLookup) else row for row in rows)
    )


def _lookups(
    parts: BrokerContext, request: RequestContext, rows: Sequence[TimePartition]
) -> list[TimeAnswer | _TimeLookup]:
    """Return for each requested offset of one partition the lookup of its record; or an answer,
    such as an error, if no lookup is needed."""
    first = rows[0]
    try:
        request.access.check_topic_id(first.topic_id, parts.registry.snapshot.topics_by_id)
        replica = parts.replicas.find_by_id(first.topic_id, first.partition)
        replica.check_leader()
    except LogbusError as error:
        return [_failed(error)] * len(rows)
    end = replica.last_stable_offset
    return [NONE if row.offset >= end else _TimeLookup(replica, row.offset, end) for row in rows]


def _first(lookup: _TimeLookup) -> TimeAnswer:
    listed = first_at(lookup.replica.log.reader, lookup.offset, lookup.end)
    return NONE if listed is None else TimeAnswer(0, listed.offset, listed.timestamp_ms)


def _failed(error: LogbusError) -> TimeAnswer:
    return TimeAnswer(wire_code(error), NO_OFFSET, NO_TIMESTAMP)
