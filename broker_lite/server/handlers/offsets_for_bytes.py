"""Handle OffsetsForBytes, logbus API 10000: given an offset and a number of bytes, return the end
offset of the range that begins there and has at most so many stored bytes.

With this request, Spark planning divides a log into ranges of similar size. The answer comes from
the sparse offset index. End offsets are boundaries of batches, at most the high watermark or, with
read_committed, the last stable offset. A range has at least one batch if there is one.

The answer also has the latest offset, as from ListOffsets, so that one request is enough to plan a
whole log. A client of an earlier version does not ask for the latest offset and gets an answer
without it.

Consumers skip a batch with a damaged header by this request: for the offset of such a batch, the
answer is the next readable offset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.errors import LogbusError, OffsetOutOfRangeError, wire_code
from broker_lite.model import EARLIEST_TIMESTAMP, NO_OFFSET
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.storage.log import Log
from broker_lite.wire.calls.offsets import BytesAnswer, BytesPartition, OffsetsForBytesResponse
from broker_lite.wire.fetch import READ_COMMITTED


async def handle(
    parts: BrokerContext, request: RequestContext, message: Any
) -> OffsetsForBytesResponse:
    """Look up where the requested range of each partition ends. The answer is in the order of the
    request."""
    level = message.isolation_level
    lookups = [_find(parts, request, row, level) for row in message.partitions]
    # One job of a read thread looks up all partitions: starting a job for each would cost more
    # than the lookups themselves.
    answers = await parts.disk.run_read(lambda: [_answer(one) for one in lookups])
    return OffsetsForBytesResponse(tuple(answers), level is not None)


class _Lookup(NamedTuple):
    """A lookup in the offset index: where a range from ``start`` with ``max_bytes`` ends, at most
    at ``end``.
    """

    log: Log
    start: int
    max_bytes: int
    end: int


def _find(
    parts: BrokerContext, request: RequestContext, row: BytesPartition, level: int | None
) -> BytesAnswer | _Lookup:
    """Return the lookup in the offset index for one requested partition, to run on a read thread.
    If no lookup is needed, return the answer."""
    try:
        request.access.check_topic_id(row.topic_id, parts.registry.snapshot.topics_by_id)
        replica = parts.replicas.find_by_id(row.topic_id, row.partition)
        replica.check_leader()
        end = replica.readable_end(level == READ_COMMITTED)
        log, start = replica.log, row.start_offset
        log_start = log.log_start_offset
        if start == EARLIEST_TIMESTAMP and level is not None:
            start = log_start
        if not log_start <= start <= log.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{replica} has no offset {start}; give one from {log_start} to "
                f"{log.log_end_offset}"
            )
    except LogbusError as error:
        return _refusal(error)
    if start >= end:
        return BytesAnswer(0, start, 0, start, end)
    return _Lookup(log, start, row.max_bytes, end)


def _answer(lookup: BytesAnswer | _Lookup) -> BytesAnswer:
    if isinstance(lookup, BytesAnswer):
        return lookup
    try:
        return BytesAnswer(0, *_reach(*lookup), lookup.start, lookup.end)
    except LogbusError as error:
        return _refusal(error)


def _refusal(error: LogbusError) -> BytesAnswer:
    return BytesAnswer(wire_code(error), NO_OFFSET, 0)


def _reach(log: Log, start: int, max_bytes: int, end: int) -> tuple[int, int]:
    """Return the end offset and the number of bytes of the range from ``start``.

    If the batch at ``start`` is damaged, the range ends at the next readable offset, at most at
    ``end``, and has 0 bytes. This tells the reader which offsets to skip.
    """
    reach = log.reader.offset_for_bytes(start, max_bytes, end)
    readable = log.reader.next_readable(start)
    return reach if readable == start else (min(readable, end), 0)
