"""Measure the cost of column batches against row batches, in one process.

    python benchmarks/record.py [--seconds 0.3]

The script prints one JSON object. Times are the best of several rounds on one core, in nanoseconds
for each row, for batches of about 1 MB of values of 100, 200 and 1000 bytes. ``ratios`` say how
many times faster columns are than a loop over keys and values. Ratios hold on any machine, times
only on this machine. ``python_to_columns`` encodes a list of bytes objects.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from peers import figures

from broker_lite.record import arrow, batch, records, transcode

BATCH_BYTES = 1 << 20
SIZES = (100, 200, 1000)
START_MS = 1_700_000_000_000
RATIOS = {
    "encode": ("entries_written_one_by_one", "encode_columns"),
    "encode_from_python": ("entries_written_one_by_one", "python_to_columns"),
    "decode": ("entries_one_by_one", "decode_columns"),
    "rows_to_columns": ("entries_one_by_one", "rows_to_columns"),
    "columns_to_rows": ("entries_written_one_by_one", "columns_to_rows"),
}


def log_lines(size: int, count: int) -> list[bytes]:
    """Return ``count`` lines of words, as in logs. Lengths vary around ``size`` bytes."""
    source = random.Random(size)
    words = [
        "".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randint(2, 9)))
        for _ in range(500)
    ]
    text = " ".join(source.choices(words, k=count * size // 5)).encode()
    lines, at = [], 0
    for _ in range(count):
        length = source.randint(size * 3 // 4, size * 5 // 4)
        lines.append(text[at : at + length].ljust(length))
        at = (at + length) % (len(text) - 2 * size)
    return lines


def measure_size(size: int, seconds: float) -> dict[str, Any]:
    count = BATCH_BYTES // size
    lines = log_lines(size, count)
    times = np.arange(count, dtype=np.int64) + START_MS
    columns = arrow.Columns(count, None, pa.array(lines, pa.binary()), pa.array(times))
    entries = [(None, line) for line in lines]

    def encode(some: arrow.Columns = columns, compression: str = "none") -> memoryview:
        return arrow.encode(some, timestamp_ms=0, compression=compression)

    def decode(buffer: memoryview) -> arrow.Columns:
        """Decode a batch as a client does: check the CRC, then validate all columns."""
        header = batch.read_header(buffer)
        batch.check_crc(buffer, header)
        return arrow.decode(buffer, header)

    stored, packed, few = encode(), encode(compression="lz4"), columns.slice(0, 1)
    header = batch.read_header(stored)
    row_batch = bytes(transcode.columns_to_rows(stored, header))
    row_header = batch.read_header(row_batch)
    assert records.decode_entries(row_batch, row_header) == entries
    per_row: dict[str, Callable[[], object]] = {
        "encode_columns": encode,
        "python_to_columns": lambda: encode(columns._replace(value=pa.array(lines, pa.binary()))),
        "encode_columns_lz4": lambda: encode(compression="lz4"),
        "decode_columns": lambda: decode(stored),
        "decode_columns_lz4": lambda: decode(packed),
        "rows_to_columns": lambda: transcode.rows_to_columns(row_batch, row_header),
        "columns_to_rows": lambda: transcode.columns_to_rows(stored, header),
        "entries_one_by_one": lambda: records.decode_entries(row_batch, row_header),
        "entries_written_one_by_one": lambda: records.encode_entries(entries, START_MS),
    }
    per_batch: dict[str, Callable[[], object]] = {
        "validate_for_append": lambda: batch.validate_for_append(stored, header, 1 << 24),
        "encode_one_row": lambda: encode(few),
    }

    def timed(calls: dict[str, Callable[[], object]], scale: float) -> dict[str, float]:
        return {
            name: round(figures.shortest(call, seconds) * scale, 1) for name, call in calls.items()
        }

    cost = timed(per_row, 1e9 / count)
    return {
        "rows": count,
        "nanoseconds_per_row": cost,
        "microseconds_per_batch": timed(per_batch, 1e6),
        "ratios": {name: round(cost[a] / cost[b], 1) for name, (a, b) in RATIOS.items()},
    }


def measure(seconds: float = 0.3) -> dict[str, Any]:
    return {"value_bytes": {str(size): measure_size(size, seconds) for size in SIZES}}


if __name__ == "__main__":
    figures.main(measure)
