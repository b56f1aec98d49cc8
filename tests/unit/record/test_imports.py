"""Tests that batches are encoded and decoded without pandas, which parts of pyarrow import."""

from __future__ import annotations

import subprocess
import sys

PATHS = """
import sys
import numpy as np
import pyarrow as pa
from broker_lite.record import arrow, batch, records, transcode
from broker_lite.record.records import Row

rows = [Row(i * 2, i, b"k", b"v" * i, (("h", b"x"),) if i else ()) for i in range(9)]
data = records.encode_rows(rows, codec=4)
columns = transcode.rows_to_columns(data, batch.read_header(data))
columns = columns._replace(value=columns.value.cast(pa.string()), key=pa.nulls(9, pa.binary()))
late = columns._replace(timestamp=columns.timestamp.cast(pa.timestamp("us")), headers=None)
chunks = columns._replace(value=pa.chunked_array([columns.value[:3], columns.value[3:]]))
unknown = columns._replace(timestamp=pa.nulls(9, pa.int64()))
parts = [late, chunks, unknown, *arrow.split(columns, 1500)]
for compression in ("none", "lz4"):
    for part in parts:
        stored = arrow.encode(part, timestamp_ms=7, compression=compression)
        arrow.decode(stored, batch.read_header(stored))
        transcode.columns_to_rows(stored, batch.read_header(stored))
assert "asyncio" not in sys.modules
assert "pandas" not in sys.modules
"""


def test_encoding_and_decoding_of_batches_do_not_import_pandas() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PATHS], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr


def test_broker_module_imports_neither_numpy_nor_pyarrow() -> None:
    code = (
        "import sys, broker_lite.server.broker;"
        "assert not {'numpy', 'pandas', 'pyarrow'} & sys.modules.keys()"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
