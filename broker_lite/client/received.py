"""Split fetched bytes into batches, check them, and decode them to Arrow columns or records.

``walk`` splits a partition's bytes of a fetch response into whole batches. ``decode`` checks a
batch's CRC and returns Arrow columns that refer to the received bytes, without a copy. ``records``
turns columns into Python records. Only rows of batches with a correct CRC are returned. This
module does no I/O, and any thread may use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_lite.client.arrays import python_of
from broker_lite.errors import CorruptMessageError, OffsetOutOfRangeError
from broker_lite.model import NO_EPOCH, NO_OFFSET, TopicPartition
from broker_lite.record import arrow, transcode
from broker_lite.record.arrays import numpy_of
from broker_lite.record.arrow import Columns
from broker_lite.record.batch import BatchHeader, check_crc
from broker_lite.record.format import MAGIC_ROWS
from broker_lite.record.walker import BadBatch, BatchWalker, LogBatch

Header = tuple[str, bytes | None]

MILLIS_MAX = ((1 << 63) - 1) // 1000
"""The latest timestamp (ms) that a column of microseconds can hold."""


class Record(NamedTuple):
    """One record. ``timestamp_ms`` is in ms since 1970; -1 means none. ``key`` and ``value`` may be
    None."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class WalkResult(NamedTuple):
    """The batches of one partition's fetch response in offset order, and the next offset to fetch.

    Void batches, which a consumer skips, are included: empty, control and aborted ones. If ``walk``
    met corrupt bytes, it stopped at ``next_offset`` with the error ``damage``. ``leader_epoch`` is
    the leader's epoch when it sent the batches (-1: unknown)."""

    batches: list[LogBatch]
    next_offset: int
    damage: CorruptMessageError | None = None
    leader_epoch: int = NO_EPOCH


class Slice(NamedTuple):
    """``row_count`` consecutive rows of a decoded batch, from ``first_row`` of ``columns`` on."""

    header: BatchHeader
    columns: Columns
    first_row: int
    row_count: int


def walk(records: memoryview, walker: BatchWalker, tp: TopicPartition) -> WalkResult:
    """Return the whole batches in a partition's fetched bytes, without decoding their records.

    Bytes without any whole batch count as corrupt."""
    batches: list[LogBatch] = []
    position, damage = walker.position, None
    try:
        for batch in walker.walk(records):
            batches.append(batch)
    except BadBatch as bad:
        damage = damaged(tp, bad.offset, bad.reason)
    if walker.position == position and damage is None and len(records):
        damage = damaged(tp, walker.offset, f"{len(records)} bytes hold no whole batch")
    return WalkResult(batches, walker.offset, damage, walker.policy.leader_epoch)


class LogTruncatedError(OffsetOutOfRangeError):
    """The log was truncated below the reader's position, for example in an unclean election.

    Reading can resume at ``offset``; ``epoch`` is the leader epoch of the record before it (-1:
    unknown)."""

    def __init__(self, message: str = "", offset: int = NO_OFFSET, epoch: int = NO_EPOCH) -> None:
        super().__init__(message)
        self.offset = offset
        self.epoch = epoch


def damaged(tp: TopicPartition, offset: int, reason: str) -> CorruptMessageError:
    """Return a CorruptMessageError that names the partition, the offset and the reason."""
    return CorruptMessageError(
        f"topic {tp.topic!r} partition {tp.partition} offset {offset}: {reason}"
    )


def decode(batch: LogBatch, tp: TopicPartition, start: int, end: int | None) -> Slice | None:
    """Return the rows of a batch with offsets in ``[start, end)``; ``end`` None means no limit.

    Return None if the batch has no such rows, or if it is void: empty, a control batch, or of an
    aborted transaction under ``read_committed``. Raises CorruptMessageError, with partition and
    offset, for a wrong CRC or structure."""
    header = batch.header
    try:
        check_crc(batch.buffer, header)
        if batch.is_void:
            return None
        if header.is_columns:
            columns = arrow.decode(batch.buffer, header)
        else:
            columns = transcode.rows_to_columns(batch.buffer, header)
    except CorruptMessageError as error:
        raise damaged(tp, max(start, header.base_offset), error.message) from error
    return _within(header, columns, start, end)


def _within(header: BatchHeader, columns: Columns, start: int, end: int | None) -> Slice | None:
    base, rows, deltas = header.base_offset, columns.row_count, columns.offset_deltas
    if deltas is None:
        first = max(0, start - base)
        last = rows if end is None else min(rows, end - base)
    else:
        first = int(np.searchsorted(deltas, start - base))
        last = rows if end is None else int(np.searchsorted(deltas, end - base))
    return Slice(header, columns, first, last - first) if last > first else None


SMALL_ROWS = 1000
"""Batches in Kafka's row format with fewer records than this are decoded together.

Decoding one batch, or several together, has a fixed cost: about that of 1,000 records."""


def joinable(items: Sequence[Item], at: int) -> int:
    """Return how many consecutive batches from ``items[at]`` on ``decode_joined`` may decode
    together. If fewer than two, ``decode`` must decode ``items[at]`` alone."""
    epoch = NO_EPOCH
    for count, item in enumerate(items[at:]):
        if isinstance(item, Skipped):
            return count
        header = item.header
        if (
            item.is_void
            or header.magic != MAGIC_ROWS
            or header.is_log_append_time
            or header.record_count >= SMALL_ROWS
            or (count and header.leader_epoch != epoch)
        ):
            return count
        epoch = header.leader_epoch
    return len(items) - at


def decode_joined(batches: Sequence[Any], start: int, end: int | None) -> tuple[Slice | None, int]:
    """Decode small batches in Kafka's row format together, which is faster than one by one.

    Return their rows with offsets in ``[start, end)``, and how many batches were decoded.
    ``joinable`` says how many batches may be passed. Raises CorruptMessageError for a wrong CRC
    or structure in any batch; the caller finds the corrupt batch by decoding each one alone."""
    for batch in batches:
        check_crc(batch.buffer, batch.header)
    bodies = [(batch.buffer, batch.header) for batch in batches]
    columns, whole, count = transcode.join_rows(bodies)
    return _within(whole, columns, start, end), count


class Skipped(NamedTuple):
    """Offsets that the reader skips because their bytes are corrupt.

    ``damage`` is the batch's error, or None if even its header is unreadable."""

    first_offset: int
    next_offset: int
    damage: CorruptMessageError | None = None


Item = LogBatch | Skipped


def decode_all(
    chunks: Iterable[list[Item]], tp: TopicPartition, start: int, end: int
) -> Iterator[Slice | Skipped]:
    """Yield the rows of all batches that have offsets in ``[start, end)``, and for each corrupt
    batch a ``Skipped`` with the offsets to skip.

    It removes the batches from ``end`` on from ``chunks``: a corrupt batch there is no error.
    Small batches in Kafka's row format are decoded together, which is faster than one by one."""
    for items in chunks:
        while items and isinstance(items[-1], LogBatch) and items[-1].header.base_offset >= end:
            items.pop()
        at = alone_before = 0
        while at < len(items):
            item = items[at]
            if isinstance(item, Skipped):
                at += 1
                yield item
                continue
            is_rows = item.header.magic == MAGIC_ROWS
            together = joinable(items, at) if is_rows and at >= alone_before else 0
            try:
                if together > 1:
                    rows, count = decode_joined(items[at : at + together], start, end)
                    at += count
                else:
                    at += 1
                    rows = decode(item, tp, start, end)
            except CorruptMessageError as error:
                if together > 1:
                    alone_before = at + together
                else:
                    yield Skipped(item.header.base_offset, item.header.next_offset, error)
                continue
            if rows is not None:
                yield rows


def offsets_of(rows: Slice) -> npt.NDArray[np.int64]:
    """Return the offset of each row."""
    base, first = rows.header.base_offset, rows.first_row
    deltas = rows.columns.offset_deltas
    if deltas is None:
        return np.arange(base + first, base + first + rows.row_count, dtype=np.int64)
    return base + deltas[first : first + rows.row_count].astype(np.int64)


def timestamps_of(rows: Slice) -> npt.NDArray[np.int64]:
    """Return the timestamp of each row in ms since 1970, or -1 for a row without a timestamp."""
    column = rows.columns.timestamp
    if column is None:
        return np.full(rows.row_count, rows.header.constant_timestamp, np.int64)
    return numpy_of(column.slice(rows.first_row, rows.row_count), np.int64)


def _python(column: pa.Array | None, rows: Slice) -> Iterator[bytes | None]:
    part = None if column is None else column.slice(rows.first_row, rows.row_count)
    return python_of(part, rows.row_count)


_make_record = partial(tuple.__new__, Record)


def each_record(tp: TopicPartition, rows: Slice) -> Iterator[Record]:
    """Yield the rows as Python records, built one by one. A record without headers takes 0.2 µs."""
    headers: Iterator[list[Header]]
    if rows.columns.headers is None:
        headers = map(list, repeat(()))
    else:
        listed = rows.columns.headers.slice(rows.first_row, rows.row_count).to_pylist()
        headers = (
            [(item["key"], item["value"]) for item in each] if each else [] for each in listed
        )
    times: Iterable[int]
    if rows.columns.timestamp is None:
        times = repeat(rows.header.constant_timestamp)
    else:
        times = timestamps_of(rows).tolist()
    offsets: Iterable[int]
    if rows.columns.offset_deltas is None:
        first = rows.header.base_offset + rows.first_row
        offsets = range(first, first + rows.row_count)
    else:
        offsets = offsets_of(rows).tolist()
    return map(
        _make_record,
        zip(
            repeat(tp.topic),
            repeat(tp.partition),
            offsets,
            times,
            _python(rows.columns.key, rows),
            _python(rows.columns.value, rows),
            headers,
        ),
    )


def records(tp: TopicPartition, rows: Slice) -> list[Record]:
    """Return the records of ``rows`` (a part of a batch of the partition ``tp``) as objects."""
    return list(each_record(tp, rows))
