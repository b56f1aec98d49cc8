"""Read the input of ``logbus produce`` (lines, JSON records or tables) as Arrow tables.

Lines are bytes of any encoding. A read of a pipe does not wait until a whole chunk has arrived, so
the lines of a slow ``tail -f`` are sent at once. A last line without a newline is a record, too."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from broker_lite.cli import json_lines
from broker_lite.client.arrays import binary_of, headers_of
from broker_lite.errors import InvalidSchemaError, MessageTooLargeError

CHUNK_BYTES = 1 << 20
"""Maximum bytes of one read of lines."""
TABLE_ROWS = 50_000
"""Maximum rows of one read of a Parquet file."""
COLUMNS = ("key", "value", "timestamp", "headers")
"""Columns of a table to send; only ``value`` is required."""
PASSED_OVER = ("topic", "partition", "offset", "timestampType")
"""Columns that ``consume -o arrow`` and ``-o parquet`` print, and ``produce`` ignores."""
ARROW_FILE = b"ARROW1\0\0"
"""First bytes of an Arrow IPC file. (An Arrow IPC stream begins with four bytes of 0xff.)"""
MAGICS = {b"PAR1": "parquet", ARROW_FILE: "arrow", b"\xff\xff\xff\xff": "arrow"}
"""The format of a file by its first bytes."""
FEATHER_V1 = b"FEA1"
"""First bytes of a Feather file of version 1, which pyarrow no longer reads."""
EXPORTED = re.compile(rb'\{"topic": "[^"]+", "partition": \d+, "offset": \d+, ')
"""First bytes of a file that ``export`` or ``consume -o jsonl`` wrote."""
EXPORTED_BYTES = 512
"""Number of first bytes that determine a file's format. A topic's name, which ``EXPORTED`` matches,
has at most 249 characters."""
SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
}
"""The format of a file by its suffix."""
JSON_GROWTH = 6
r"""Maximum bytes of JSON for one byte of a value, as in \u0000: a JSON line may be this many times
as long as a plain line."""

OnShare = Callable[[float], None]
"""Receives the share of a file that has been read, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class LineRule:
    """The rule by which a line becomes a record.

    ``key_delimiter`` ends the key within the line; ``key`` is a key for every record. With
    ``null_empty`` an empty value becomes a tombstone. With ``takes_binary`` a line may contain NUL
    bytes. ``bytes_max`` is the maximum length of a line."""

    key_delimiter: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    null_empty: bool = False
    takes_binary: bool = True
    bytes_max: int = 8 << 20


@dataclass(slots=True)
class LinePosition:
    """The position up to which a source has been read. ``line`` is the number of the first line
    that ``tables`` has not yielded; 0 for a format without lines."""

    line: int = 0


def tables(
    path: Path | None,
    form: str,
    rule: LineRule,
    on_share: OnShare | None = None,
    position: LinePosition | None = None,
) -> Iterator[pa.Table]:
    """Yield the records of one file (``path`` None: stdin) as tables. Each table has those of
    COLUMNS that the file has.

    ``form`` is the format. Before each table, ``position`` is updated and, for a regular file,
    ``on_share`` receives the share of the file read so far. A bad line raises InvalidSchemaError,
    after the records before it were yielded."""
    if form == "parquet" and path is None:
        raise click.UsageError("parquet cannot be read from a pipe; name the file")
    try:
        yield from _tables(
            path, form, rule, on_share or (lambda _: None), position or LinePosition()
        )
    except (pa.ArrowInvalid, gzip.BadGzipFile, zlib.error, EOFError) as error:
        kind = "gzip" if path is not None and path.suffix == ".gz" else form
        raise InvalidSchemaError(
            f"{path or 'stdin'} cannot be read as {kind}: {str(error).rstrip('.')}. Repair the "
            "input, or name its format with --input"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(f"{path or 'stdin'} cannot be read: {reason}") from None


def _tables(
    path: Path | None, form: str, rule: LineRule, on_share: OnShare, position: LinePosition
) -> Iterator[pa.Table]:
    if form == "parquet":
        rows, parquet = 0, pq.ParquetFile(path)
        for batch in parquet.iter_batches(batch_size=TABLE_ROWS):
            rows += len(batch)
            on_share(rows / parquet.metadata.num_rows)
            yield _known_columns(pa.Table.from_batches([batch]), path)
    elif form == "arrow":
        if path is not None and _first_bytes(path).startswith(FEATHER_V1):
            raise InvalidSchemaError(
                f"{path} is a Feather file of version 1, which logbus does not read. Write version "
                "2, the default of pyarrow.feather.write_feather"
            )
        if path is not None and _first_bytes(path).startswith(ARROW_FILE):
            with pa.ipc.open_file(str(path)) as file:
                for index in range(file.num_record_batches):
                    on_share((index + 1) / file.num_record_batches)
                    yield _known_columns(pa.Table.from_batches([file.get_batch(index)]), path)
            return
        source, report = _source(path, on_share)
        with pa.ipc.open_stream(source) as reader:
            for batch in reader:
                report()
                yield _known_columns(pa.Table.from_batches([batch]), path)
    elif form == "csv":
        types = dict.fromkeys(("key", "value", "headers"), pa.binary())
        # As in PostgreSQL's COPY, an empty field is null, and empty text is "".
        options = pyarrow.csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        source, report = _source(path, on_share)
        # A row must fit into a block, so read a file in large blocks. Read a pipe in small ones,
        # because no row is returned before its block is full.
        block_size = CHUNK_BYTES if path is None else max(CHUNK_BYTES, 2 * rule.bytes_max)
        reading = pyarrow.csv.ReadOptions(block_size=block_size)
        parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)
        with pyarrow.csv.open_csv(source, reading, parsing, options) as csv:
            for batch in csv:
                report()
                cure = "; --input lines sends each line, the header too, as a record"
                yield _csv_records(_known_columns(pa.Table.from_batches([batch]), path, cure), path)
    else:
        yield from _tables_of_lines(path, form, rule, on_share, position)


def _tables_of_lines(
    path: Path | None, form: str, rule: LineRule, on_share: OnShare, position: LinePosition
) -> Iterator[pa.Table]:
    name, number = str(path or "stdin"), 1
    position.line = number
    bytes_max = rule.bytes_max * (JSON_GROWTH if form == "jsonl" else 1)
    for lines in _line_chunks(path, bytes_max, on_share):
        if number == 1 and not rule.takes_binary and any(b"\0" in line for line in lines):
            raise InvalidSchemaError(
                f"{name} is not text: a line holds a NUL byte. Name its format with "
                "--input; --input lines sends it line by line all the same"
            )
        if form == "jsonl":
            parsed = json_lines.parsed(lines, number, name)
            position.line = number + parsed.line_count
            yield parsed.records
            if parsed.error is not None:
                raise parsed.error
        else:
            position.line = number + len(lines)
            yield _from_lines(lines, rule)
        number += len(lines)


def _source(path: Path | None, on_share: OnShare) -> tuple[Any, Callable[[], None]]:
    """Return a binary file that pyarrow can read, and a function that calls ``on_share`` with the
    share of the file read so far.

    For standard input (``path`` None), the function does nothing."""
    if path is None:
        return sys.stdin.buffer, lambda: None
    file = pa.OSFile(str(path))
    report = _reporter(file, path, on_share)
    return (pa.CompressedInputStream(file, "gzip") if path.suffix == ".gz" else file), report


def _reporter(file: IO[bytes], path: Path, on_share: OnShare) -> Callable[[], None]:
    """Return a function that calls ``on_share`` with the share of an open file that has been read.
    For a pipe, whose size is unknown, the returned function does nothing."""
    size = path.stat().st_size
    return lambda: on_share(file.tell() / size) if size else None


def form_of(path: Path | None, form: str) -> str:
    """Return the format of a file: ``form``. For "auto", return the format of the file's first
    bytes, or else of its suffix, or else "lines"."""
    if form != "auto" or path is None:
        return "lines" if form == "auto" else form
    first = _first_bytes(path)
    for magic, kind in MAGICS.items():
        if first.startswith(magic):
            return kind
    if EXPORTED.match(first):
        return "jsonl"
    # The only supported compressed tables are .csv.gz files; other .gz files hold lines.
    name = path.with_suffix("") if path.name.lower().endswith(".csv.gz") else path
    return SUFFIXES.get(name.suffix.lower(), "lines")


def _first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file; none of a pipe, because reading would consume them."""
    if not path.is_file():
        return b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(EXPORTED_BYTES)
    return b""


def _line_chunks(path: Path | None, bytes_max: int, on_share: OnShare) -> Iterator[list[bytes]]:
    if path is None:
        yield from _split(iter(lambda: os.read(0, CHUNK_BYTES), b""), path, bytes_max)
        return
    # Open the file without a buffer. For a pipe, a read then returns the bytes that are there, and
    # does not wait for a full buffer.
    with path.open("rb", buffering=0) as file:
        report = _reporter(file, path, on_share)
        is_packed = path.suffix == ".gz"
        with gzip.open(file) if is_packed else contextlib.nullcontext(file) as source:
            for lines in _split(iter(lambda: source.read(CHUNK_BYTES), b""), path, bytes_max):
                report()
                yield lines


def _split(chunks: Iterator[bytes], path: Path | None, bytes_max: int) -> Iterator[list[bytes]]:
    rest: list[bytes] = []
    size, number = 0, 1
    for chunk in chunks:
        lines = chunk.split(b"\n")
        size += len(lines[0])
        if size > bytes_max:
            raise MessageTooLargeError(
                f"{path or 'stdin'} line {number}: longer than {bytes_max} bytes, which is more "
                "than a record may have (max.request.size); is it text with a line per record?"
            )
        if len(lines) > 1:
            number += len(lines) - 1
            lines[0] = b"".join((*rest, lines[0]))
            rest = [lines.pop()]
            size = len(rest[0])
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
        # A line without the delimiter is a value without a key.
        keys = [key if delimiter else None for key, delimiter, _ in parts]
        values = [value if delimiter else key for key, delimiter, value in parts]
        columns["key"] = binary_of(keys)
    elif rule.key is not None:
        columns["key"] = binary_of([rule.key] * len(lines))
    if rule.null_empty:
        values = [value or None for value in values]
    columns["value"] = binary_of(values)
    if rule.headers:
        columns["headers"] = headers_of([rule.headers] * len(lines))
    return pa.table(columns)


def _csv_records(table: pa.Table, path: Path | None) -> pa.Table:
    """Return the records of a CSV table, whose headers are JSON pairs, as ``export`` writes them.
    Raises InvalidSchemaError for headers of another form."""
    if "headers" not in table.column_names:
        return table
    index = table.column_names.index("headers")
    try:
        texts = table.column(index).to_pylist()
        rows = [json_lines.headers_of(json.loads(each)) if each else None for each in texts]
    except ValueError as error:
        raise InvalidSchemaError(
            f"{path or 'stdin'}: column 'headers' has no JSON pairs ({error}); write "
            '[["name", "value"]], or leave the column out'
        ) from None
    return table.set_column(index, "headers", headers_of(rows))


def _known_columns(table: pa.Table, path: Path | None, cure: str = "") -> pa.Table:
    names = table.column_names
    lost = [name for name in names if name not in COLUMNS and name not in PASSED_OVER]
    if "value" not in names or lost:
        raise InvalidSchemaError(
            f"{path or 'stdin'}: a table needs a column 'value' and may have key, timestamp and "
            f"headers; this one has {', '.join(names)}. Rename or leave out the others, which "
            f"would be lost{cure}"
        )
    return table.select([name for name in COLUMNS if name in names])
