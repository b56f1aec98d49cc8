"""Offset ranges to Arrow batches in the schema that Spark expects. Executor only.

The module keeps no state but the process's connection pool and cached constant columns. Large
batches pass as they are stored; small ones are joined. Lost records are an error, or, under
failOnDataLoss=false, skipped, logged and counted. Runs on the worker's main thread, while the
client fetches ahead on a thread of its own.
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
from broker_lite.client.discovery import security_for
from broker_lite.client.fetch.first_answers import RangeStart, fetch_first_answers
from broker_lite.client.fetch.range_reader import FetchedBatch, read_range
from broker_lite.client.received import LogTruncatedError, offsets_of, timestamps_of
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
"""Batches with fewer rows are joined: a batch costs Spark about as much as a thousand rows."""
SMALL_RANGE_BYTES = 256 << 10
"""Stored bytes up to which many ranges share one fetch; larger ranges may be read in place."""
JOINED_ROWS = 10_000
JOINED_BYTES = 4 << 20
"""Decoded bytes of joined batches; the log may store a thousandth of them."""
ROWS_MAX = 1 << 16
"""Maximum rows of a batch for Spark. A few bytes of the log can hold millions of rows; with the
topic's name in each row they would exceed the 2 GiB of an Arrow column."""
ROW_BYTES = 48
"""Bytes of a row's topic, partition, offset and times, and the offsets of its other columns."""
OFFSET_MAX = (1 << 63) - 1
MILLIS_MAX = OFFSET_MAX // 1000

PLANNED_ONCE = (
    "A DataFrame or temporary view keeps the offsets of its first action: load() it again to read "
    "the records that the topic holds now"
)
"""Spark plans the partitions of a Python source once for each load()."""

TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass
class SkippedRows:
    """The records that this worker process skipped under failOnDataLoss=false."""

    records: int = 0
    ranges: int = 0

    def add(self, where: TopicPartition, first: int, end: int, reason: str) -> None:
        """Count and log skipped records; an executor has no other way to report them to the
        driver."""
        self.ranges += 1
        self.records += max(0, end - first)
        log.warning(
            "[LOGBUS_DATA_LOSS] skipped %s [%d, %d): %s (%d records in %d ranges so far)",
            where, first, end, reason, self.records, self.ranges,
        )  # fmt: skip


skipped = SkippedRows()


def read_ranges(ranges: Iterable[OffsetRange], plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranges. Raises DataLossError for lost rows unless they may be
    skipped."""
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
    """Estimate the bytes of rows for Spark, from keys, values and headers.
    ``RecordBatch.nbytes`` takes longer than reading a small batch."""
    columns = rows.columns
    size = ROW_BYTES * rows.row_count
    for column in (columns.key, columns.value, columns.headers):
        if column is not None:
            size += sum(buffer.size for buffer in column.buffers() if buffer is not None)
    return size


def _with_first_answers(
    ranges: Iterable[OffsetRange], plan: ReadPlan
) -> Iterator[tuple[OffsetRange, FetchedPartition | None]]:
    """Yield the ranges in order, small ones with the first answer of a shared fetch."""
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
            RangeStart(
                _name(item),
                item.topic_id,
                item.leader_epoch,
                item.leader,
                item.start,
                item.start_epoch,
            )
            for item in group
            if item.leader is not None
        ],
        pool=shared_pool(plan.client_id, security_for(plan.bootstrap_servers)),
        fetch_bytes=plan.fetch_bytes,
        isolation=plan.isolation,
        request_timeout_ms=plan.request_timeout_ms,
    )


def _parts(rows: FetchedBatch) -> Iterator[FetchedBatch]:
    """Split rows into parts of at most ROWS_MAX, without a copy."""
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
    while start < item.end:
        try:
            answer, first = first, None
            for rows in _range(where, item, start, plan, answer):
                if 0 <= item.end_epoch < rows.header.leader_epoch:
                    reason = (
                        f"the log was truncated and written anew: offset {start} has leader epoch "
                        f"{rows.header.leader_epoch}, at most {item.end_epoch} when the range was "
                        "planned"
                    )
                    _lose(where, start, item.end, reason, plan)
                    item = item._replace(end_epoch=-1)
                yield rows
                start = min(item.end, rows.header.next_offset)
            return
        except LogTruncatedError as error:
            _lose(where, min(error.offset, start), start, error.message, plan)
            item = item._replace(start_epoch=-1)
        except OffsetOutOfRangeError as error:
            start = _clip(where, item._replace(start=start), plan, error)
        except (UnknownTopicIdError, UnknownTopicOrPartitionError) as error:
            _lose(where, start, item.end, error.message, plan)
            return
        except CorruptMessageError as error:
            raise type(error)(
                f"{error.message}; to go past it, set failOnDataLoss=false"
            ) from error


def _range(
    where: TopicPartition,
    item: OffsetRange,
    start: int,
    plan: ReadPlan,
    first: FetchedPartition | None,
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
        on_corrupt="fail" if plan.fail_on_data_loss else "skip",
        timeout_ms=plan.poll_timeout_ms,
        request_timeout_ms=plan.request_timeout_ms,
        pool=shared_pool(plan.client_id, security_for(plan.bootstrap_servers)),
        local_reads=plan.local_reads,
        reads_once=plan.reads_once,
        first_answer=first,
        start_epoch=item.start_epoch if start == item.start else -1,
        on_skipped=lambda at, first, end: skipped.add(at, first, end, "corrupt batch"),
    )


def _clip(
    where: TopicPartition, item: OffsetRange, plan: ReadPlan, error: OffsetOutOfRangeError
) -> int:
    """Return where the range's rows begin now; all of them may be lost, or the log may end
    before."""
    admin = Admin(
        plan.bootstrap_servers,
        client_id=plan.client_id,
        timeout_ms=plan.request_timeout_ms,
        pool=shared_pool(plan.client_id, security_for(plan.bootstrap_servers)),
    )
    end = item.end
    with contextlib.suppress(UnknownTopicOrPartitionError):  # the topic is deleted by now
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
    # Not cached: a task of hundreds of small partitions would replace the cached columns.
    return fixed(np.full(rows.row_count, item.partition, np.int32), pa.int32())


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
"""Maximum cached constant columns, each of at most ROWS_MAX rows: a megabyte or two for a topic
name."""
_constants: dict[tuple[object, int], pa.Array] = {}
_slices: dict[tuple[object, int], pa.Array] = {}
"""The last slice of each column: most batches have the same size."""


def _constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with ``count`` equal values: a slice of a column cached in this process."""
    key = (value, kind.id)  # hash by id; a type's own hash is that of its text
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
    """Columns of consecutive offsets: slices of a cached stretch, which is replaced at its end."""

    def __init__(self) -> None:
        # Replaced as one object, so that tasks on several threads never see parts of two.
        self._stretch = (0, fixed(np.zeros(0, np.int64), pa.int64()))

    def slice(self, first: int, count: int) -> pa.Array:
        """Return ``count`` offsets from ``first``."""
        base, column = self._stretch
        if first < base or first + count > base + len(column):
            size = max(count, min(_STRETCH, OFFSET_MAX - first))
            numbers = np.arange(first, first + size, dtype=np.int64)
            base, column = self._stretch = first, fixed(numbers, pa.int64())
        return column.slice(first - base, count)


_STRETCH = 1 << 15
"""Offsets of a stretch: a quarter of a megabyte."""
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
    """Join small batches by rows and decoded bytes, in order.

    Each batch comes with its bytes. A joined batch stays below twice JOINED_BYTES, however well the
    log compressed it.
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
    """Join batches into one, or into several within Arrow's 2 GiB a column."""
    if len(batches) < 2:
        return batches
    whole: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole
