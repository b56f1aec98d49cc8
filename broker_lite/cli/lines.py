"""What ``logbus produce`` reads: lines, JSON envelopes or tables, as Arrow tables to send.

Lines are taken as bytes, whatever their encoding, in chunks as large as the pipe has at the moment:
a slow ``tail -f`` is passed on at once, a file in pieces of a megabyte. A last line without its end
counts as a line.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from broker_lite.client.arrays import binary_of
from broker_lite.errors import InvalidSchemaError
from broker_lite.record.arrow import HEADERS_TYPE, TIMESTAMP_TYPE

CHUNK_BYTES = 1 << 20
TABLE_ROWS = 50_000
COLUMNS = ("key", "value", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class LineRule:
    """How a line becomes a record. ``key_delimiter`` splits the key off; ``null_empty`` makes an
    empty value a tombstone."""

    key_delimiter: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    null_empty: bool = False


def tables(path: Path | None, form: str, rule: LineRule) -> Iterator[pa.Table]:
    """The records of one source, ``None`` being stdin, as tables of COLUMNS or some of them."""
    if form == "parquet" and path is None:
        raise click.UsageError("parquet cannot be read from a pipe; name the file")
    try:
        yield from _tables(path, form, rule)
    except pa.ArrowInvalid as error:
        raise InvalidSchemaError(f"{path or 'stdin'} cannot be read as {form}: {error}") from None


def _tables(path: Path | None, form: str, rule: LineRule) -> Iterator[pa.Table]:
    if form == "parquet":
        for batch in pq.ParquetFile(path).iter_batches(batch_size=TABLE_ROWS):
            yield _known_columns(pa.Table.from_batches([batch]))
    elif form == "arrow":
        with pa.ipc.open_stream(sys.stdin.buffer if path is None else str(path)) as reader:
            for batch in reader:
                yield _known_columns(pa.Table.from_batches([batch]))
    else:
        for lines in _line_chunks(path):
            yield _from_json(lines) if form == "jsonl" else _from_lines(lines, rule)


def form_of(path: Path | None, form: str) -> str:
    """The form of a source: as told, else by the file's ending, else lines."""
    if form != "auto" or path is None:
        return "lines" if form == "auto" else form
    return {".parquet": "parquet", ".arrow": "arrow", ".arrows": "arrow"}.get(path.suffix, "lines")


def _line_chunks(path: Path | None) -> Iterator[list[bytes]]:
    if path is not None and path.suffix == ".gz":
        with gzip.open(path, "rb") as packed:
            yield from _split(iter(lambda: packed.read(CHUNK_BYTES), b""))
        return
    source = 0 if path is None else os.open(path, os.O_RDONLY)
    try:
        yield from _split(iter(lambda: os.read(source, CHUNK_BYTES), b""))
    finally:
        if path is not None:
            os.close(source)


def _split(chunks: Iterator[bytes]) -> Iterator[list[bytes]]:
    rest: list[bytes] = []
    for chunk in chunks:
        lines = chunk.split(b"\n")
        if len(lines) > 1:
            lines[0] = b"".join((*rest, lines[0]))
            rest = [lines.pop()]
            yield lines
        else:
            rest.append(chunk)
    last = b"".join(rest)
    if last:
        yield [last]


def _from_lines(lines: list[bytes], rule: LineRule) -> pa.Table:
    values: list[bytes | None] = list(lines)
    columns: dict[str, pa.Array] = {}
    if rule.key_delimiter is not None:
        parts = [line.partition(rule.key_delimiter) for line in lines]
        # A line without the delimiter is a value without a key, not a key without a value.
        keys = [key if found else None for key, found, _ in parts]
        values = [value if found else key for key, found, value in parts]
        columns["key"] = binary_of(keys)
    elif rule.key is not None:
        columns["key"] = binary_of([rule.key] * len(lines))
    if rule.null_empty:
        values = [value or None for value in values]
    columns["value"] = binary_of(values)
    if rule.headers:
        columns["headers"] = pa.array([list(rule.headers)] * len(lines), HEADERS_TYPE)
    return pa.table(columns)


def _from_json(lines: list[bytes]) -> pa.Table:
    """Envelopes as ``consume -o jsonl`` prints them: key, value, headers and timestamp_ms count."""
    rows = []
    for line in lines:
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise InvalidSchemaError(f"not a JSON object: {line[:80]!r}") from None
        if not isinstance(rows[-1], dict):
            raise InvalidSchemaError(f"not a JSON object: {line[:80]!r}")
    columns = {
        "key": binary_of([_bytes(row.get("key")) for row in rows]),
        "value": binary_of([_bytes(row.get("value")) for row in rows]),
    }
    if any("timestamp_ms" in row for row in rows):
        stamps = pa.array([row.get("timestamp_ms") for row in rows], pa.int64())
        columns["timestamp"] = stamps.cast(TIMESTAMP_TYPE)
    if any(row.get("headers") for row in rows):
        columns["headers"] = pa.array(
            [[(key, _bytes(value)) for key, value in row.get("headers") or ()] for row in rows],
            HEADERS_TYPE,
        )
    return pa.table(columns)


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, dict) and set(value) == {"$b64"}:
        return base64.b64decode(value["$b64"])
    if isinstance(value, str):
        return value.encode("utf-8")
    return json.dumps(value, ensure_ascii=False).encode("utf-8")


def _known_columns(table: pa.Table) -> pa.Table:
    names = [name for name in COLUMNS if name in table.column_names]
    if "value" not in names:
        raise InvalidSchemaError(
            f"a table needs a column 'value' (and may have key, timestamp, headers); this one has "
            f"{', '.join(table.column_names)}"
        )
    return table.select(names)
