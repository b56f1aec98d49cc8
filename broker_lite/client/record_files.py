"""Write records to files of CSV, JSON Lines or Parquet. The caller opens and closes the file."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from typing import IO, Any

import pyarrow as pa

from broker_lite.config.time_text import iso
from broker_lite.record.envelope import envelope, json_text

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
"""The columns of a CSV file, in order."""
_QUOTED = re.compile(r'[",\r\n]|\A\Z')
"""Matches a field of CSV that needs quotes. An empty field without quotes is null."""
Row = dict[str, Any]
Writer = Callable[[pa.RecordBatch], None]


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return each record of an Arrow batch from ``poll_arrow`` as a dictionary. The value of
    ``timestamp_ms`` is -1 for a record without a timestamp."""
    if not batch.num_rows:
        return []
    stamps = batch.column("timestamp").cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    names = [name for name in batch.schema.names if name not in ("timestamp", "timestampType")]
    rows: list[Row] = batch.select(names).to_pylist()
    for row, stamp in zip(rows, stamps.to_pylist(), strict=True):
        row["timestamp_ms"] = -1 if stamp is None else stamp
        row["headers"] = row.get("headers") or []
    return rows


def _lines(file: IO[bytes]) -> tuple[Writer, Callable[[], None]]:
    def write(batch: pa.RecordBatch) -> None:
        file.writelines((envelope(row, "auto") + "\n").encode() for row in rows_of(batch))

    return write, file.flush


def _csv(file: IO[bytes]) -> tuple[Writer, Callable[[], None]]:
    text = io.TextIOWrapper(file, "utf-8", errors="surrogateescape", newline="")
    text.write(",".join(COLUMNS) + "\r\n")

    def write(batch: pa.RecordBatch) -> None:
        for row in rows_of(batch):
            # Write the headers as pairs, because a record may have several headers of one name.
            headers = [(pair["key"], json_text(pair["value"])) for pair in row["headers"]]
            fields = (
                str(row["partition"]),
                str(row["offset"]),
                iso(row["timestamp_ms"]),
                _text(row["key"]),
                _text(row["value"]),
                json.dumps(headers, ensure_ascii=False) if headers else None,
            )
            text.write(",".join(map(_csv_field, fields)) + "\r\n")

    def finish() -> None:
        text.flush()
        text.detach()

    return write, finish


def _text(value: bytes | None) -> str | None:
    """Return bytes as text. Bytes that are not UTF-8 become surrogate characters, from which the
    file's encoding restores the bytes."""
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _csv_field(field: str | None) -> str:
    if field is None:
        return ""
    quoted = field.replace('"', '""')
    return f'"{quoted}"' if _QUOTED.search(field) else field


def _parquet(file: IO[bytes]) -> tuple[Writer, Callable[[], None]]:
    import pyarrow.parquet as pq

    opened: list[Any] = []

    def write(batch: pa.RecordBatch) -> None:
        if not opened:
            opened.append(pq.ParquetWriter(file, batch.schema))
        if batch.num_rows:
            opened[0].write_batch(batch)

    def finish() -> None:
        if opened:
            opened[0].close()
        else:
            pq.write_table(pa.table({"value": pa.nulls(0, pa.binary())}), file)

    return write, finish


WRITERS: Mapping[str, Callable[[IO[bytes]], tuple[Writer, Callable[[], None]]]] = {
    "csv": _csv,
    "jsonl": _lines,
    "parquet": _parquet,
}
"""For each file format, a function that begins a file and returns two functions.

The first writes an Arrow batch from ``poll_arrow``, the second finishes the file. Both
raise OSError if the disk fails."""
