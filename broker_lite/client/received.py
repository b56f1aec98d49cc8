"""What a fetch brought: cut into batches, checked, decoded. Nothing unchecked leaves this module.

``cut`` walks headers only and is cheap; ``decode`` checks the CRC and gives Arrow columns over the
received memory; ``records`` makes Python records of columns. No I/O; any thread.
"""

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
from broker_lite.record.batch import BatchHeader, check_crc, read_header
from broker_lite.record.format import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    HEADER_BYTES,
    MAGIC_ROWS,
)

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record. ``timestamp_ms`` is -1 if unknown; ``key`` and ``value`` may be None."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class RawBatch(NamedTuple):
    """A batch as received: its header and exactly its bytes, CRC not yet checked."""

    header: BatchHeader
    buffer: memoryview


class Cut(NamedTuple):
    """Batches in offset order, where to go on, and what stopped the walk, if anything did.

    ``damage`` is about the bytes at ``next_offset``: what follows them in this answer is unknown.
    """

    batches: list[RawBatch]
    next_offset: int
    damage: CorruptMessageError | None


NOTHING = Cut([], NO_OFFSET, None)


class Slice(NamedTuple):
    """Decoded rows of one batch: those from ``first_row`` on, ``row_count`` of them, count."""

    header: BatchHeader
    columns: Columns
    first_row: int
    row_count: int


def cut(
    records: memoryview,
    where: TopicPartition,
    offset: int,
    leader_epoch: int,
    *,
    at_boundary: bool = False,
    after_epoch: int = NO_EPOCH,
) -> Cut:
    """The whole batches of one partition's answer to a fetch from ``offset``.

    The first 21 bytes of a batch are outside its CRC, so what they say is checked against what is
    known: each batch begins where the one before ended (the first holds ``offset``, or begins with
    it ``at_boundary``), and epochs do not go back (from ``after_epoch`` on, that of the batch
    before) or beyond the leader's (-1: not known).
    """
    batches: list[RawBatch] = []
    position, end, epoch = 0, len(records), max(after_epoch, 0)
    while end - position >= HEADER_BYTES:
        try:
            header = read_header(records, position)
        except CorruptMessageError as error:
            return Cut(batches, offset, damaged(where, offset, error.message))
        stop = position + header.size_bytes
        if stop > end:
            break
        reason = ""
        base = header.base_offset
        if base != offset and (at_boundary or not base < offset < header.next_offset):
            reason = f"offsets {base} to {header.last_offset} do not continue"
        elif header.leader_epoch < epoch or header.leader_epoch > leader_epoch >= 0:
            reason = f"leader epoch {header.leader_epoch} is out of place"
        if reason:
            return Cut(batches, offset, damaged(where, offset, reason))
        batches.append(RawBatch(header, records[position:stop]))
        position, offset, epoch = stop, header.next_offset, header.leader_epoch
        at_boundary = True
    if not batches and end:
        return Cut(batches, offset, damaged(where, offset, f"{end} bytes hold no whole batch"))
    return Cut(batches, offset, None)


class LogTruncatedError(OffsetOutOfRangeError):
    """Carries where reading can go on: what was read from ``offset`` on is not in the log now.
    ``epoch``: of what was read before that (-1: not known)."""

    def __init__(self, message: str = "", offset: int = NO_OFFSET, epoch: int = NO_EPOCH) -> None:
        super().__init__(message)
        self.offset = offset
        self.epoch = epoch


def damaged(where: TopicPartition, offset: int, reason: str) -> CorruptMessageError:
    """The error that tells a reader where the log is damaged."""
    return CorruptMessageError(
        f"topic {where.topic!r} partition {where.partition} offset {offset}: {reason}"
    )


def decode(batch: RawBatch, where: TopicPartition, start: int, end: int | None) -> Slice | None:
    """The rows of a batch within ``[start, end)``; None if there are none.

    Raises CorruptMessageError, naming partition and offset, unless CRC and structure are right.
    """
    header = batch.header
    try:
        check_crc(batch.buffer, header)
        if header.is_control:
            return None
        if header.is_columns:
            columns = arrow.decode(batch.buffer, header)
        else:
            columns = transcode.rows_to_columns(batch.buffer, header)
    except CorruptMessageError as error:
        raise damaged(where, max(start, header.base_offset), error.message) from error
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
"""Batches of rows with fewer records are decoded together: each costs as much as so many rows."""


def joinable(items: Sequence[Item], at: int) -> int:
    """How many batches, from that one on, ``decode_joined`` may take together; 0 or 1: none."""
    epoch = NO_EPOCH
    for count, item in enumerate(items[at:]):
        if isinstance(item, Skipped):
            return count
        header = item.header
        if (
            header.magic != MAGIC_ROWS
            or header.attributes & _SPECIAL
            or not 0 < header.record_count < SMALL_ROWS
            or (count and header.leader_epoch != epoch)
        ):
            return count
        epoch = header.leader_epoch
    return len(items) - at


_SPECIAL = ATTRIBUTE_CONTROL | ATTRIBUTE_LOG_APPEND_TIME


def decode_joined(batches: Sequence[Any], start: int, end: int | None) -> tuple[Slice | None, int]:
    """The rows of the first of these batches within ``[start, end)``, as if they were one batch,
    and how many batches that was; all of them must be ``joinable``.

    Raises CorruptMessageError where CRC or structure of any is wrong: ``decode`` then tells which.
    """
    for header, buffer in batches:
        check_crc(buffer, header)
    columns, whole, count = transcode.join_rows([(buffer, header) for header, buffer in batches])
    return _within(whole, columns, start, end), count


class Skipped(NamedTuple):
    """Offsets without rows: ``damage`` says what is wrong there, or no header can be made of it."""

    first_offset: int
    next_offset: int
    damage: CorruptMessageError | None = None


Item = RawBatch | Skipped


def decode_all(
    chunks: Iterable[list[Item]], where: TopicPartition, start: int, end: int
) -> Iterator[Slice | Skipped]:
    """The rows of batches within ``[start, end)``, small batches of rows many at a time, and what
    has none because it is damaged."""
    for items in chunks:
        at = alone_before = 0
        while at < len(items):
            item = items[at]
            if isinstance(item, Skipped):
                at += 1
                yield item
                continue
            together = joinable(items, at) if at >= alone_before else 0
            try:
                if together > 1:
                    found, count = decode_joined(items[at : at + together], start, end)
                    at += count
                else:
                    at += 1
                    found = decode(item, where, start, end)
            except CorruptMessageError as error:
                if together > 1:
                    alone_before = at + together
                else:
                    yield Skipped(item.header.base_offset, item.header.next_offset, error)
                continue
            if found is not None:
                yield found


def offsets_of(rows: Slice) -> npt.NDArray[np.int64]:
    """The offset of each row."""
    base, first = rows.header.base_offset, rows.first_row
    deltas = rows.columns.offset_deltas
    if deltas is None:
        return np.arange(base + first, base + first + rows.row_count, dtype=np.int64)
    return base + deltas[first : first + rows.row_count].astype(np.int64)


def timestamps_of(rows: Slice) -> npt.NDArray[np.int64]:
    """The time of each row in ms, -1 where unknown."""
    column = rows.columns.timestamp
    if column is None:
        return np.full(rows.row_count, rows.header.constant_timestamp, np.int64)
    return numpy_of(column.slice(rows.first_row, rows.row_count), np.int64)


def _python(column: pa.Array | None, rows: Slice) -> Iterator[bytes | None]:
    part = None if column is None else column.slice(rows.first_row, rows.row_count)
    return python_of(part, rows.row_count)


_make_record = partial(tuple.__new__, Record)


def each_record(where: TopicPartition, rows: Slice) -> Iterator[Record]:
    """The rows as Python records, each made when it is asked for; 0.2 µs each without headers."""
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
            repeat(where.topic),
            repeat(where.partition),
            offsets,
            times,
            _python(rows.columns.key, rows),
            _python(rows.columns.value, rows),
            headers,
        ),
    )


def records(where: TopicPartition, rows: Slice) -> list[Record]:
    """The rows as Python records."""
    return list(each_record(where, rows))
