"""Look up records of a log by timestamp or by offset.

The lookups may read and decode batches. Call them on any thread but that of the event loop."""

from __future__ import annotations

from broker_lite.errors import CorruptMessageError
from broker_lite.model import NO_TIMESTAMP, ListedOffset
from broker_lite.record.walker import LogBatch
from broker_lite.storage.reader import LogReader, locating, translated
from broker_lite.storage.scan import CorruptRange, read_batch
from broker_lite.storage.segment import Segment

TIMESTAMP_MIN = -(1 << 63)
SKIPPED_BATCHES_MAX = 1000
"""Maximum number of batches without a visible record (empty or aborted) that ``first_at`` skips.

Each takes about 30 µs."""


@translated
def offset_for_timestamp(
    reader: LogReader, timestamp: int, end: int, damage: list[CorruptRange]
) -> ListedOffset | None:
    """Return the first record at or after ``timestamp`` and below ``end``, or None.

    Skips corrupt ranges, and appends them to ``damage``."""
    end = min(end, reader.tail[0])
    for segment in reader.chain[1]:
        if segment.max_timestamp < timestamp or segment.base_offset >= end:
            continue
        start = max(segment.times.start_for(timestamp), reader.log_start_offset)
        with locating(reader, start):
            for item in reader.checked_batches(start, min(end, segment.next_offset)):
                if isinstance(item, CorruptRange):
                    damage.append(item)
                    continue
                batch = item[1]
                if batch.header.max_timestamp >= timestamp and not batch.is_void:
                    listed = _first_in_batch(reader, segment, batch, timestamp)
                    if listed is not None:
                        return listed if listed.offset < end else None
    return None


@translated
def offset_for_max_timestamp(
    reader: LogReader, end: int, damage: list[CorruptRange]
) -> ListedOffset | None:
    """Return the first record below ``end`` with the maximum timestamp; None for an empty log.

    Skips corrupt ranges, and appends them to ``damage``."""
    start, end = reader.log_start_offset, min(end, reader.tail[0])
    if end <= start:
        return None
    newest = NO_TIMESTAMP
    partly = []
    for segment in reader.chain[1]:
        if start <= segment.base_offset and segment.next_offset <= end:
            newest = max(newest, segment.max_timestamp)
        elif segment.base_offset < end:
            partly.append(segment)
    for segment in partly:
        if segment.max_timestamp > newest:
            newest = max(newest, _newest_time(reader, segment, start, end))
    return offset_for_timestamp(reader, newest, end, damage)


def _newest_time(reader: LogReader, segment: Segment, start: int, end: int) -> int:
    """Return the newest timestamp of a segment's records with offsets in [start, end), or -1."""
    newest, first = NO_TIMESTAMP, max(start, segment.base_offset)
    with locating(reader, first):
        for batch in reader.headers(segment, first, end):
            time_ms, header = batch.header.max_timestamp, batch.header
            if header.is_control:
                continue
            is_cut = header.base_offset < start and not header.is_log_append_time
            if is_cut and time_ms > newest:
                time_ms = _newest_in_batch(segment, batch, start)
            newest = max(newest, time_ms)
    return newest


def _newest_in_batch(segment: Segment, batch: LogBatch, first: int) -> int:
    whole = read_batch(segment.file, batch.position, segment.size_bytes)
    if whole is None:
        return NO_TIMESTAMP
    # Import here: row_times loads pyarrow and numpy, which only lookups by time need.
    from broker_lite.record.row_times import newest_row

    try:
        return newest_row(whole[1], batch.header, first)
    except CorruptMessageError:
        return batch.header.max_timestamp


@translated
def first_at(reader: LogReader, offset: int, end: int) -> ListedOffset | None:
    """Return the first record at or after ``offset`` and below ``end``, with its timestamp.

    Skips known damage, and up to ``SKIPPED_BATCHES_MAX`` empty batches and batches of aborted
    transactions."""
    end = min(end, reader.tail[0])
    offset = reader.next_readable(max(offset, reader.log_start_offset))
    skipped = 0
    while offset < end:
        with locating(reader, offset):
            segment, batch = reader.locate(offset)
            header = batch.header
            if skipped < SKIPPED_BATCHES_MAX and _has_no_row(reader, batch):
                skipped += 1
            else:
                if offset <= header.base_offset or header.is_log_append_time:
                    base = max(offset, header.base_offset)
                    return ListedOffset(base, header.constant_timestamp, header.leader_epoch)
                listed = _first_in_batch(reader, segment, batch, first=offset)
                if listed is not None:
                    return listed
        offset = reader.next_readable(header.next_offset)
    return None


def _has_no_row(reader: LogReader, batch: LogBatch) -> bool:
    """Return whether a read_committed reader gets no record from a batch."""
    header = batch.header
    return batch.is_void or (
        header.is_transactional
        and any(
            entry.producer_id == header.producer_id
            for entry in reader.aborted_in(header.base_offset, header.next_offset)
        )
    )


def _first_in_batch(
    reader: LogReader,
    segment: Segment,
    batch: LogBatch,
    timestamp: int = TIMESTAMP_MIN,
    *,
    first: int = 0,
) -> ListedOffset | None:
    """Return a batch's first record with an offset of at least ``first`` and a timestamp of at
    least ``timestamp``, or None."""
    header, position = batch.header, batch.position
    first = max(header.base_offset, reader.log_start_offset, first)
    if header.is_log_append_time:
        return ListedOffset(first, header.max_timestamp, header.leader_epoch)
    whole = read_batch(segment.file, position, segment.size_bytes)
    if whole is None:
        return None
    # Import here: row_times loads pyarrow and numpy, which only lookups by time need.
    from broker_lite.record.row_times import first_row

    try:
        row = first_row(whole[1], header, first, timestamp)
    except CorruptMessageError:
        # The producer sent undecodable records. Return the batch itself: an error here would
        # hide every later batch from lookups. A reader that starts at this batch gets the
        # error.
        row = first, header.max_timestamp
    return None if row is None else ListedOffset(*row, header.leader_epoch)
