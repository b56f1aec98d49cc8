"""Build Spark's columns from the fetched record batches of a range.

Each column has a function for one batch. Most also have a function for many small batches. The
module's only state is a cache of constant columns, such as the topic's name.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_lite.client.fetch.range_reader import FetchedBatch
from broker_lite.client.received import MILLIS_MAX, offsets_of, timestamps_of
from broker_lite.errors import InvalidRecordError
from broker_lite.model import NO_TIMESTAMP
from broker_lite.record.arrays import bitmap, fixed, lengths_of
from pyspark_logbus.offset_ranges import OffsetRange

OFFSET_MAX = (1 << 63) - 1
TIMESTAMP = pa.timestamp("us", tz="UTC")

Part = tuple[OffsetRange, FetchedBatch]
"""A range, and the rows of one of its record batches."""
Counts = npt.NDArray[np.int64]
Builder = Callable[[OffsetRange, FetchedBatch], pa.Array]


def build(parts: list[Part], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of one record batch, or of several small ones, as one Arrow batch."""
    if len(parts) == 1:
        arrays = [_BUILDERS[name](*parts[0]) for name in schema.names]
    else:
        arrays = [_joined(name, parts) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
    lengths = lengths_of(part, 0)
    if lengths.all():
        return part
    # Spark's Kafka source has null, not an empty array, for a record without headers.
    offsets = np.frombuffer(part.buffers()[1], np.int32, len(part) + 1, 4 * part.offset)
    buffers = [bitmap(lengths > 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(part.type, len(part), buffers, children=[part.values])


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
it cannot. ``_joined`` then builds a column for each batch and concatenates these."""

_CONSTANTS_MAX = 64
CONSTANT_BYTES_MAX = 32 << 20
"""Maximum number and bytes of the cached constant columns. A column of 65,536 rows that repeats
a topic's name takes 2 MB, and 16 MB for the longest name."""
_constants: dict[tuple[object, int], pa.Array] = {}
_slices: dict[tuple[object, int], pa.Array] = {}
"""The last slice of each cached column, by the column's value and type. Most batches have the same
number of rows, so the next batch can use the same slice."""


def _constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with ``count`` equal values: a slice of a column cached in this process."""
    # Use the number of the type as the key: the type's own hash is computed from its text, which
    # costs more.
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
        # Base (first offset) and column are one tuple, which is replaced as a whole. Tasks on
        # several threads therefore never combine the base of one column with another column.
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
