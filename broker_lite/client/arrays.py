"""Convert between Python lists and Arrow columns without ``pa.array`` and ``to_pylist``.

``pa.array`` and ``pa.scalar`` import pandas if it is installed: half a second more for a process's
first ``send``, and 40 MB. These functions join the values and pass the buffers to Arrow, and are as
fast. ``record.arrays`` converts between Arrow and numpy. No I/O; any thread may call them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import accumulate, pairwise, repeat

import numpy as np
import pyarrow as pa

from broker_lite.errors import MessageTooLargeError
from broker_lite.record.arrays import nulls_of, validity_of
from broker_lite.record.arrow import HEADERS_TYPE

_OFFSET_MAX = (1 << 31) - 1
FEW = 8
"""Up to this number of values, ``struct`` converts them faster than numpy."""
_KEPT_ROWS_MAX = 1 << 16
_ITEM_TYPE = HEADERS_TYPE.value_type


def binary_of(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Return ``values`` as an Arrow column of type ``kind``: binary, or string for UTF-8 values.

    Takes 50 ns a value. Raises MessageTooLargeError if the values exceed 2 GiB together.
    """
    count = len(values)
    if count <= FEW and None not in values:
        return _few_of(values, pa.binary() if kind is None else kind)  # type: ignore[arg-type]
    is_valid = None
    try:
        data = b"".join(values)  # type: ignore[arg-type]
        sizes = np.fromiter(map(len, values), np.int64, count)  # type: ignore[arg-type]
    except TypeError:
        is_valid = np.fromiter((value is not None for value in values), np.bool_, count)
        full = [b"" if value is None else value for value in values]
        data = b"".join(full)
        sizes = np.fromiter(map(len, full), np.int64, count)
    if len(data) > _OFFSET_MAX:
        raise _too_large(len(data))
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary() if kind is None else kind,
        count,
        [validity_of(is_valid), pa.py_buffer(offsets), pa.py_buffer(data)],
    )


def scalar_of(value: bytes, kind: pa.DataType | None = None) -> pa.Scalar:
    """Return bytes as a binary or (UTF-8) string scalar, for a comparison with a column."""
    return binary_of([value], kind)[0]


def _too_large(size: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"a column of the rows has {size} bytes; at most {_OFFSET_MAX} are allowed. Send fewer "
        "rows in one call"
    )


def topic_column(topic: str, count: int) -> pa.Array:
    """Return a column of ``count`` rows with ``topic`` in each. Up to 65,536 rows are a slice of a
    cached column."""
    if count > _KEPT_ROWS_MAX:
        return _repeated(topic, count)
    return _cached(topic, max(1 << 12, 1 << (count - 1).bit_length())).slice(0, count)


def _repeated(text: str, count: int) -> pa.Array:
    data = text.encode("utf-8")
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers, null_count=0)


_cached = lru_cache(maxsize=16)(_repeated)


def _few_of(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Return at most ``FEW`` values as a column, without numpy, which is slower for so few."""
    data = b"".join(values)
    if len(data) > _OFFSET_MAX:
        raise _too_large(len(data))
    offsets = struct.pack(f"={len(values) + 1}i", 0, *accumulate(map(len, values)))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(values), buffers, null_count=0)


def python_of(array: pa.Array | None, count: int) -> Iterator[bytes | None]:
    """Yield the ``count`` values of a binary column as Python bytes, in 25 ns each.

    If ``array`` is None, yield None ``count`` times."""
    if array is None:
        return repeat(None, count)
    _, offsets_buffer, data_buffer = array.buffers()
    if data_buffer is None or not count:
        contents: Iterator[bytes | None] = repeat(b"", count)
    else:
        # Read only ``count`` values: in an array that another library built, the buffers may be
        # longer.
        if count <= FEW and not array.null_count:
            edges = struct.unpack_from(f"={count + 1}i", offsets_buffer, 4 * array.offset)
            few = memoryview(data_buffer)
            return iter([few[at:end].tobytes() for at, end in pairwise(edges)])
        offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, 4 * array.offset)
        # BytesIO.read is three times as fast as one slice per value.
        data = BytesIO(memoryview(data_buffer)[int(offsets[0]) : int(offsets[-1])])
        contents = map(data.read, np.diff(offsets).tolist())
    if not array.null_count:
        return contents
    values = list(contents)
    for index in np.flatnonzero(nulls_of(array)).tolist():
        values[index] = None
    return iter(values)


def headers_of(rows: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> pa.Array:
    """Return a column of HEADERS_TYPE with each row's record headers; None means no headers."""
    sizes = np.fromiter((len(row) if row else 0 for row in rows), np.int64, len(rows))
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    items = [item for row in rows if row for item in row]
    names = binary_of([name.encode("utf-8") for name, _ in items], pa.string())
    values = binary_of([value for _, value in items])
    structs = pa.Array.from_buffers(_ITEM_TYPE, len(items), [None], children=[names, values])
    return pa.Array.from_buffers(
        HEADERS_TYPE,
        len(rows),
        [validity_of(sizes > 0), pa.py_buffer(offsets)],
        children=[structs],
    )
