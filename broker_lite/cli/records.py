"""The printers of ``logbus consume``: one for each output format."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

import click
import pyarrow as pa
import pyarrow.parquet as pq

from broker_lite.cli.escapes import unescaped
from broker_lite.cli.output import iso
from broker_lite.client.consuming.arrow_rows import ROW_SCHEMA_WITH_HEADERS
from broker_lite.record.arrow import TIMESTAMP_TYPE
from broker_lite.record.envelope import envelope

_FIELDS = "tpokvsThSK%"


class Printer(Protocol):
    """Prints batches of records to stdout. ``close`` writes the end of the output, such as the
    footer of a Parquet file."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def printer(form: str | None, template: str | None, value_form: str) -> Printer:
    """Return the printer for ``-o`` and ``-f``. Raises click.UsageError for options that exclude
    each other."""
    if template is not None:
        if form not in (None, "raw"):
            raise click.UsageError("-f and -o both set the format; leave -o out")
        return LinePrinter(_template(template), "")
    if form in ("arrow", "parquet"):
        if sys.stdout.isatty():
            raise click.UsageError(f"{form} is not for a terminal; send it to a file or a pipe")
        return ArrowPrinter() if form == "arrow" else ParquetPrinter()
    if form in ("json", "jsonl"):
        return LinePrinter(lambda row: envelope(row, value_form), "\n")
    return ValuePrinter()


class ValuePrinter:
    """Prints values as bytes, one a line; a null value is an empty line."""

    def __init__(self) -> None:
        self._out: BinaryIO = sys.stdout.buffer

    def write(self, batch: pa.RecordBatch) -> None:
        values = batch.column("value")
        if values.null_count:
            values = values.fill_null(b"")
        self._out.write(b"\n".join(values.to_pylist()) + b"\n")
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class LinePrinter:
    """Prints for each record the text that ``render`` returns, followed by ``ending``."""

    def __init__(self, render: Callable[[dict[str, Any]], str], ending: str) -> None:
        self._render = render
        self._ending = ending

    def write(self, batch: pa.RecordBatch) -> None:
        stamps = batch.column("timestamp").cast(TIMESTAMP_TYPE).cast(pa.int64())
        rows = batch.drop_columns(["timestamp"]).to_pylist()
        lines = []
        for row, stamp in zip(rows, stamps.to_pylist(), strict=True):
            row["timestamp_ms"] = -1 if stamp is None else stamp
            lines.append(self._render(row) + self._ending)
        data = "".join(lines).encode("utf-8", "surrogateescape")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def close(self) -> None:
        sys.stdout.buffer.flush()


class ArrowPrinter:
    """Prints an Arrow IPC stream of all columns."""

    def __init__(self) -> None:
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = pa.ipc.new_stream(sys.stdout.buffer, batch.schema)
        self._writer.write_batch(batch)
        sys.stdout.buffer.flush()

    def close(self) -> None:
        writer = self._writer or pa.ipc.new_stream(sys.stdout.buffer, ROW_SCHEMA_WITH_HEADERS)
        writer.close()
        sys.stdout.buffer.flush()


class ParquetPrinter:
    """Writes a Parquet file of all columns."""

    def __init__(self) -> None:
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(sys.stdout.buffer, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        writer = self._writer or pq.ParquetWriter(sys.stdout.buffer, ROW_SCHEMA_WITH_HEADERS)
        writer.close()
        sys.stdout.buffer.flush()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "surrogateescape")


def _template(template: str) -> Callable[[dict[str, Any]], str]:
    """Compile a format string into a function that formats a record. The letters are kcat's: %t
    topic, %p partition, %o offset, %k key, %s or %v value, %T time, %h headers, %K and %S lengths
    of key and value in bytes (-1: null), %% a percent sign."""
    named = re.search(r"\{(topic|partition|offset|key|value|timestamp|headers)\}", template)
    if named:
        raise click.BadParameter(
            f"{named[0]} is not a field: write %t topic, %p partition, %o offset, %k key, "
            "%v value, %T time, %h headers",
            param_hint="--format",
        )
    text = unescaped(template)
    for letter in re.findall(r"%(.?)", text.replace("%%", "")):
        if letter not in _FIELDS or not letter:
            raise click.BadParameter(
                f"%{letter} names no field; write one of %t %p %o %k %v %T %h %K %S %%",
                param_hint="--format",
            )

    def render(row: dict[str, Any]) -> str:
        headers = ",".join(f"{h['key']}={_text(h['value'])}" for h in row.get("headers") or ())
        fields = {
            "t": row["topic"],
            "p": str(row["partition"]),
            "o": str(row["offset"]),
            "k": _text(row["key"]),
            "v": _text(row["value"]),
            "s": _text(row["value"]),
            "T": iso(row["timestamp_ms"]) or "-",
            "h": headers,
            "K": str(-1 if row["key"] is None else len(row["key"])),
            "S": str(-1 if row["value"] is None else len(row["value"])),
            "%": "%",
        }
        return re.sub(r"%(.)", lambda found: fields[found[1]], text)

    return render
