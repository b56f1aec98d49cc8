"""Read offset ranges into Arrow batches with the schema that Spark expects.

A large record batch becomes one Arrow batch. Small record batches are joined. For lost records the
reader raises DataLossError; with failOnDataLoss=false it skips, logs and counts them. The reader
runs in executors, on the worker's main thread, while the client fetches ahead on another thread.
The module's only state is the process's connection pool and a cache of constant columns.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from broker_lite.client.administration.admin import Admin
from broker_lite.client.fetch.range_reader import FetchedBatch, read_range
from broker_lite.client.fetch.small_ranges import SmallRange, read_small_ranges
from broker_lite.client.received import (
    MILLIS_MAX,
    LogTruncatedError,
    offsets_of,
    timestamps_of,
)
from broker_lite.client.transport.blocking import Pool, shared_pool
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
from pyspark_logbus.connection_security import connection_security
from pyspark_logbus.offset_ranges import CURE, OffsetRange
from pyspark_logbus.read_task import ReadPlan

log = logging.getLogger("pyspark_logbus")

SMALL_ROWS = 1_000
"""Batches with fewer rows than this are joined, because Spark spends about as much time on a batch
as on a thousand rows."""
SMALL_RANGE_BYTES = 256 << 10
"""Stored bytes up to which a range shares a fetch with other ranges. A larger range has its own
fetch, or is read from the segment files of a broker on the same machine."""
JOINED_ROWS = 10_000
JOINED_BYTES = 4 << 20
"""Decoded bytes at which a group of batches that become one Arrow batch ends. The bytes in the log
do not count, because compressed batches may be a thousand times smaller."""
ROWS_MAX = 1 << 16
"""Maximum rows of an Arrow batch. A few bytes of the log can hold millions of rows. With the
topic's name in each row, these rows would exceed the 2 GiB of an Arrow column."""
ROW_BYTES = 48
"""Estimated bytes of a row apart from key, value and headers: topic, partition, offset, timestamp
and the Arrow offsets of its other columns."""
OFFSET_MAX = (1 << 63) - 1

PLANNED_ONCE = (
    "A DataFrame or temporary view keeps the offsets of its first action: load() it again to read "
    "the records that the topic holds now"
)
"""A hint in a batch query's error about lost records. Spark plans the partitions of a Python source
once for each load(), so later actions read the same offsets."""

TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass
class SkippedRows:
    """The records that this worker process skipped under failOnDataLoss=false."""

    records: int = 0
    ranges: int = 0

    def add(self, tp: TopicPartition, first: int, end: int, reason: str) -> None:
        """Count and log the skipped records ``first`` to ``end`` (exclusive). An executor has no
        way to report them to the driver except its log."""
        self.ranges += 1
        self.records += max(0, end - first)
        log.warning(
            "[LOGBUS_DATA_LOSS] skipped %s [%d, %d): %s (%d records in %d ranges so far)",
            tp, first, end, reason, self.records, self.ranges,
        )  # fmt: skip


skipped = SkippedRows()


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenPlan(ReadPlan):
    """A ReadPlan with this process's pool of connections. Each task creates its own, because the
    pool's security settings may come from files of the executor's machine."""

    pool: Pool

    @classmethod
    def of(cls, plan: ReadPlan) -> _OpenPlan:
        security = connection_security(plan.bootstrap_servers, plan.security)
        given = {each.name: getattr(plan, each.name) for each in fields(plan)}
        return cls(**given, pool=shared_pool(plan.client_id, security))


def read_ranges(ranges: Iterable[OffsetRange], plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranges, as Arrow batches with Spark's columns.

    Raises DataLossError for lost records and CorruptMessageError for corrupt ones, unless
    failOnDataLoss=false.
    """
    opened = _OpenPlan.of(plan)
    schema = to_arrow_schema(plan.schema, timezone="UTC")
    groups = _resize(
        (item, part)
        for item, small in _with_small_ranges(ranges, opened)
        for rows in _fetch(item, opened, small)
        for part in _parts(rows)
    )
    return (_build(group, schema) for group in groups)


def _build(parts: list[Part], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of one record batch, or of several small ones, as one Arrow batch."""
    if len(parts) == 1:
        arrays = [_BUILDERS[name](*parts[0]) for name in schema.names]
    else:
        arrays = [_joined(name, parts) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _size(rows: FetchedBatch) -> int:
    """Estimate the size in bytes of rows in Spark's columns. ``RecordBatch.nbytes`` would take
    longer than the read of a small batch."""
    columns = rows.columns
    size = ROW_BYTES * rows.row_count
    if rows.header.is_columns and not rows.header.codec:
        return size + rows.header.size_bytes
    for column in (columns.key, columns.value, columns.headers):
        if column is not None:
            size += sum(buffer.size for buffer in column.buffers() if buffer is not None)
    return size


def _with_small_ranges(
    ranges: Iterable[OffsetRange], plan: _OpenPlan
) -> Iterator[tuple[OffsetRange, list[FetchedBatch] | None]]:
    """Yield the ranges in order, each with its rows if they are already fetched, else with None.

    Consecutive small ranges share a fetch, which returns their rows. The caller fetches a range
    with None itself.
    """
    left = deque(ranges)
    while left:
        first = left.popleft()
        group, size, may_join = {first.tp: first}, first.stored_bytes, _is_small(first)
        while (
            may_join
            and left
            and _is_small(left[0])
            and (tp := left[0].tp) not in group
            and size + left[0].stored_bytes <= plan.fetch_bytes
        ):
            group[tp] = left.popleft()
            size += group[tp].stored_bytes
        if len(group) > 1:
            yield from zip(group.values(), _read_small_ranges(group, plan))
        else:
            yield first, None


def _is_small(item: OffsetRange) -> bool:
    return 0 <= item.stored_bytes <= SMALL_RANGE_BYTES and item.leader is not None


def _read_small_ranges(
    group: Mapping[TopicPartition, OffsetRange], plan: _OpenPlan
) -> Iterator[list[FetchedBatch] | None]:
    return read_small_ranges(
        [
            SmallRange(
                tp,
                item.topic_id,
                item.leader_epoch,
                item.leader,
                item.start,
                item.end,
                item.start_epoch,
            )
            for tp, item in group.items()
            if item.leader is not None
        ],
        pool=plan.pool,
        fetch_bytes=plan.fetch_bytes,
        isolation=plan.isolation,
        request_timeout_ms=plan.request_timeout_ms,
    )


def _parts(rows: FetchedBatch) -> Iterator[FetchedBatch]:
    if rows.row_count <= ROWS_MAX:
        yield rows
        return
    for at in range(0, rows.row_count, ROWS_MAX):
        count = min(ROWS_MAX, rows.row_count - at)
        yield rows._replace(first_row=rows.first_row + at, row_count=count)


def _fetch(
    item: OffsetRange, plan: _OpenPlan, small: list[FetchedBatch] | None
) -> Iterator[FetchedBatch]:
    if small is not None and not any(_is_rewritten(item, rows) for rows in small):
        yield from small
        return
    tp = item.tp
    start = item.start
    while start < item.end:
        try:
            for rows in _range(tp, item, start, plan):
                if _is_rewritten(item, rows):
                    reason = (
                        f"the log was truncated and written anew: offset {start} has leader epoch "
                        f"{rows.header.leader_epoch}, at most {item.end_epoch} when the range was "
                        "planned"
                    )
                    _lose(tp, start, item.end, reason, plan)
                    item = item._replace(end_epoch=-1)
                yield rows
                start = min(item.end, rows.header.next_offset)
            return
        except LogTruncatedError as error:
            _lose(tp, min(error.offset, start), start, error.message, plan)
            item = item._replace(start_epoch=-1)
        except OffsetOutOfRangeError as error:
            start = _clip(tp, item._replace(start=start), plan, error)
        except (UnknownTopicIdError, UnknownTopicOrPartitionError) as error:
            _lose(tp, start, item.end, error.message, plan)
            return
        except CorruptMessageError as error:
            raise type(error)(f"{error.message}; to skip it, set failOnDataLoss=false") from error


def _is_rewritten(item: OffsetRange, rows: FetchedBatch) -> bool:
    return 0 <= item.end_epoch < rows.header.leader_epoch


def _range(
    tp: TopicPartition, item: OffsetRange, start: int, plan: _OpenPlan
) -> Iterator[FetchedBatch]:
    return read_range(
        tp,
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
        pool=plan.pool,
        local_reads=plan.local_reads,
        reads_once=plan.reads_once,
        start_epoch=item.start_epoch if start == item.start else -1,
        on_skipped=lambda at, first, end: skipped.add(at, first, end, "corrupt batch"),
    )


def _clip(
    tp: TopicPartition, item: OffsetRange, plan: _OpenPlan, error: OffsetOutOfRangeError
) -> int:
    """Log and count the deleted records of the range ``item``, whose fetch raised ``error``.

    Return the offset at which to continue: the log's start offset, or the range's end if all its
    records were deleted. Raises DataLossError unless failOnDataLoss=false.
    """
    admin = Admin(
        plan.bootstrap_servers,
        client_id=plan.client_id,
        timeout_ms=plan.request_timeout_ms,
        pool=plan.pool,
    )
    end = item.end
    # If the topic was deleted meanwhile, all records of the range are lost.
    with contextlib.suppress(UnknownTopicOrPartitionError):
        earliest = admin.list_offsets({tp: EARLIEST_TIMESTAMP})[tp].offset
        end = min(item.end, earliest) if earliest > item.start else item.end
    _lose(tp, item.start, end, error.message, plan)
    return end


def _lose(tp: TopicPartition, first: int, end: int, reason: str, plan: _OpenPlan) -> None:
    if plan.fail_on_data_loss:
        again = "" if plan.reads_once else f". {PLANNED_ONCE}"
        raise DataLossError(
            f"cannot fetch records in {tp} [{first}, {end}): {reason}. {CURE}{again}"
        )
    skipped.add(tp, first, end, reason)


Part = tuple[OffsetRange, FetchedBatch]
"""A range, and the rows of one of its record batches."""
Counts = npt.NDArray[np.int64]
Builder = Callable[[OffsetRange, FetchedBatch], pa.Array]


def _key(_: OffsetRange, rows: FetchedBatch) -> pa.Array:
    return _binary(rows.columns.key, rows)


def _value(_: OffsetRange, rows: FetchedBatch) -> pa.Array:
    return _binary(rows.columns.value, rows)


def _binary(column: pa.Array | None, rows: FetchedBatch) -> pa.Array:
    if column is None:
        return _constant(None, pa.binary(), rows.row_count)
    if len(column) == rows.row_count:
        return column
    return column.slice(rows.first_row, rows.row_count)


def _topic(item: OffsetRange, rows: FetchedBatch) -> pa.Array:
    return _constant(item.topic, pa.string(), rows.row_count)


def _partition(item: OffsetRange, rows: FetchedBatch) -> pa.Array:
    # This column is not cached: a task of hundreds of small partitions would evict the other cached
    # columns.
    return fixed(np.full(rows.row_count, item.partition, np.int32), pa.int32())


def _offset(_: OffsetRange, rows: FetchedBatch) -> pa.Array:
    if rows.columns.offset_deltas is None:
        return _counting.slice(rows.header.base_offset + rows.first_row, rows.row_count)
    return fixed(offsets_of(rows), pa.int64())


def _timestamp(item: OffsetRange, rows: FetchedBatch) -> pa.Array:
    header = rows.header
    stamp = _one_timestamp(rows)
    if stamp is not None:
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


def _one_timestamp(rows: FetchedBatch) -> int | None:
    """Return the timestamp (ms) that all rows share; None if each row has its own."""
    header = rows.header
    if header.is_log_append_time:
        return header.max_timestamp
    return header.constant_timestamp if rows.columns.timestamp is None else None


def _check_millis(item: OffsetRange, offset: int, millis: int) -> None:
    if abs(millis) > MILLIS_MAX:
        raise InvalidRecordError(
            f"topic {item.topic!r} partition {item.partition}, batch at offset {offset}: the "
            f"timestamp {millis} ms does not fit Spark's microseconds; start the query after this "
            "batch"
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


def _joined(name: str, parts: list[Part]) -> pa.Array:
    """Return one column for many small batches. A column per batch would take most of a read's
    time."""
    joined = _JOINED.get(name)
    counts = np.array([rows.row_count for _, rows in parts])
    column = None if joined is None else joined(parts, counts)
    if column is None:
        return pa.concat_arrays([_BUILDERS[name](*part) for part in parts])
    return column


def _joined_key(parts: list[Part], counts: Counts) -> pa.Array | None:
    if any(rows.columns.key is not None for _, rows in parts):
        return None
    return _constant(None, pa.binary(), int(counts.sum()))


def _joined_topic(parts: list[Part], counts: Counts) -> pa.Array | None:
    topic = parts[0][0].topic
    if any(item.topic != topic for item, _ in parts):
        return None
    return _constant(topic, pa.string(), int(counts.sum()))


def _joined_partition(parts: list[Part], counts: Counts) -> pa.Array:
    numbers = np.array([item.partition for item, _ in parts], np.int32)
    return fixed(np.repeat(numbers, counts), pa.int32())


def _joined_offset(parts: list[Part], counts: Counts) -> pa.Array | None:
    if any(rows.columns.offset_deltas is not None for _, rows in parts):
        return None
    firsts = np.array([rows.header.base_offset + rows.first_row for _, rows in parts])
    before = np.cumsum(counts) - counts
    return fixed(np.arange(counts.sum()) + np.repeat(firsts - before, counts), pa.int64())


def _joined_timestamp(parts: list[Part], counts: Counts) -> pa.Array | None:
    stamps = [_one_timestamp(rows) for _, rows in parts]
    if any(stamp is None or not 0 <= stamp <= MILLIS_MAX for stamp in stamps):
        return None
    return fixed(np.repeat(np.array(stamps, np.int64) * 1000, counts), TIMESTAMP)


def _joined_timestamp_type(parts: list[Part], counts: Counts) -> pa.Array:
    kinds = np.array([rows.header.is_log_append_time for _, rows in parts], np.int32)
    return fixed(np.repeat(kinds, counts), pa.int32())


def _joined_headers(parts: list[Part], counts: Counts) -> pa.Array | None:
    if any(rows.columns.headers is not None for _, rows in parts):
        return None
    return _constant(None, _HEADERS, int(counts.sum()))


_JOINED: dict[str, Callable[[list[Part], Counts], pa.Array | None]] = {
    "key": _joined_key,
    "topic": _joined_topic,
    "partition": _joined_partition,
    "offset": _joined_offset,
    "timestamp": _joined_timestamp,
    "timestampType": _joined_timestamp_type,
    "headers": _joined_headers,
}
"""By column name, the functions that build one column for many batches. A function returns None if
it cannot build the column of these batches together. ``_joined`` then concatenates the columns of
the single batches."""

_CONSTANTS_MAX = 64
CONSTANT_BYTES_MAX = 32 << 20
"""Maximum number and bytes of the cached constant columns. A column of ROWS_MAX rows that repeats
a topic's name takes 2 MB, and 16 MB for the longest name."""
_constants: dict[tuple[object, int], pa.Array] = {}
_slices: dict[tuple[object, int], pa.Array] = {}
"""By value and type, the last slice of each cached column. Most batches have the same number of
rows, so the next batch can use the same slice."""


def _constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with ``count`` equal values: a slice of a column cached in this process."""
    # Use the number of the type as the key: a hash of the type itself would be computed from its
    # text.
    key = (value, kind.id)
    part = _slices.get(key)
    if part is not None and len(part) == count:
        return part
    column = _constants.get(key)
    if column is None or len(column) < count:
        size = 1 << max(12, (count - 1).bit_length())
        column = _repeat(value, kind, size)
        size_bytes = column.nbytes + sum(each.nbytes for each in _constants.values())
        if len(_constants) >= _CONSTANTS_MAX or size_bytes > CONSTANT_BYTES_MAX:
            _constants.clear()
            _slices.clear()
        _constants[key] = column
    part = _slices[key] = column.slice(0, count)
    return part


class _OffsetColumns:
    """A cache for columns of consecutive offsets. It holds one column, returns slices of it, and
    builds a new column for offsets that the column does not have."""

    def __init__(self) -> None:
        # Base and column are one tuple, which is replaced as a whole. Tasks on several threads
        # therefore never combine the base of one column with another column.
        self._stretch = (0, fixed(np.zeros(0, np.int64), pa.int64()))

    def slice(self, first: int, count: int) -> pa.Array:
        """Return a column of ``count`` consecutive offsets from ``first`` on."""
        base, column = self._stretch
        if first < base or first + count > base + len(column):
            size = max(count, min(_STRETCH, OFFSET_MAX - first))
            numbers = np.arange(first, first + size, dtype=np.int64)
            base, column = self._stretch = first, fixed(numbers, pa.int64())
        return column.slice(first - base, count)


_STRETCH = 1 << 15
"""Number of consecutive offsets that the cache holds in one column. 32,768 offsets take 256 KiB."""
_counting = _OffsetColumns()


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


def _resize(batches: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield the batches in order, consecutive small ones as one group.

    A group ends at JOINED_ROWS rows or JOINED_BYTES decoded bytes. A batch in it is smaller than
    JOINED_BYTES, so the group stays below twice JOINED_BYTES.
    """
    waiting: list[Part] = []
    rows = size = 0
    for part in batches:
        count, part_bytes = part[1].row_count, _size(part[1])
        is_small = count < SMALL_ROWS and part_bytes < JOINED_BYTES
        if is_small:
            waiting.append(part)
            rows += count
            size += part_bytes
        if waiting and (not is_small or rows >= JOINED_ROWS or size >= JOINED_BYTES):
            yield waiting
            waiting, rows, size = [], 0, 0
        if not is_small:
            yield [part]
    if waiting:
        yield waiting
