"""Encode Arrow columns as a batch of columns, and decode such a batch. FORMAT.md describes the
bytes.

An encoded batch has at least one row and a correct CRC. If a column is a slice of an array, the
batch contains only the bytes of the slice. ``decode`` checks the sizes in Arrow's metadata and runs
pyarrow's ``validate(full=True)`` before it uses any value, because a malicious batch could
otherwise crash the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_lite.errors import (
    CorruptMessageError,
    InvalidSchemaError,
    InvalidTimestampError,
    MessageTooLargeError,
)
from broker_lite.record import format as fmt
from broker_lite.record.arrays import fixed, lengths_of, numpy_of
from broker_lite.record.batch import BatchHeader, Buffer, check_structure, checked_columns, set_crc
from broker_lite.record.message import ORDERED_MAX, Message

__all__ = [
    "HEADERS_TYPE",
    "SCHEMA",
    "TIMESTAMP_TYPE",
    "Columns",
    "Compression",
    "as_binary",
    "check_structure",
    "decode",
    "encode",
    "split",
]

Compression = Literal["none", "lz4", "zstd"]

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP_TYPE: Final = pa.timestamp("ms", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", TIMESTAMP_TYPE),
        ("headers", HEADERS_TYPE),
    ]
)

_FIELDS: Final = (
    (fmt.FLAG_KEY, SCHEMA.field("key")),
    (fmt.FLAG_VALUE, SCHEMA.field("value")),
    (fmt.FLAG_TIMESTAMP, SCHEMA.field("timestamp")),
    (fmt.FLAG_HEADERS, SCHEMA.field("headers")),
    (fmt.FLAG_OFFSET_DELTAS, pa.field("offset_deltas", pa.int32())),
)
_CODECS: Final = {"none": fmt.CODEC_NONE, "lz4": fmt.CODEC_LZ4, "zstd": fmt.CODEC_ZSTD}
_WRITE_OPTIONS: Final = {
    name: pa.ipc.IpcWriteOptions(compression=name, use_threads=False) for name in ("lz4", "zstd")
}
_COPIED_BYTES_MAX: Final = 4096
"""Maximum bytes of an Arrow message that ``_framed`` first serializes and then copies into the
batch. Arrow's stream writer writes larger messages directly into the batch, which is faster."""
_FRAME_BYTES_MAX: Final = 1024
"""Bytes that ``split`` reserves in each batch for everything but the rows: header, preamble,
Arrow's metadata and padding. Measured batches need at most 700."""


class Columns(NamedTuple):
    """The records of a batch as Arrow columns, which have the types of SCHEMA. A row is one record.
    A column may be None:

    - ``key``, ``value``, ``headers``: None if they are null in every row. The headers of a record
      without headers are null.
    - ``timestamp``: None if all rows have the same timestamp, which is
      ``header.constant_timestamp``. Otherwise no timestamp is null.
    - ``offset_deltas``: None if the offsets have no gaps. Otherwise row i has the offset
      ``base_offset + offset_deltas[i]``.
    """

    row_count: int
    key: pa.Array | None
    value: pa.Array | None
    timestamp: pa.Array | None = None
    headers: pa.Array | None = None
    offset_deltas: npt.NDArray[np.int32] | None = None

    def slice(self, start: int, stop: int) -> Columns:
        """Return the rows from ``start`` up to but not including ``stop``, without copying them."""
        count = stop - start
        return Columns(
            count,
            None if self.key is None else self.key.slice(start, count),
            None if self.value is None else self.value.slice(start, count),
            None if self.timestamp is None else self.timestamp.slice(start, count),
            None if self.headers is None else self.headers.slice(start, count),
            None if self.offset_deltas is None else self.offset_deltas[start:stop],
        )


NO_ROWS: Final = Columns(0, None, None)


def new_memory(size: int) -> memoryview:
    """Return a new buffer of ``size`` bytes."""
    return memoryview(bytearray(size))


def encode(
    columns: Columns,
    *,
    timestamp_ms: int,
    compression: Compression = "none",
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    allocate: Callable[[int], memoryview] = new_memory,
) -> memoryview:
    """Encode the columns as one batch, in a writable buffer. The batch has base offset 0, leader
    epoch -1 and a correct CRC.

    Columns may be slices or chunked arrays. Key and value may have any binary or string type of
    Arrow, and timestamps any unit; they are truncated to milliseconds. Rows without a timestamp get
    ``timestamp_ms``. ``attributes`` has the attribute bits other than the codec. ``allocate``
    returns a writable buffer of a given size with undefined content.

    Raises MessageTooLargeError if the batch exceeds ``fmt.BATCH_BYTES_MAX`` or ``fmt.RECORDS_MAX``,
    InvalidSchemaError if there are no rows or columns have wrong types or lengths, and
    InvalidTimestampError for a timestamp that does not fit in 64 bits as milliseconds."""
    count = columns.row_count
    if count < 1:
        raise InvalidSchemaError("a batch of no rows cannot be encoded; give at least one row")
    if count > fmt.RECORDS_MAX:
        raise MessageTooLargeError(f"a batch has {count} rows; give at most {fmt.RECORDS_MAX}")
    if attributes & fmt.ATTRIBUTE_CONTROL:
        raise InvalidSchemaError("a control batch cannot be encoded as columns; encode rows")
    timestamp, base_timestamp, max_timestamp = _timestamps(columns.timestamp, count, timestamp_ms)
    last_delta = count - 1
    if columns.offset_deltas is not None:
        last_delta = int(columns.offset_deltas[-1])
    flags, batch = _present(columns, timestamp)
    out = _framed(batch, flags, compression, allocate)
    size = len(out)
    fmt.HEADER.pack_into(
        out,
        0,
        0,
        size - fmt.LENGTH_PREFIX_BYTES,
        -1,
        fmt.MAGIC_COLUMNS,
        0,
        attributes & ~fmt.CODEC_MASK | _CODECS[compression],
        last_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    fmt.PREAMBLE.pack_into(out, fmt.HEADER_BYTES, fmt.BODY_VERSION, flags, fmt.SCHEMA_KAFKA_ROW, 0)
    set_crc(out)
    return out


def split(columns: Columns, max_bytes: int) -> Iterator[Columns]:
    """Split the rows, in order, into slices, each of which takes at most ``max_bytes`` as an
    uncompressed batch. A row that is larger gets a slice of its own.

    The slices have about equal sizes, because a small last slice would cost a produce request of
    its own, which takes about as long as a request with a full batch."""
    start, before, count = 0, 0, columns.row_count
    if not count:
        return
    room = max(max_bytes - _FRAME_BYTES_MAX, 1)
    ends = _row_ends(columns)
    total = int(ends[-1])
    while start < count:
        left = -(-(total - before) // room)
        target_bytes = before + -(-(total - before) // left)
        # End the slice with the row that reaches the target size, or before this row if the slice
        # would exceed ``max_bytes`` with it.
        stop = int(np.searchsorted(ends, target_bytes)) + 1
        if stop > count or ends[stop - 1] > before + room:
            stop = int(np.searchsorted(ends, before + room, side="right"))
        stop = min(max(stop, start + 1), start + fmt.RECORDS_MAX, count)
        yield columns if stop - start == count else columns.slice(start, stop)
        start, before = stop, int(ends[stop - 1])


def decode(buffer: Buffer, header: BatchHeader) -> Columns:
    """Decode the batch of columns at the start of ``buffer``, whose header is ``header``.

    If the batch is not compressed, the columns use the memory of ``buffer``. The caller checks the
    CRC (``batch.check_crc``). Raises CorruptMessageError for malformed columns. Sizes in the
    metadata are checked before memory is allocated."""
    flags, checked = checked_columns(buffer, header)
    if not checked.codec and checked.row_count < ORDERED_MAX and not flags & ~_BINARY_FLAGS:
        return _checked_binary(buffer, flags, checked)
    message = memoryview(buffer)[fmt.COLUMNS_FROM : header.size_bytes]
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), _schema(flags))
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptMessageError(f"the Arrow message is malformed: {error}") from error
    if batch.num_rows != header.record_count:
        raise CorruptMessageError(
            f"the Arrow message has {batch.num_rows} rows, but the batch header declares "
            f"{header.record_count} records"
        )
    arrays = iter(batch.columns)
    key = next(arrays) if flags & fmt.FLAG_KEY else None
    value = next(arrays) if flags & fmt.FLAG_VALUE else None
    timestamp = next(arrays) if flags & fmt.FLAG_TIMESTAMP else None
    headers = next(arrays) if flags & fmt.FLAG_HEADERS else None
    deltas = _deltas(next(arrays), header) if flags & fmt.FLAG_OFFSET_DELTAS else None
    if value is not None and value.null_count == batch.num_rows:
        value = None
    if header.is_log_append_time:
        timestamp = None
    return Columns(batch.num_rows, key, value, timestamp, headers, deltas)


_BINARY_FLAGS: Final = fmt.FLAG_KEY | fmt.FLAG_VALUE


def _checked_binary(buffer: Buffer, flags: int, checked: Message) -> Columns:
    """Decode a small uncompressed batch that has only keys and values, in a third of the time of
    pyarrow's reader. ``check_message`` has checked all its values."""
    memory, body, count = pa.py_buffer(buffer), checked.body_position, checked.row_count
    arrays = []
    for node in range(0, len(checked.nodes), 2):
        nulls, at = checked.nodes[node + 1], 3 * node
        buffers = [
            memory.slice(body + checked.buffers[index], checked.buffers[index + 1])
            for index in range(at, at + 6, 2)
        ]
        if not nulls:
            buffers[0] = None
        is_absent = nulls == count
        arrays.append(
            None if is_absent else pa.Array.from_buffers(pa.binary(), count, buffers, nulls)
        )
    key = arrays.pop(0) if flags & fmt.FLAG_KEY else None
    return Columns(count, key, arrays[0] if arrays else None)


def _deltas(array: pa.Array, header: BatchHeader) -> npt.NDArray[np.int32]:
    deltas: npt.NDArray[np.int32] = numpy_of(array, np.int32)
    if deltas[0] < 0 or deltas[-1] > header.last_offset_delta or (deltas[1:] <= deltas[:-1]).any():
        raise CorruptMessageError(
            "the offset deltas of the Arrow message do not ascend within the batch"
        )
    return deltas


@lru_cache(maxsize=64)
def _schema(flags: int) -> pa.Schema:
    return pa.schema([field for flag, field in _FIELDS if flags & flag])


def _present(columns: Columns, timestamp: pa.Array | None) -> tuple[int, pa.RecordBatch]:
    """Return the flags (``fmt.FLAG_*``) of the columns that are not None, and these columns as an
    Arrow record batch. ``timestamp`` replaces the timestamp column of ``columns``."""
    count = columns.row_count
    flags, arrays = 0, []
    key = _binary(columns.key, "key", count)
    value = _binary(columns.value, "value", count)
    headers = _headers(columns.headers, count)
    deltas = None
    if columns.offset_deltas is not None:
        deltas = fixed(columns.offset_deltas.astype(np.int32), pa.int32())
    for (flag, _), array in zip(_FIELDS, (key, value, timestamp, headers, deltas)):
        if array is not None:
            flags |= flag
            arrays.append(array)
    if not flags:
        # Add a column of nulls: an Arrow message needs a column, which gives the number of rows.
        flags, arrays = fmt.FLAG_VALUE, [pa.nulls(count, pa.binary())]
    return flags, pa.RecordBatch.from_arrays(arrays, schema=_schema(flags))


@lru_cache(maxsize=64)
def _schema_bytes(flags: int) -> int:
    """Return the size in bytes of the schema that Arrow's stream writer writes before the
    columns."""
    return len(_schema(flags).serialize())


def _framed(
    batch: pa.RecordBatch,
    flags: int,
    compression: Compression,
    allocate: Callable[[int], memoryview],
) -> memoryview:
    """Return a buffer for a whole batch: space for the header and the preamble, which the caller
    writes, and then the columns as one Arrow message.

    Arrow's stream writer, which writes compressed messages and those above ``_COPIED_BYTES_MAX``,
    first writes a schema. No reader needs the schema, so header and preamble overwrite its last
    bytes."""
    before = _schema_bytes(flags)
    begin = before - fmt.COLUMNS_FROM
    if compression == "none":
        size = pa.ipc.get_record_batch_size(batch)
        _check_size(size)
        if size <= _COPIED_BYTES_MAX:
            memory = allocate(fmt.COLUMNS_FROM + size)
            memory[fmt.COLUMNS_FROM :] = memoryview(batch.serialize()).cast("B")
            return memory
        memory = allocate(before + size)
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
        pa.ipc.RecordBatchStreamWriter(sink, batch.schema).write_batch(batch)
        return memory[begin:]
    stream = pa.BufferOutputStream()
    options = _WRITE_OPTIONS[compression]
    pa.ipc.RecordBatchStreamWriter(stream, batch.schema, options=options).write_batch(batch)
    written = memoryview(stream.getvalue()).cast("B")[begin:]
    _check_size(len(written) - fmt.COLUMNS_FROM)
    memory = allocate(len(written))
    memory[:] = written
    return memory


def _check_size(message_bytes: int) -> None:
    size = fmt.COLUMNS_FROM + message_bytes
    if size > fmt.BATCH_BYTES_MAX:
        raise MessageTooLargeError(
            f"a batch has {size} bytes, but may have at most {fmt.BATCH_BYTES_MAX}; send fewer "
            "rows at a time"
        )


def _one_array(array: pa.Array | pa.ChunkedArray, name: str, count: int) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks == 1:
            array = array.chunk(0)
        elif array.nbytes > fmt.BATCH_BYTES_MAX:
            raise MessageTooLargeError(
                f"column {name!r} has {array.nbytes} bytes, but a batch may have at most "
                f"{fmt.BATCH_BYTES_MAX}; send fewer rows at a time"
            )
        else:
            array = array.combine_chunks()
    if len(array) != count:
        raise InvalidSchemaError(f"column {name!r} has {len(array)} rows, not {count}")
    return array


def _binary(array: pa.Array | None, name: str, count: int) -> pa.Array | None:
    if array is None:
        return None
    array = _one_array(array, name, count)
    if array.null_count == count:
        return None
    return as_binary(array, name)


def as_binary(array: pa.Array, name: str) -> pa.Array:
    """Return a column of text or bytes as binary values of at most 2 GiB.

    Raises InvalidSchemaError for another type, and MessageTooLargeError for a larger column."""
    kind = array.type
    if kind == pa.binary():
        return array
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if not any(accepts(kind) for accepts in _BINARY_LIKE):
        raise InvalidSchemaError(f"column {name!r} is {kind}; it must be binary or string")
    try:
        return array.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise MessageTooLargeError(
            f"column {name!r} does not fit in one batch ({error}); send fewer rows at a time"
        ) from error


_BINARY_LIKE: Final = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
    pa.types.is_string_view,
)


def _headers(array: pa.Array | None, count: int) -> pa.Array | None:
    if array is None:
        return None
    array = _one_array(array, "headers", count)
    if array.null_count == count:
        return None
    try:
        array = array.cast(HEADERS_TYPE)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidSchemaError(
            f"column 'headers' has type {array.type}; it must be {HEADERS_TYPE}"
        ) from error
    items = array.flatten()
    if len(items) == 0:
        return None
    if items.null_count or items.field("key").null_count:
        raise InvalidSchemaError(
            "column 'headers' has a null header or a null key; only a header's value may be null"
        )
    return array


def _timestamps(
    array: pa.Array | None, count: int, timestamp_ms: int
) -> tuple[pa.Array | None, int, int]:
    """Convert the timestamps to milliseconds. Return three values: the column (None if all rows
    have the same timestamp), the base timestamp and the maximum timestamp of the batch."""
    if array is not None:
        array = _one_array(array, "timestamp", count)
    if array is None or array.null_count == count:
        return None, timestamp_ms, timestamp_ms
    kind = array.type
    if kind != TIMESTAMP_TYPE:
        if not (pa.types.is_timestamp(kind) or pa.types.is_int64(kind)):
            raise InvalidSchemaError(
                f"column 'timestamp' is {kind}; it must be a timestamp or int64 milliseconds"
            )
        import pyarrow.compute as pc

        try:
            options = pc.CastOptions(TIMESTAMP_TYPE, allow_time_truncate=True)
            array = array.cast(options=options)
        except pa.ArrowInvalid as error:
            raise InvalidTimestampError(
                f"column 'timestamp' has a value out of range: {error}"
            ) from error
    if array.null_count:
        array = array.fill_null(fixed(np.array([timestamp_ms]), TIMESTAMP_TYPE)[0])
    millis = numpy_of(array, np.int64)
    base = int(millis[0])
    if base == millis[-1] and (millis == base).all():
        return None, base, base
    return array, base, int(millis.max())


def _row_ends(columns: Columns) -> npt.NDArray[np.int64]:
    """Return for each row an upper bound of the bytes of an uncompressed batch that ends with the
    row, without header and metadata (``_FRAME_BYTES_MAX``)."""
    count = columns.row_count
    ends = np.arange(1, count + 1, dtype=np.int64) * 20
    for name, array in (("key", columns.key), ("value", columns.value)):
        if array is not None:
            array = _one_array(array, name, count).cast(pa.binary())
            ends += np.cumsum(lengths_of(array, 0))
    if columns.headers is not None:
        array = _one_array(columns.headers, "headers", count).cast(HEADERS_TYPE)
        items = array.flatten()
        sizes = np.full(len(items), 24, np.int64)
        for name in ("key", "value"):
            sizes += lengths_of(items.field(name), 0)
        totals = np.concatenate(([0], np.cumsum(sizes)))
        ends += totals[np.cumsum(lengths_of(array, 0))]
    return ends
