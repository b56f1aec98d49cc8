"""Convert numpy arrays to Arrow arrays and back, without importing pandas.

pyarrow's functions ``pa.array``, ``pa.scalar`` and ``to_numpy`` import pandas if it is installed,
which costs a process half a second and 40 MB. The functions here instead create arrays over
existing buffers and copy no values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numpy_of(array: pa.Array, kind: Any) -> npt.NDArray[Any]:
    """Return an Arrow array with values of fixed width as a numpy array of type ``kind`` over the
    same memory. Where the Arrow array is null, the value is undefined."""
    if not len(array):
        return np.zeros(0, kind)
    # Read only as many values as the array has: a buffer of another library may be longer, and its
    # size need not be a multiple of a value's width.
    start = array.offset * np.dtype(kind).itemsize
    values: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], kind, len(array), start)
    return values


def fixed(
    values: npt.NDArray[Any], kind: pa.DataType, is_valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return a numpy array as an Arrow array. ``kind`` is an Arrow type of the same width. The
    result is null where ``is_valid`` is False."""
    validity = validity_of(is_valid)
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers, 0 if validity is None else -1)


def validity_of(is_valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Return Arrow's validity bitmap for a column that is null where ``is_valid`` is False; None
    for a column without nulls."""
    return None if is_valid is None or is_valid.all() else bitmap(is_valid)


def binary(offsets: npt.NDArray[np.int32], content: Any) -> pa.Array:
    """Return an Arrow array of byte strings without nulls, whose entry i is
    ``content[offsets[i]:offsets[i + 1]]``."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers, null_count=0)


def bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Return Arrow's validity bitmap for these values: one bit per entry, 0 for null."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def nulls_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a numpy array that is True where the Arrow array is null. The Arrow array must have at
    least one null."""
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    nulls: npt.NDArray[np.bool_] = bits[array.offset : array.offset + len(array)] == 0
    return nulls


def lengths_of(array: pa.Array, null: int) -> npt.NDArray[np.int64]:
    """Return the length of each entry of a binary, string or list array; ``null`` for a null
    entry."""
    count = len(array)
    if not count:
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(array.buffers()[1], np.int32, count + 1, 4 * array.offset)
    lengths = np.diff(offsets).astype(np.int64)
    if array.null_count:
        lengths[nulls_of(array)] = null
    return lengths
