"""Tests of conversions between numpy arrays and Arrow, with slices and nulls."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from broker_lite.record import arrays


def test_fixed_width_numpy_values_round_trip_through_arrow() -> None:
    values = np.arange(10, dtype=np.int64)
    array = arrays.fixed(values, pa.int64())
    array.validate(full=True)
    assert arrays.numpy_of(array, np.int64).tolist() == values.tolist()
    assert arrays.numpy_of(array.slice(3, 4), np.int64).tolist() == [3, 4, 5, 6]
    assert arrays.numpy_of(array.slice(3, 0), np.int64).tolist() == []
    assert arrays.fixed(values[::2], pa.int64()).to_pylist() == [0, 2, 4, 6, 8]


def test_fixed_width_column_has_nulls_where_the_validity_mask_is_false() -> None:
    column = arrays.fixed(np.array([5, 6, 7]), pa.int64(), np.array([True, False, True]))
    column.validate(full=True)
    assert column.to_pylist() == [5, None, 7]
    assert arrays.nulls_of(column).tolist() == [False, True, False]
    without = arrays.fixed(np.array([5, 6]), pa.int64(), np.array([True, True]))
    assert without.null_count == 0 and without.buffers()[0] is None


def test_binary_array_is_built_from_offsets_and_bytes() -> None:
    array = arrays.binary(np.array([0, 1, 1, 3], np.int32), b"abc")
    array.validate(full=True)
    assert array.to_pylist() == [b"a", b"", b"bc"]


@pytest.mark.parametrize(
    "array, expected",
    [
        (pa.array([b"a", None, b"", b"bcd"]), [1, -1, 0, 3]),
        (pa.array(["é", "e"]), [2, 1]),
        (pa.array([[1, 2], None, []]), [2, -1, 0]),
        (pa.array([], pa.binary()), []),
        (pa.nulls(3, pa.binary()), [-1, -1, -1]),
        (pa.array([b"x" * i if i % 3 else None for i in range(40)]).slice(7, 4), [7, 8, -1, 10]),
    ],
)
def test_lengths_of_returns_the_length_of_each_binary_value(
    array: pa.Array, expected: list[int]
) -> None:
    assert arrays.lengths_of(array, -1).tolist() == expected


def test_arrow_bitmap_marks_the_rows_that_are_not_null() -> None:
    valid = np.array([True, False, True] * 5)
    buffers = [arrays.bitmap(valid), pa.py_buffer(np.arange(15))]
    array = pa.Array.from_buffers(pa.int64(), 15, buffers)
    assert [value is not None for value in array.to_pylist()] == valid.tolist()


def test_arrow_buffer_longer_than_its_values_is_accepted() -> None:
    ragged = pa.py_buffer(np.arange(4, dtype=np.int32).tobytes() + b"xyz")
    array = pa.Array.from_buffers(pa.int32(), 2, [None, ragged], offset=1)
    assert arrays.numpy_of(array, np.int32).tolist() == [1, 2]
    array = pa.Array.from_buffers(pa.binary(), 2, [None, ragged, pa.py_buffer(b"abc")], offset=1)
    assert arrays.lengths_of(array, -1).tolist() == [1, 1]
