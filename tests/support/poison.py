"""Batches that a faulty producer writes: their CRC is right, their records cannot be decoded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from broker_lite.record import arrow


def backwards(rows: int = 3, compression: arrow.Compression = "none") -> bytes:
    """Columns whose values' offsets do not ascend; compressed, only a reader can find that."""
    offsets = np.arange(rows + 1, dtype=np.int32) * 4
    offsets[rows // 2] = offsets[-1]
    return _columns(rows, offsets, compression)


def _columns(rows: int, offsets: np.ndarray, compression: arrow.Compression) -> bytes:
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"data" * rows)]
    values = pa.Array.from_buffers(pa.binary(), rows, buffers, null_count=0)
    columns = arrow.Columns(rows, None, values)
    return bytes(arrow.encode(columns, timestamp_ms=1000, compression=compression))
