"""Tests of conversions between Python values and Arrow columns, without ``pa.array``, which imports
pandas."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from broker_lite.client.arrays import (
    binary_of,
    headers_of,
    python_of,
    topic_column,
)
from broker_lite.record.arrays import nulls_of
from broker_lite.record.arrow import HEADERS_TYPE

VALUES = [b"a", None, b"", b"ccc", None, b"\x00\xff" * 50]


@pytest.mark.parametrize("values", [VALUES, [], [None], [b""], [b"x"] * 17])
def test_python_bytes_convert_to_a_binary_column_and_back(values: list[bytes | None]) -> None:
    column = binary_of(values)
    column.validate(full=True)
    assert column.to_pylist() == values
    assert list(python_of(column, len(values))) == values


def test_sliced_column_converts_to_its_own_rows() -> None:
    column = binary_of(VALUES * 5)
    for start in range(0, 30, 7):
        part = column.slice(start, 9)
        assert list(python_of(part, len(part))) == part.to_pylist()
        assert nulls_of(part).tolist() == [value is None for value in part.to_pylist()]


def test_column_that_is_absent_converts_to_none_in_each_row() -> None:
    assert list(python_of(None, 3)) == [None] * 3


@pytest.mark.parametrize("count", [0, 1, 3, 4096, 5000, 70_000])
def test_topic_column_repeats_the_topic_in_each_row(count: int) -> None:
    column = topic_column("thème", count)
    column.validate(full=True)
    assert column.type == pa.string()
    assert column.to_pylist() == ["thème"] * count


def test_headers_convert_to_an_arrow_column_and_back_with_missing_and_null_values() -> None:
    rows = [None, [("h", b"x"), ("é", None)], [], [("h", b"")]]
    column = headers_of(rows)
    column.validate(full=True)
    assert column.type == HEADERS_TYPE
    assert column.to_pylist() == [
        None,
        [{"key": "h", "value": b"x"}, {"key": "é", "value": None}],
        None,
        [{"key": "h", "value": b""}],
    ]


def test_array_conversions_do_not_import_pandas() -> None:
    code = (
        "import sys\n"
        "from broker_lite.client.arrays import *\n"
        "from broker_lite.record.arrays import fixed\n"
        "import numpy as np, pyarrow as pa\n"
        "column = binary_of([b'a', None]); list(python_of(column, 2))\n"
        "fixed(np.arange(3), pa.int64()); headers_of([[('h', b'x')]])\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_arrow_column_with_extra_bytes_after_its_offsets_is_converted() -> None:
    offsets = pa.py_buffer(np.array([0, 1, 3], np.int32).tobytes() + b"odd")
    column = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    assert list(python_of(column, 2)) == [b"a", b"bc"]
