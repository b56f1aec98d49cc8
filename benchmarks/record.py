"""Measure the cost of column batches against row batches, in one process.

    python benchmarks/record.py [--seconds 0.3]

The script prints one JSON object. Times are the best of several rounds on one core, in nanoseconds
for each row, for batches of about 1 MB of values of 100, 200 and 1000 bytes. ``ratios`` say how
many times faster columns are than rows one by one, with logbus's own codec of keys and values and
with aiokafka's compiled row codec (0 if aiokafka is not installed). Ratios hold on any machine,
times only on this machine. ``python_to_columns`` starts with a list of bytes objects.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable
from typing import Any

import crcmod.predefined
import numpy as np
import pyarrow as pa

from broker_lite.record import arrow, batch, crc32c, records, transcode

try:
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
except ImportError:
    DefaultRecordBatch = DefaultRecordBatchBuilder = None

BATCH_BYTES = 1 << 20
SIZES = (100, 200, 1000)
ROUNDS = 5
START_MS = 1_700_000_000_000


def best(call: Callable[[], object], seconds: float) -> float:
    """Return the shortest duration of a call in seconds, from rounds of ``seconds`` in all."""
    started = time.perf_counter()
    call()
    once = time.perf_counter() - started
    times = max(1, int(seconds / ROUNDS / max(once, 1e-7)))
    found = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            call()
        found.append((time.perf_counter() - started) / times)
    return min(found)


def log_lines(size: int, count: int, source: random.Random) -> list[bytes]:
    """Return ``count`` lines of words with varying lengths around ``size`` bytes, as in logs."""
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


def compiled_encode(lines: list[bytes]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 26)
    for offset, line in enumerate(lines):
        builder.append(offset, START_MS + offset, None, line, [])
    return bytes(builder.build())


def measure_crc(seconds: float) -> dict[str, Any]:
    data = memoryview(bytearray(random.Random(1).randbytes(BATCH_BYTES)))
    fallback = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
    used = best(lambda: crc32c.crc32c(data), seconds)
    other = best(lambda: fallback(data), seconds)
    return {
        "implementation": crc32c.IMPLEMENTATION,
        "gigabytes_per_second": round(BATCH_BYTES / used / 1e9, 2),
        "crcmod_gigabytes_per_second": round(BATCH_BYTES / other / 1e9, 2),
    }


def measure(size: int, seconds: float) -> dict[str, Any]:
    count = BATCH_BYTES // size
    lines = log_lines(size, count, random.Random(size))
    times = np.arange(count, dtype=np.int64) + START_MS
    columns = arrow.Columns(count, None, pa.array(lines, pa.binary()), pa.array(times))
    stored = arrow.encode(columns, timestamp_ms=0)
    header = batch.read_header(stored)
    packed = arrow.encode(columns, timestamp_ms=0, compression="lz4")
    packed_header = batch.read_header(packed)
    row_batch = bytes(transcode.columns_to_rows(stored, header))
    row_header = batch.read_header(row_batch)
    entries = [(None, line) for line in lines]
    assert records.decode_entries(row_batch, row_header) == entries
    few = columns.slice(0, 1)

    def per_row(call: Callable[[], object]) -> float:
        return round(best(call, seconds) / count * 1e9, 1)

    cost = {
        "encode_columns": per_row(lambda: arrow.encode(columns, timestamp_ms=0)),
        "python_to_columns": per_row(
            lambda: arrow.encode(
                columns._replace(value=pa.array(lines, pa.binary())), timestamp_ms=0
            )
        ),
        "encode_columns_lz4": per_row(
            lambda: arrow.encode(columns, timestamp_ms=0, compression="lz4")
        ),
        "decode_columns": per_row(lambda: _checked_decode(stored, header)),
        "decode_columns_lz4": per_row(lambda: _checked_decode(packed, packed_header)),
        "rows_to_columns": per_row(lambda: transcode.rows_to_columns(row_batch, row_header)),
        "columns_to_rows": per_row(lambda: transcode.columns_to_rows(stored, header)),
        "entries_one_by_one": per_row(lambda: records.decode_entries(row_batch, row_header)),
        "entries_written_one_by_one": per_row(lambda: records.encode_entries(entries, START_MS)),
    }
    if DefaultRecordBatch is not None:
        cost["compiled_rows_encode"] = per_row(lambda: compiled_encode(lines))
        cost["compiled_rows_decode"] = per_row(lambda: list(DefaultRecordBatch(row_batch)))
    return {
        "rows": count,
        "nanoseconds_per_row": cost,
        "microseconds_per_batch": {
            "check_structure": _micros(lambda: batch.check_structure(stored, header), seconds),
            "validate_for_append": _micros(
                lambda: batch.validate_for_append(stored, header, 1 << 24), seconds
            ),
            "encode_one_row": _micros(lambda: arrow.encode(few, timestamp_ms=0), seconds),
        },
        "million_rows_per_second": {
            "rows_to_columns": round(1e3 / cost["rows_to_columns"], 2),
            "columns_to_rows": round(1e3 / cost["columns_to_rows"], 2),
        },
        "ratios": {
            "encode": _ratio(cost, "entries_written_one_by_one", "encode_columns"),
            "encode_from_python": _ratio(cost, "entries_written_one_by_one", "python_to_columns"),
            "encode_from_python_to_compiled": _ratio(
                cost, "compiled_rows_encode", "python_to_columns"
            ),
            "decode": _ratio(cost, "entries_one_by_one", "decode_columns"),
            "decode_to_compiled": _ratio(cost, "compiled_rows_decode", "decode_columns"),
            "rows_to_columns": _ratio(cost, "entries_one_by_one", "rows_to_columns"),
            "columns_to_rows": _ratio(cost, "entries_written_one_by_one", "columns_to_rows"),
        },
        "bytes_per_row": {
            "values": round(sum(map(len, lines)) / count, 1),
            "columns": round(len(stored) / count, 1),
            "columns_lz4": round(len(packed) / count, 1),
            "rows": round(len(row_batch) / count, 1),
        },
    }


def _checked_decode(buffer: memoryview, header: batch.BatchHeader) -> arrow.Columns:
    """Decode a batch as a client does: check the CRC, then validate all columns."""
    batch.check_crc(buffer, header)
    return arrow.decode(buffer, header)


def _ratio(cost: dict[str, float], other: str, ours: str) -> float:
    return round(cost.get(other, 0) / cost[ours], 1)


def _micros(call: Callable[[], object], seconds: float) -> float:
    return round(best(call, seconds) * 1e6, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="per figure")
    seconds = parser.parse_args().seconds
    result = {
        "benchmark": "record",
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "crc": measure_crc(seconds),
        "value_bytes": {str(size): measure(size, seconds) for size in SIZES},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
