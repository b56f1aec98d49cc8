"""Handle OffsetsForBytes, logbus API 10000: return the end offset of a range with a given size.

The request names the range's first offset and its maximum size in stored bytes. Spark's planning
thus divides a log into ranges of similar size. The answer comes from the sparse offset index. End
offsets are boundaries of batches, at most the high watermark or, with read_committed, the last
stable offset. A range has at least one batch, unless no batch follows its first offset.

The answer also has the latest offset, as from ListOffsets, so that one request plans a whole log;
clients of earlier logbus versions do not get it. For the offset of a batch with a corrupt header,
the answer is the next readable offset, at which consumers continue. If the disk fails a read, the
answer is KAFKA_STORAGE_ERROR, and leadership moves to another in-sync replica."""

from __future__ import annotations

from functools import partial
from typing import Any

from broker_lite.errors import LogbusError, OffsetOutOfRangeError, wire_code
from broker_lite.model import EARLIEST_TIMESTAMP, NO_OFFSET
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.log_lookups import LogLookup, look_up
from broker_lite.server.network.context import RequestContext
from broker_lite.storage.reader import LogReader
from broker_lite.wire.calls.offsets import BytesAnswer, BytesPartition, OffsetsForBytesResponse
from broker_lite.wire.fetch import READ_COMMITTED


async def handle(
    parts: BrokerContext, request: RequestContext, message: Any
) -> OffsetsForBytesResponse:
    """Return the end offset of each requested range of bytes, in the order of the request."""
    level = message.isolation_level
    rows = [_find(parts, request, row, level) for row in message.partitions]
    answers = await look_up(parts.disk, rows, request.spent)
    return OffsetsForBytesResponse(
        tuple(_refusal(each) if isinstance(each, LogbusError) else each for each in answers),
        level is not None,
    )


def _find(
    parts: BrokerContext, request: RequestContext, row: BytesPartition, level: int | None
) -> BytesAnswer | LogLookup[BytesAnswer]:
    """Return, for a requested partition, the lookup in the offset index that a read thread carries
    out; or an answer, such as an error, if no lookup is needed."""
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
    return LogLookup(replica, partial(_range_from, log.reader, start, row.max_bytes, end))


def _refusal(error: LogbusError) -> BytesAnswer:
    return BytesAnswer(wire_code(error), NO_OFFSET, 0)


def _range_from(reader: LogReader, start: int, max_bytes: int, end: int) -> BytesAnswer:
    """Return the end of the range that begins at offset ``start``, has at most ``max_bytes``, and
    ends at offset ``end`` at the latest.

    If the batch at ``start`` is corrupt, the range has 0 bytes and ends at the next readable
    offset, or at ``end`` if that is lower."""
    reach, size_bytes = reader.offset_for_bytes(start, max_bytes, end)
    readable = reader.next_readable(start)
    if readable != start:
        reach, size_bytes = min(readable, end), 0
    return BytesAnswer(0, reach, size_bytes, start, end)
