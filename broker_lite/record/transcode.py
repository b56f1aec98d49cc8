"""Convert a batch of rows to columns and back, with numpy and pyarrow operations that process all
records at once.

A broker converts columns to rows for a client that reads only rows. A client converts rows to
columns. The encoded rows are byte for byte the same as those of Kafka's own writer. Both
conversions keep offsets, timestamps, producer fields, transactional bit and leader epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_lite.errors import CorruptMessageError
from broker_lite.record import format as fmt
from broker_lite.record import varints
from broker_lite.record.arrays import binary, bitmap, fixed, lengths_of, numpy_of
from broker_lite.record.arrow import HEADERS_TYPE, NO_ROWS, TIMESTAMP_TYPE, Columns, decode
from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.compression import compress
from broker_lite.record.records import batch_of_rows, read_varint, rows_body
from broker_lite.record.scan import find_records
from broker_lite.record.varints import Bytes, Positions

_NOTHING: Final = binary(np.zeros(2, np.int32), b"")[0]
_NO_HEADERS: Final = binary(np.array([0, 1], np.int32), b"\x00")[0]
JOINED_BYTES: Final = 4 << 20
"""Maximum uncompressed bytes of the batches that ``join_rows`` decodes together."""
_LEVELS_MAX: Final = 64
"""How many headers of each record ``_read_headers`` decodes with numpy, for all records at once.
The further headers of a record are decoded one by one."""


def rows_to_columns(
    buffer: Buffer, header: BatchHeader, limit: int = fmt.DECOMPRESSED_BYTES_MAX
) -> Columns:
    """Decode the batch of rows at the start of ``buffer`` to columns. For a control batch, return
    columns with no rows.

    The caller checks the CRC. Raises CorruptMessageError if the batch is malformed or decompresses
    to more than ``limit`` bytes, and UnsupportedCompressionTypeError for an unknown codec. If a
    header key is not valid UTF-8, its wrong bytes become replacement characters, as in Java."""
    if header.is_control or header.record_count == 0:
        return NO_ROWS
    decoded = _read_body(rows_body(buffer, header, limit), header.record_count)
    return Columns(
        header.record_count,
        decoded.key,
        decoded.value,
        _read_timestamps(decoded.timestamps, header),
        decoded.headers,
        _read_deltas(decoded.deltas, header),
    )


def newest_timestamp(buffer: Buffer, header: BatchHeader, limit: int) -> int:
    """Return the latest timestamp (ms) of the records of a batch of rows, read from the records and
    not from the header. Raises the errors of ``rows_to_columns``."""
    body = np.frombuffer(rows_body(buffer, header, limit), np.uint8)
    attributes, _ = find_records(body, header.record_count)
    deltas, _ = varints.decode(body, attributes + 1)
    return int((deltas + header.base_timestamp).max())


def join_rows(batches: Sequence[tuple[Buffer, BatchHeader]]) -> tuple[Columns, BatchHeader, int]:
    """Decode several small batches of rows together, as if they were one batch, which is faster
    than one by one.

    The function decodes the first batch, and as many of those after it as fit with it in
    ``JOINED_BYTES`` decompressed. Return the columns, a header for these batches as a whole, and
    their number. The batches must follow one another in a log, have records, the same leader epoch,
    and timestamps set by the producer. The caller checks the CRCs. Raises the errors of
    ``rows_to_columns``. To find the invalid batch, decode the batches one by one."""
    bodies: list[memoryview] = []
    size = 0
    for buffer, header in batches:
        body = rows_body(buffer, header)
        if bodies and size + len(body) > JOINED_BYTES:
            break
        bodies.append(body)
        size += len(body)
    headers = [header for _, header in batches[: len(bodies)]]
    first, last = headers[0], headers[-1]
    counts = np.array([header.record_count for header in headers], np.int64)
    stops = np.cumsum(counts)
    total = int(stops[-1])
    decoded = _read_body(memoryview(b"".join(bodies)), total)
    if not np.array_equal(decoded.ends[stops - 1], np.cumsum(list(map(len, bodies)))):
        raise CorruptMessageError("the records of a batch do not end where the batch ends")
    last_deltas = np.array([header.last_offset_delta for header in headers], np.int64)
    deltas = decoded.deltas
    if (deltas[stops - counts] < 0).any() or (deltas[stops - 1] > last_deltas).any():
        raise CorruptMessageError("a record's offset is outside the offsets of its batch")
    deltas = deltas + _repeated([h.base_offset - first.base_offset for h in headers], counts)
    whole = first._replace(
        length=sum(header.size_bytes for header in headers) - fmt.LENGTH_PREFIX_BYTES,
        last_offset_delta=last.next_offset - first.base_offset - 1,
        max_timestamp=max(header.max_timestamp for header in headers),
        record_count=total,
    )
    times = decoded.timestamps + _repeated([header.base_timestamp for header in headers], counts)
    columns = Columns(
        total,
        decoded.key,
        decoded.value,
        fixed(times, TIMESTAMP_TYPE),
        decoded.headers,
        _read_deltas(deltas, whole),
    )
    return columns, whole, len(headers)


def _repeated(values: list[int], counts: Positions) -> Positions:
    """Return an array with one entry for each record: its batch's entry in ``values``. ``counts``
    has the number of records of each batch."""
    return np.repeat(np.array(values, np.int64), counts)


class _Body(NamedTuple):
    """The fields of all records of a batch, each field as an array. ``timestamps`` are differences
    from the header's base timestamp, ``deltas`` from its base offset."""

    ends: Positions
    timestamps: Positions
    deltas: Positions
    key: pa.Array | None
    value: pa.Array | None
    headers: pa.Array | None


def _read_body(memory: memoryview, count: int) -> _Body:
    """Decode the body of a batch of rows, which has ``count`` records and is not compressed."""
    body = np.frombuffer(memory, np.uint8)
    at, ends = find_records(body, count)
    timestamps, at = varints.decode(body, at + 1)
    deltas, at = varints.decode(body, at)
    key_lengths, key_starts, at = _field(body, at, ends)
    value_lengths, value_starts, at = _field(body, at, ends)
    header_counts, at = varints.decode(body, at)
    data = pa.py_buffer(memory)
    if header_counts.any():
        headers = _read_headers(body, data, at, ends, header_counts)
    else:
        headers = None
        if not np.array_equal(at, ends):
            raise CorruptMessageError("a record's fields do not end at its declared end")
    key = _gather(data, key_starts, key_lengths)
    value = _gather(data, value_starts, value_lengths)
    return _Body(ends, timestamps, deltas, key, value, headers)


def _field(body: Bytes, at: Positions, ends: Positions) -> tuple[Positions, Positions, Positions]:
    """Decode one field, such as the key, of each record. Its length is at position ``at``. Return
    the lengths (-1 for null), and the starts and ends of the contents."""
    lengths, starts = varints.decode(body, at)
    if lengths.min() < -1 or (lengths > ends - starts).any():
        raise CorruptMessageError("a field extends beyond its record")
    return lengths, starts, starts + np.maximum(lengths, 0)


def _read_timestamps(deltas: Positions, header: BatchHeader) -> pa.Array | None:
    if header.is_log_append_time or not deltas.any():
        return None
    return fixed(deltas + header.base_timestamp, TIMESTAMP_TYPE)


def _read_deltas(deltas: Positions, header: BatchHeader) -> npt.NDArray[np.int32] | None:
    last = int(deltas[-1])
    if last > header.last_offset_delta or deltas[0] < 0 or (deltas[1:] <= deltas[:-1]).any():
        raise CorruptMessageError("the offsets of a batch's records do not ascend within it")
    # Offsets that ascend from 0 to count - 1 have no gap.
    return None if last == len(deltas) - 1 else deltas.astype(np.int32)


def _gather(data: pa.Buffer, starts: Positions, lengths: Positions) -> pa.Array | None:
    """Copy pieces of ``data``, the body, into an array of byte strings. The pieces begin at
    ``starts``, in ascending order. A negative length means null. Return None if all entries are
    null."""
    count = len(starts)
    nulls = lengths < 0
    null_count = int(np.count_nonzero(nulls))
    if null_count == count:
        return None
    # Describe the body as an array whose entries are piece, gap, piece, gap and so on. ``take``
    # copies the pieces, every second entry.
    edges = np.empty((count, 2), np.int32)
    edges[:, 0] = starts
    edges[:, 1] = starts + np.maximum(lengths, 0)
    alternating = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), data], null_count=0
    )
    values = alternating.take(fixed(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32()))
    if not null_count:
        return values
    _, offsets, content = values.buffers()
    return pa.Array.from_buffers(
        pa.binary(), count, [bitmap(~nulls), offsets, content], null_count=null_count
    )


def _read_headers(
    body: Bytes, data: pa.Buffer, at: Positions, ends: Positions, counts: Positions
) -> pa.Array:
    """Return the column of headers: decode the first headers of all records together, then the
    second headers, and so on. ``counts`` are the numbers of headers of the records."""
    if counts.min() < 0 or (2 * counts > ends - at).any():
        raise CorruptMessageError("a record declares more headers than its bytes can hold")
    firsts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    total = int(firsts[-1])
    names = np.empty((2, total), np.int64)
    contents = np.empty((2, total), np.int64)
    at = at.copy()
    rows = np.flatnonzero(counts)
    level = 0
    while rows.size and level < _LEVELS_MAX:
        slots = firsts[rows] + level
        names[1, slots], names[0, slots], after = _field(body, at[rows], ends[rows])
        contents[1, slots], contents[0, slots], at[rows] = _field(body, after, ends[rows])
        level += 1
        rows = rows[counts[rows] > level]
    view = memoryview(data).cast("B")
    for row in rows:
        at[row] = _read_many_headers(
            view[: int(ends[row])],
            int(at[row]),
            names[:, firsts[row] + level : firsts[row + 1]],
            contents[:, firsts[row] + level : firsts[row + 1]],
        )
    if not np.array_equal(at, ends):
        raise CorruptMessageError("a record's fields do not end at its declared end")
    if names[1].min() < 0:
        raise CorruptMessageError("the key of a header is null")
    return _headers_array(data, names, contents, counts, firsts)


def _read_many_headers(
    record: memoryview, position: int, names: Positions, contents: Positions
) -> int:
    """Find in a loop the headers of one record that follow its first ``_LEVELS_MAX`` and begin at
    ``position``. Write the start and length of each key to ``names``, and of each value to
    ``contents``. Return the end position."""
    try:
        for slot in range(names.shape[1]):
            for parts in (names, contents):
                length, position = read_varint(record, position)
                if not -1 <= length <= len(record) - position:
                    raise CorruptMessageError("a header extends beyond its record")
                parts[0, slot], parts[1, slot] = position, length
                position += max(length, 0)
    except IndexError as error:
        raise CorruptMessageError("a header extends beyond its record") from error
    return position


def _headers_array(
    data: pa.Buffer, names: Positions, contents: Positions, counts: Positions, firsts: Positions
) -> pa.Array:
    raw = _gather(data, names[0], names[1])
    assert raw is not None
    try:
        keys = raw.cast(pa.string())
    except pa.ArrowInvalid:
        keys = _replaced(raw)
    values = _gather(data, contents[0], contents[1])
    if values is None:
        values = pa.nulls(len(keys), pa.binary())
    items = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    offsets = pa.py_buffer(firsts.astype(np.int32))
    return pa.Array.from_buffers(
        HEADERS_TYPE, len(counts), [bitmap(counts > 0), offsets], children=[items]
    )


def _replaced(keys: pa.Array) -> pa.Array:
    """Return the header keys with replacement characters where they are not valid UTF-8. The slow
    loop over the keys does no harm, because such keys are rare."""
    texts = [key.decode("utf-8", "replace").encode() for key in keys.to_pylist()]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return binary(offsets, b"".join(texts)).cast(pa.string())


def columns_to_rows(buffer: Buffer, header: BatchHeader, codec: int = fmt.CODEC_NONE) -> bytearray:
    """Convert the batch of columns at the start of ``buffer`` to a batch of rows, compressed by
    ``codec`` (one of ``fmt.CODEC_*``).

    The new header has the same fields except magic, codec, length and CRC. The caller checks the
    CRC. Raises CorruptMessageError."""
    body = encode_body(decode(buffer, header), header.base_timestamp)
    attributes = header.attributes & ~fmt.CODEC_MASK | codec
    packed = body if codec == fmt.CODEC_NONE else compress(codec, body)
    return batch_of_rows(header._replace(attributes=attributes), packed)


def encode_body(columns: Columns, base_timestamp: int) -> memoryview:
    """Encode the body of a batch of rows (the bytes after the header), uncompressed."""
    count = columns.row_count
    timestamp = columns.timestamp
    if timestamp is None:
        timestamps = np.zeros(count, np.int64)
    else:
        millis: Positions = numpy_of(timestamp, np.int64)
        timestamps = millis - np.int64(base_timestamp)
    if columns.offset_deltas is None:
        deltas = np.arange(count, dtype=np.int64)
    else:
        deltas = columns.offset_deltas.astype(np.int64)
    key_lengths = _lengths(columns.key, count)
    value_lengths = _lengths(columns.value, count)
    tail, tail_bytes = _tail(columns.headers)
    timestamp_field = varints.encode(timestamps)
    delta_field = varints.encode(deltas)
    key_field = varints.encode(key_lengths)
    value_field = varints.encode(value_lengths)
    content = np.maximum(key_lengths, 0)
    content += np.maximum(value_lengths, 0) + tail_bytes + 1
    for _, widths in (timestamp_field, delta_field, key_field, value_field):
        content += widths
    before = [varints.encode(content), _ATTRIBUTES, timestamp_field, delta_field, key_field]
    parts: list[pa.Array | pa.Scalar] = []
    if columns.key is None:
        parts = [_pack([*before, value_field], count)]
    else:
        parts = [_pack(before, count), columns.key, _pack([value_field], count)]
    if columns.value is not None:
        parts.append(columns.value)
    parts.append(tail)
    return _join(parts)


def _lengths(array: pa.Array | None, count: int) -> Positions:
    """Return the length in bytes of each of the ``count`` entries of a column; -1 for null."""
    if array is None:
        return np.full(count, -1, np.int64)
    return lengths_of(array, -1)


_ATTRIBUTES: Final = (np.zeros((1, 1), np.uint8), np.ones(1, np.int64))


def _pack(fields: list[tuple[Bytes, Positions]], count: int) -> pa.Array:
    """Return an array of byte strings with one entry for each record: the bytes of all its
    ``fields``, one after the other.

    A field is a pair: a matrix with one row of bytes for each record, and the number of bytes that
    are used in each row."""
    columns = sum(matrix.shape[1] for matrix, _ in fields)
    joined = np.empty((count, columns), np.uint8)
    used: npt.NDArray[np.bool_] | None = None
    total = np.zeros(count, np.int64)
    start = 0
    for matrix, widths in fields:
        stop = start + matrix.shape[1]
        joined[:, start:stop] = matrix
        total += widths
        if int(widths.min()) < matrix.shape[1]:
            if used is None:
                used = np.ones((count, columns), np.bool_)
            used[:, start:stop] = np.arange(matrix.shape[1]) < widths[:, None]
        start = stop
    content = joined if used is None else joined[used]
    return _binary_array(total, content)


def _binary_array(lengths: Positions, content: Bytes) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return binary(offsets, np.ascontiguousarray(content))


def _tail(headers: pa.Array | None) -> tuple[pa.Array | pa.Scalar, Positions | int]:
    """Encode the end of each record: its number of headers, then the headers. Return the bytes of
    each record's end, and their sizes."""
    if headers is None:
        return _NO_HEADERS, 1
    counts = lengths_of(headers, 0)
    items = headers.flatten()
    if len(items) == 0:
        return _NO_HEADERS, 1
    keys, values = items.field("key").cast(pa.binary()), items.field("value")
    entries = _join_entries(
        [
            _pack([varints.encode(_lengths(keys, len(items)))], len(items)),
            keys,
            _pack([varints.encode(_lengths(values, len(items)))], len(items)),
            values,
        ]
    )
    # The headers of a record are adjacent, so their bytes are one slice of the encoded headers.
    firsts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    _, offsets, content = entries.buffers()
    edges = np.frombuffer(offsets, np.int32, len(items) + 1)[firsts]
    grouped = binary(edges, content)
    count_field = varints.encode(counts)
    sizes = count_field[1] + np.diff(edges)
    return _join_entries([_pack([count_field], len(counts)), grouped]), sizes


def _join_entries(parts: list[pa.Array | pa.Scalar]) -> pa.Array:
    """Return an array whose entry i is the concatenation of the entries i of all ``parts``. A null
    counts as empty."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(
        *parts, _NOTHING, null_handling="replace", null_replacement=b""
    )


def _join(parts: list[pa.Array | pa.Scalar]) -> memoryview:
    """Return the bytes of all entries of ``_join_entries(parts)``, one after the other."""
    joined = _join_entries(parts)
    _, offsets, content = joined.buffers()
    size = int(np.frombuffer(offsets, np.int32, len(joined) + 1)[-1])
    return memoryview(content).cast("B")[:size]
