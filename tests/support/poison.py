"""Make batches as a faulty producer sends them: the CRC is correct, but the records cannot be
decoded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from broker_lite.record import arrow


def backwards(rows: int = 3, compression: arrow.Compression = "none") -> bytes:
    """Return a column batch whose Arrow offsets into the value column do not ascend, so that it
    cannot be decoded.

    Brokers check these offsets only if they are not compressed; readers always do.
    """
    offsets = np.arange(rows + 1, dtype=np.int32) * 4
    offsets[rows // 2] = offsets[-1]
    return _columns(rows, offsets, compression)


def _columns(rows: int, offsets: np.ndarray, compression: arrow.Compression) -> bytes:
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"data" * rows)]
    values = pa.Array.from_buffers(pa.binary(), rows, buffers, null_count=0)
    columns = arrow.Columns(rows, None, values)
    return bytes(arrow.encode(columns, timestamp_ms=1000, compression=compression))
