"""Executor only: offset ranges to Arrow batches with exactly the schema that Spark expects.

Stateless but for the process's connection pool and cached constant columns. Batches of the log are
passed on as they are stored; only small ones are put together. Records that are gone are an error,
or, under failOnDataLoss=false, skipped, logged and counted. Runs on the worker's main thread; the
client fetches ahead on one of its own.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from broker_lite.client.administration.admin import Admin
from broker_lite.client.consuming.fetcher import FetchedBatch, read_range
from broker_lite.client.consuming.first_answers import RangeStart, fetch_first_answers
from broker_lite.client.received import offsets_of, timestamps_of
from broker_lite.client.transport.blocking import shared_pool
from broker_lite.errors import (
    CorruptMessageError,
    DataLossError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import EARLIEST_TIMESTAMP, NO_TIMESTAMP, TopicPartition
from broker_lite.record.arrays import bitmap, fixed, lengths_of
from broker_lite.wire.fetch import FetchedPartition
from pyspark_logbus.offset_ranges import CURE, OffsetRange
from pyspark_logbus.read_task import ReadPlan

log = logging.getLogger("pyspark_logbus")

SMALL_ROWS = 1_000
"""Batches with fewer rows are put together: each costs Spark about as much as a thousand rows."""
SMALL_RANGE_BYTES = 256 << 10
"""Ranges up to this size are fetched many at once; larger ones may be read out of files."""
JOINED_ROWS = 10_000
JOINED_BYTES = 4 << 20
"""Of decoded rows: what the log stores may be a thousand times smaller."""
ROWS_MAX = 1 << 16
"""Of a batch for Spark. The log's may hold millions of rows in a few bytes; with their topic's name
beside each they would be more than the 2 GiB that a column of Arrow's addresses."""
ROW_BYTES = 48
"""Of a row's topic, partition, offset and times, with the offsets of its other columns."""
OFFSET_MAX = (1 << 63) - 1
MILLIS_MAX = OFFSET_MAX // 1000

PLANNED_ONCE = (
    "A DataFrame or temporary view keeps the offsets of its first action: load() it again to read "
    "the records that the topic holds now"
)
"""Spark plans the partitions of a Python source once for each load(), whatever the source does."""

TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass
class Skipped:
    """What this worker process went past under failOnDataLoss=false."""

    records: int = 0
    ranges: int = 0

    def add(self, where: TopicPartition, first: int, end: int, reason: str) -> None:
        """Count and say it: there is no other way from an executor to the driver."""
        self.ranges += 1
        self.records += max(0, end - first)
        log.warning(
            "[LOGBUS_DATA_LOSS] skipped %s [%d, %d): %s (%d records in %d ranges so far)",
            where, first, end, reason, self.records, self.ranges,
        )  # fmt: skip


skipped = Skipped()


def read_ranges(ranges: Iterable[OffsetRange], plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """The ranges' rows. Raises DataLossError where rows are gone and must not be."""
    schema = to_arrow_schema(plan.schema, timezone="UTC")
    builders = [_BUILDERS[name] for name in schema.names]

    def build(item: OffsetRange, rows: FetchedBatch) -> pa.RecordBatch:
        arrays = [builder(item, rows) for builder in builders]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return _resize(
        (build(item, part), _size(part))
        for item, first in _with_first_answers(ranges, plan)
        for rows in _fetch(item, plan, first)
        for part in _parts(rows)
    )


def _size(rows: FetchedBatch) -> int:
    """About the bytes of rows as Spark gets them, at least those of their keys, values and headers.
    ``RecordBatch.nbytes`` takes longer than to read a small batch."""
    columns = rows.columns
    size = ROW_BYTES * rows.row_count
    for column in (columns.key, columns.value, columns.headers):
        if column is not None:
            size += sum(buffer.size for buffer in column.buffers() if buffer is not None)
    return size


def _with_first_answers(
    ranges: Iterable[OffsetRange], plan: ReadPlan
) -> Iterator[tuple[OffsetRange, FetchedPartition | None]]:
    """The ranges in their order, small ones with an answer that was fetched for many at once."""
    left = deque(ranges)
    while left:
        group = [left.popleft()]
        size, names = group[0].stored_bytes, {_name(group[0])}
        while (
            left
            and _is_small(group[0])
            and _is_small(left[0])
            and _name(left[0]) not in names
            and size + left[0].stored_bytes <= plan.fetch_bytes
        ):
            group.append(left.popleft())
            size += group[-1].stored_bytes
            names.add(_name(group[-1]))
        answers = _first_answers(group, plan) if len(group) > 1 else {}
        for item in group:
            yield item, answers.pop(_name(item), None)


def _is_small(item: OffsetRange) -> bool:
    return 0 <= item.stored_bytes <= SMALL_RANGE_BYTES and item.leader is not None


def _name(item: OffsetRange) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)


def _first_answers(
    group: Iterable[OffsetRange], plan: ReadPlan
) -> dict[TopicPartition, FetchedPartition]:
    return fetch_first_answers(
        [
            RangeStart(_name(item), item.topic_id, item.leader_epoch, item.leader, item.start)
            for item in group
            if item.leader is not None
        ],
        pool=shared_pool(plan.client_id),
        fetch_bytes=plan.fetch_bytes,
        isolation=plan.isolation,
        request_timeout_ms=plan.request_timeout_ms,
    )


def _parts(rows: FetchedBatch) -> Iterator[FetchedBatch]:
    """The rows again, at most ROWS_MAX at a time, without a copy."""
    if rows.row_count <= ROWS_MAX:
        yield rows
        return
    for at in range(0, rows.row_count, ROWS_MAX):
        count = min(ROWS_MAX, rows.row_count - at)
        yield rows._replace(first_row=rows.first_row + at, row_count=count)


def _fetch(
    item: OffsetRange, plan: ReadPlan, first: FetchedPartition | None
) -> Iterator[FetchedBatch]:
    where = _name(item)
    start = item.start
    on_corrupt = "fail" if plan.fail_on_data_loss else "skip"
    while start < item.end:
        try:
            if start == item.start and 0 <= item.start_epoch < item.leader_epoch:
                _check_continuity(where, item, plan)
            answer, first = first, None
            for rows in _range(where, item, start, plan, on_corrupt=on_corrupt, first=answer):
                if 0 <= item.end_epoch < rows.header.leader_epoch:
                    reason = _rewritten(rows, f"offset {start}", item.end_epoch)
                    _lose(where, start, item.end, reason, plan)
                    item = item._replace(end_epoch=-1)
                yield rows
                start = min(item.end, rows.header.next_offset)
            return
        except OffsetOutOfRangeError as error:
            start = _clip(where, item._replace(start=start), plan, error)
        except (UnknownTopicIdError, UnknownTopicOrPartitionError) as error:
            _lose(where, start, item.end, error.message, plan)
            return
        except CorruptMessageError as error:
            raise type(error)(
                f"{error.message}; to go past it, set failOnDataLoss=false"
            ) from error


def _check_continuity(where: TopicPartition, item: OffsetRange, plan: ReadPlan) -> None:
    """After a change of leaders: is the record before the range the one that was there before?

    A log that lost its tail and has grown again beyond the checkpoint looks whole otherwise. The
    record itself was read by an earlier batch: that it has aged out or is damaged by now is no
    loss of this range's, and leaves nothing to compare.
    """
    if item.start == 0:
        return
    before = item._replace(end=item.start)
    rewritten: FetchedBatch | None = None
    with contextlib.suppress(OffsetOutOfRangeError, CorruptMessageError):
        for rows in _range(where, before, item.start - 1, plan, on_corrupt="fail"):
            if rows.header.leader_epoch > item.start_epoch:
                rewritten = rows
    if rewritten is not None:
        reason = _rewritten(rewritten, "the record before", item.start_epoch)
        _lose(where, max(0, rewritten.header.base_offset), item.start, reason, plan)


def _rewritten(rows: FetchedBatch, what: str, epoch: int) -> str:
    """Why rows are not those that were there: the log that held them was cut, and has grown."""
    return (
        f"the log was cut and written anew: {what} has leader epoch {rows.header.leader_epoch}, "
        f"at most {epoch} when its end was known"
    )


def _range(
    where: TopicPartition,
    item: OffsetRange,
    start: int,
    plan: ReadPlan,
    *,
    on_corrupt: str,
    first: FetchedPartition | None = None,
) -> Iterator[FetchedBatch]:
    return read_range(
        where,
        item.topic_id,
        item.leader_epoch,
        start,
        item.end,
        bootstrap=plan.bootstrap_servers,
        leader=item.leader,
        fetch_bytes=plan.fetch_bytes,
        isolation=plan.isolation,
        on_corrupt=on_corrupt,
        timeout_ms=plan.poll_timeout_ms,
        request_timeout_ms=plan.request_timeout_ms,
        pool=shared_pool(plan.client_id),
        local_reads=plan.local_reads,
        reads_once=plan.reads_once,
        first_answer=first,
        on_skipped=lambda at, first, end: skipped.add(at, first, end, "corrupt batch"),
    )


def _clip(
    where: TopicPartition, item: OffsetRange, plan: ReadPlan, error: OffsetOutOfRangeError
) -> int:
    """Where the range's rows begin now; all of them may be gone, or the log may end before."""
    admin = Admin(
        plan.bootstrap_servers,
        client_id=plan.client_id,
        timeout_ms=plan.request_timeout_ms,
        pool=shared_pool(plan.client_id),
    )
    end = item.end
    with contextlib.suppress(UnknownTopicOrPartitionError):  # then it is deleted by now
        earliest = admin.list_offsets({where: EARLIEST_TIMESTAMP})[where].offset
        end = min(item.end, earliest) if earliest > item.start else item.end
    _lose(where, item.start, end, error.message, plan)
    return end


def _lose(where: TopicPartition, first: int, end: int, reason: str, plan: ReadPlan) -> None:
    if plan.fail_on_data_loss:
        again = "" if plan.reads_once else f". {PLANNED_ONCE}"
        raise DataLossError(
            f"cannot fetch records in {where} [{first}, {end}): {reason}. {CURE}{again}"
        )
    skipped.add(where, first, end, reason)


Builder = Callable[[OffsetRange, FetchedBatch], pa.Array]


def _key(_: OffsetRange, rows: FetchedBatch) -> pa.Array:
    return _binary(rows.columns.key, rows)


def _value(_: OffsetRange, rows: FetchedBatch) -> pa.Array:
    return _binary(rows.columns.value, rows)


def _binary(column: pa.Array | None, rows: FetchedBatch) -> pa.Array:
    if column is None:
        return _constant(None, pa.binary(), rows.row_count)
    return column.slice(rows.first_row, rows.row_count)


def _topic(item: OffsetRange, rows: FetchedBatch) -> pa.Array:
    return _constant(item.topic, pa.string(), rows.row_count)


def _partition(item: OffsetRange, rows: FetchedBatch) -> pa.Array:
    return _constant(item.partition, pa.int32(), rows.row_count)


def _offset(_: OffsetRange, rows: FetchedBatch) -> pa.Array:
    if rows.columns.offset_deltas is None:
        return _counting.slice(rows.header.base_offset + rows.first_row, rows.row_count)
    return fixed(offsets_of(rows), pa.int64())


def _timestamp(item: OffsetRange, rows: FetchedBatch) -> pa.Array:
    header = rows.header
    if header.is_log_append_time or rows.columns.timestamp is None:
        stamp = header.max_timestamp if header.is_log_append_time else header.constant_timestamp
        _check_millis(item, header.base_offset, stamp)
        if stamp == NO_TIMESTAMP:
            return _constant(None, TIMESTAMP, rows.row_count)
        return fixed(np.full(rows.row_count, stamp * 1000, np.int64), TIMESTAMP)
    millis = timestamps_of(rows)
    low, high = int(millis.min()), int(millis.max())
    if low < -MILLIS_MAX or high > MILLIS_MAX:
        _check_millis(item, header.base_offset, low if low < -MILLIS_MAX else high)
    micros = millis * 1000
    if low >= 0:
        return fixed(micros, TIMESTAMP)
    is_known = bitmap(millis != NO_TIMESTAMP)
    return pa.Array.from_buffers(TIMESTAMP, len(micros), [is_known, pa.py_buffer(micros)])


def _check_millis(item: OffsetRange, offset: int, millis: int) -> None:
    if abs(millis) > MILLIS_MAX:
        raise InvalidRecordError(
            f"topic {item.topic!r} partition {item.partition}, batch at offset {offset}: the "
            f"timestamp {millis} ms does not fit Spark's microseconds"
        )


def _timestamp_type(_: OffsetRange, rows: FetchedBatch) -> pa.Array:
    return _constant(int(rows.header.is_log_append_time), pa.int32(), rows.row_count)


def _headers(_: OffsetRange, rows: FetchedBatch) -> pa.Array:
    column = rows.columns.headers
    if column is None:
        return _constant(None, _HEADERS, rows.row_count)
    part = column.slice(rows.first_row, rows.row_count)
    is_empty = lengths_of(part, -1) == 0
    if is_empty.any():
        # Spark's Kafka source has null, not an empty array, for a record without headers.
        mask = pa.Array.from_buffers(pa.bool_(), len(part), [None, bitmap(is_empty)])
        part = pc.if_else(mask, pa.nulls(len(part), part.type), part)
    return part


_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_BUILDERS: dict[str, Builder] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
}

_CONSTANTS_MAX = 64
"""Of at most ROWS_MAX rows each: a megabyte or two for a topic's name."""
_constants: dict[tuple[object, int], pa.Array] = {}
_slices: dict[tuple[object, int], pa.Array] = {}
"""The last slice of each: batches are mostly of one size."""


def _constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """``count`` times the same value: a slice of a column made once in this process."""
    key = (value, kind.id)  # a type's own hash is that of its text
    part = _slices.get(key)
    if part is not None and len(part) == count:
        return part
    column = _constants.get(key)
    if column is None or len(column) < count:
        size = 1 << max(12, (count - 1).bit_length())
        column = _repeat(value, kind, size)
        if len(_constants) >= _CONSTANTS_MAX:
            _constants.clear()
            _slices.clear()
        _constants[key] = column
    part = _slices[key] = column.slice(0, count)
    return part


class _Counting:
    """Offsets one after the other: slices of a stretch of them, made anew where it ends."""

    def __init__(self) -> None:
        # Replaced as one, so that tasks on several threads do not see halves of two.
        self._stretch = (0, fixed(np.zeros(0, np.int64), pa.int64()))

    def slice(self, first: int, count: int) -> pa.Array:
        """``count`` offsets from ``first`` on."""
        base, column = self._stretch
        if first < base or first + count > base + len(column):
            size = max(count, min(_STRETCH, OFFSET_MAX - first))
            numbers = np.arange(first, first + size, dtype=np.int64)
            base, column = self._stretch = first, fixed(numbers, pa.int64())
        return column.slice(first - base, count)


_STRETCH = 1 << 15
"""A quarter of a megabyte of offsets."""
_counting = _Counting()


def _repeat(value: object, kind: pa.DataType, size: int) -> pa.Array:
    if value is None:
        return pa.nulls(size, kind)
    if isinstance(value, int):
        return fixed(np.full(size, value, kind.to_pandas_dtype()), kind)
    text = str(value).encode("utf-8")
    offsets = np.arange(0, (size + 1) * len(text), len(text), dtype=np.int32)
    return pa.Array.from_buffers(
        kind, size, [None, pa.py_buffer(offsets), pa.py_buffer(text * size)], null_count=0
    )


def _resize(batches: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    """Put small batches together, by their rows and decoded bytes; rows stay in order.

    Each batch comes with its bytes.

    What is put together is under twice JOINED_BYTES, however well it was compressed in the log.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch, batch_bytes in batches:
        is_small = batch.num_rows < SMALL_ROWS and batch_bytes < JOINED_BYTES
        if is_small:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch_bytes
        if waiting and (not is_small or rows >= JOINED_ROWS or size >= JOINED_BYTES):
            yield from _join(waiting)
            waiting, rows, size = [], 0, 0
        if not is_small:
            yield batch
    yield from _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch of all, or as many as Arrow's 2 GiB of a column ask for."""
    if len(batches) < 2:
        return batches
    whole: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole
