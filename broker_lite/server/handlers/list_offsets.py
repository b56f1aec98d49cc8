"""Handle ListOffsets 1-11: return a partition's earliest or latest offset, or one by timestamp.

A timestamp finds the first record at or after it. The latest offset, where a lookup by timestamp
ends too, is the high watermark, or with read_committed the last stable offset. The event loop
answers for the earliest and latest offsets; a read thread looks up timestamps. Storage is not
tiered, so the earliest local offset is the earliest offset.

While a new leader does not know its high watermark, the answer is OFFSET_NOT_AVAILABLE (before
version 5 LEADER_NOT_AVAILABLE): the watermark that it knows could be lower than an offset that the
client has received before. If a lookup finds a corrupt batch and another replica is in sync, the
answer is CORRUPT_MESSAGE, and leadership moves before the client retries. If no other replica is
in sync, the lookup skips the batch. If the disk fails a read of the lookup, the answer is
KAFKA_STORAGE_ERROR, and leadership moves, too."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

from broker_lite.errors import (
    CorruptMessageError,
    InvalidRequestError,
    LeaderNotAvailableError,
    LogbusError,
    OffsetNotAvailableError,
    UnsupportedVersionError,
    wire_code,
)
from broker_lite.model import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_EPOCH,
    NO_OFFSET,
    ListedOffset,
)
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.log_lookups import LogLookup, look_up
from broker_lite.server.network.context import RequestContext
from broker_lite.server.partitions.replica import Replica
from broker_lite.storage.lookups import offset_for_max_timestamp, offset_for_timestamp
from broker_lite.storage.scan import CorruptRange
from broker_lite.wire.fetch import READ_COMMITTED
from broker_lite.wire.tables import ListOffsetsResponse, build

_NOT_AVAILABLE_SINCE = 5
"""The first version of ListOffsets whose clients know OFFSET_NOT_AVAILABLE."""
_SINCE = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""The first version of ListOffsets that allows each special (negative) timestamp."""

_Listed = ListedOffset | LogbusError | None
"""The offset of a partition, or an error; None if no record has a later time."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Look up the offset of each partition. Each partition has its own error in the answer."""
    asked = [(topic.name, row) for topic in message.topics for row in topic.partitions]
    times = Counter((topic, row.partition_index) for topic, row in asked)
    is_committed = request.api_version >= 2 and message.isolation_level == READ_COMMITTED
    found = [
        await _begin(
            parts,
            request,
            topic,
            row,
            is_committed,
            is_repeated=times[topic, row.partition_index] > 1,
        )
        for topic, row in asked
    ]
    lookups: list[_Listed | LogLookup[_Listed]]
    lookups = [each.lookup if isinstance(each, _OffsetLookup) else each for each in found]
    results = await look_up(parts.disk, lookups, request.spent)
    rows = (
        _row(row, _end(each, result) if isinstance(each, _OffsetLookup) else each, request)
        for (_, row), each, result in zip(asked, found, results, strict=True)
    )
    kind = ListOffsetsResponse.ListOffsetsTopicResponse
    return ListOffsetsResponse(
        topics=[
            build(
                kind, name=topic.name, partitions=[*itertools.islice(rows, len(topic.partitions))]
            )
            for topic in message.topics
        ]
    )


class _OffsetLookup(NamedTuple):
    """A lookup by timestamp. ``lookup`` finds the record, or None if there is none, and appends the
    corrupt ranges that it skipped to ``damage``."""

    lookup: LogLookup[_Listed]
    leader_epoch: int
    damage: list[CorruptRange]


async def _begin(
    parts: BrokerContext,
    request: RequestContext,
    topic: str,
    row: Any,
    is_committed: bool,
    *,
    is_repeated: bool,
) -> ListedOffset | LogbusError | _OffsetLookup:
    """Return the offset of one partition, or an error, or the lookup that finds the offset.

    A partition that the request repeats gets INVALID_REQUEST, as in Kafka: one request could
    otherwise start thousands of lookups in one log."""
    is_created = asyncio.Event()
    try:
        request.access.check_topic(topic)
        if is_repeated:
            raise InvalidRequestError(
                f"partition {topic}-{row.partition_index} occurs more than once in the request"
            )
        if parts.replicas.defer(topic, row.partition_index, False, is_created.set):
            await is_created.wait()
        replica = parts.replicas.find(topic, row.partition_index)
        leader_epoch = row.current_leader_epoch if request.api_version >= 4 else NO_EPOCH
        replica.check_leader(leader_epoch)
        return _find(replica, leader_epoch, row.timestamp, request.api_version, is_committed)
    except LogbusError as error:
        return error


def _find(
    replica: Replica, leader_epoch: int, timestamp_ms: int, version: int, is_committed: bool
) -> ListedOffset | _OffsetLookup:
    log = replica.log
    if timestamp_ms < 0 and version < _SINCE.get(timestamp_ms, version + 1):
        raise UnsupportedVersionError(
            f"timestamp {timestamp_ms} is not defined in version {version} of ListOffsets; give a "
            "timestamp of at least 0, -1 (latest) or -2 (earliest)"
        )
    if timestamp_ms == LATEST_TIMESTAMP:
        return ListedOffset(replica.readable_end(is_committed), leader_epoch=replica.leader_epoch)
    if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        start = log.log_start_offset
        return ListedOffset(start, leader_epoch=log.reader.epoch_at(start))
    if timestamp_ms in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        return ListedOffset(NO_OFFSET)
    end = replica.readable_end(is_committed)
    damage: list[CorruptRange] = []
    if timestamp_ms == MAX_TIMESTAMP:
        function = partial(offset_for_max_timestamp, log.reader, end, damage)
    else:
        function = partial(offset_for_timestamp, log.reader, timestamp_ms, end, damage)
    return _OffsetLookup(LogLookup(replica, function), leader_epoch, damage)


def _end(lookup: _OffsetLookup, result: _Listed) -> ListedOffset | LogbusError:
    """Return the answer for a lookup's result, and report damage that the lookup found."""
    replica, damage = lookup.lookup.replica, lookup.damage
    if isinstance(result, LogbusError):
        return result
    if damage and len(replica.isr) > 1:
        error = CorruptMessageError(str(damage[0]))
        replica.report_corruption(damage[0].first_offset, error)
        return error
    try:
        # Check the leadership again, because this replica may have lost it during the lookup.
        replica.check_leader(lookup.leader_epoch)
    except LogbusError as error:
        return error
    return ListedOffset(NO_OFFSET) if result is None else result


def _row(asked: Any, found: ListedOffset | LogbusError, request: RequestContext) -> Any:
    code, listed = 0, ListedOffset(NO_OFFSET)
    if isinstance(found, ListedOffset):
        listed = found
    elif isinstance(found, OffsetNotAvailableError) and request.api_version < _NOT_AVAILABLE_SINCE:
        code = wire_code(LeaderNotAvailableError())
    else:
        code = wire_code(found)
    return build(
        ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse,
        partition_index=asked.partition_index,
        error_code=code,
        timestamp=listed.timestamp_ms,
        offset=listed.offset,
        leader_epoch=listed.leader_epoch,
        old_style_offsets=[],
    )
