"""Adapters (``RowClient``) for clients that run as programs.

These are kcat, Go clients, clients for Node, and Kafka's console producer and consumer.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path

from broker_lite.local.zookeeper import find_java
from support.client_programs import JAVA, NODE
from support.client_rows import CODECS, WAIT_S, Header, Row, RowClient


def run(command: list[str], stdin: bytes = b"", folder: Path | None = None) -> bytes:
    """Run a program; return its stdout. Fail unless its exit code is 0."""
    done = subprocess.run(
        command, input=stdin, capture_output=True, check=False, timeout=WAIT_S, cwd=folder
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def is_text(row: Row) -> bool:
    """Return whether a line of text can hold a row: ASCII, nothing empty, no null header."""
    parts = [row.key, row.value, *(value for _, value in row.headers)]
    given = [part for part in parts if part is not None]
    is_whole = all(value is not None for _, value in row.headers)
    return is_whole and all(part.isascii() and part.strip(b"\0") for part in given)


class Kcat(RowClient):
    """kcat, whose input is a line for each record.

    All lines of one call have the same headers, and kcat sets the timestamps.
    """

    name = "kcat"

    def __init__(self, servers: str, program: str) -> None:
        super().__init__(servers)
        self._kcat = [program, "-b", servers]

    def writable(self, rows: list[Row]) -> list[Row]:
        return [row._replace(timestamp_ms=None) for row in rows if is_text(row)]

    def seen(self, row: Row) -> Row:
        """Return a row as kcat prints it.

        kcat prints a null header as NULL, and a binary header up to its first zero byte.
        """
        headers = tuple(
            (name, b"NULL" if value is None else value.split(b"\0")[0])
            for name, value in row.headers
        )
        return row._replace(headers=headers)

    def write(self, topic: str, rows: list[Row], codec: str) -> None:
        for headers, alike in itertools.groupby(rows, key=lambda row: row.headers):
            lines = [b"%s:%s\n" % (row.key or b"", row.value or b"") for row in alike]
            options = [w for name, value in headers for w in ("-H", f"{name}={text(value)}")]
            into = ["-P", "-t", topic, "-p", "0", "-K:", "-Z", "-z", codec, *options]
            run([*self._kcat, *into], b"".join(lines))

    def read(self, topic: str, start: int, count: int) -> list[Row]:
        tp = ["-C", "-t", topic, "-p", "0", "-o", str(start), "-c", str(count), "-q"]
        out = run([*self._kcat, *tp, "-f", "%K %S %T %h\n%k%s\n"])
        rows, at = [], 0
        while at < len(out):
            # The printed headers end at a newline; they contain no other newline.
            end = out.index(b"\n", at)
            key, value, time, headers = out[at:end].split(b" ", 3)
            at = end + 1
            parts: list[bytes | None] = []
            for length in (int(key), int(value)):
                parts.append(None if length < 0 else out[at : at + length])
                at += max(length, 0)
            assert out[at : at + 1] == b"\n"
            at += 1
            rows.append(Row(parts[0], parts[1], pairs(headers, b"="), int(time)))
        return rows


class Lines(RowClient):
    """A test program with a client library. Rows are lines of JSON, with bytes in base64.

    The program reads rows from stdin with ``write SERVERS TOPIC CODEC``, and prints rows with
    ``read SERVERS TOPIC START COUNT``.
    """

    command: list[str]
    folder: Path | None = None

    def write(self, topic: str, rows: list[Row], codec: str) -> None:
        lines = [
            json.dumps(
                {
                    "key": encoded(row.key),
                    "value": encoded(row.value),
                    "headers": [[name, encoded(value)] for name, value in row.headers],
                    "ms": row.timestamp_ms,
                }
            )
            for row in rows
        ]
        run([*self.command, "write", self.servers, topic, codec],
            "\n".join(lines).encode(), self.folder)  # fmt: skip

    def read(self, topic: str, start: int, count: int) -> list[Row]:
        tp = ["read", self.servers, topic, str(start), str(count)]
        found = map(json.loads, run([*self.command, *tp], folder=self.folder).splitlines())
        return [
            Row(
                decoded(row["key"]),
                decoded(row["value"]),
                tuple((name, decoded(value)) for name, value in row["headers"]),
                row["ms"],
            )
            for row in found
        ]


class GoProgram(Lines):
    """The test program in go/ with the Go client ``name``."""

    def __init__(self, servers: str, name: str, program: str) -> None:
        super().__init__(servers)
        self.name, self.command = name, [program]


class Kafkajs(Lines):
    """kafkajs. Its headers are a map: it groups headers of equal name. None has a null value."""

    name = "kafkajs"

    def __init__(self, servers: str, folder: Path) -> None:
        super().__init__(servers)
        self.command, self.folder = ["node", str(NODE / "rows.mjs")], folder

    def writable(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if all(value is not None for _, value in row.headers)]


class Platformatic(Lines):
    """platformatic, a newer client for Node. Its codec zstd requires Node 22.15."""

    name = "platformatic"

    def __init__(self, servers: str, folder: Path) -> None:
        super().__init__(servers)
        self.command, self.folder = ["node", str(NODE / "platformatic-rows.mjs")], folder
        has_zstd = run(["node", "-p", "!!require('zlib').zstdCompressSync"]).strip() == b"true"
        self.codecs = CODECS if has_zstd else CODECS[:-1]


class Console(RowClient):
    """Kafka's console producer, which sets the timestamps, and Kafka's console consumer."""

    name = "java"

    def __init__(self, servers: str, class_path: str) -> None:
        super().__init__(servers)
        log = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
        jvm = [find_java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", log]
        self._tools = [*jvm, "-cp", class_path]

    def writable(self, rows: list[Row]) -> list[Row]:
        return [row._replace(timestamp_ms=None) for row in rows if is_text(row)]

    def write(self, topic: str, rows: list[Row], codec: str) -> None:
        lines = []
        for row in rows:
            headers = b",".join(
                name.encode() + b":" + (value or b"") for name, value in row.headers
            )
            parts = (headers or None, row.key, row.value)
            lines.append(b"\t".join(b"<null>" if part is None else part for part in parts))
        reading = ("parse.key=true", "parse.headers=true", "null.marker=<null>")
        options = [word for option in reading for word in ("--reader-property", option)]
        into = ["--topic", topic, "--compression-codec", codec, *options]
        tool = "org.apache.kafka.tools.ConsoleProducer"
        run([*self._tools, tool, "--bootstrap-server", self.servers, *into], b"\n".join(lines))

    def read(self, topic: str, start: int, count: int) -> list[Row]:
        printed = ("print.timestamp=true", "print.headers=true", "print.key=true",
                   "null.literal=<null>")  # fmt: skip
        options = [word for option in printed for word in ("--formatter-property", option)]
        tp = ["--topic", topic, "--partition", "0", "--offset", str(start)]
        tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        command = [*self._tools, tool, "--bootstrap-server", self.servers, *tp]
        out = run([*command, "--max-messages", str(count), *options])
        rows = []
        for line in out.split(b"\n")[:count]:
            time, headers, key, value = line.split(b"\t")
            found = () if headers == b"NO_HEADERS" else pairs(headers, b":")
            ms = int(time.removeprefix(b"CreateTime:"))
            rows.append(Row(nullable(key), nullable(value), found, ms))
        return rows


def text(data: bytes | None) -> str:
    return (data or b"").decode()


def nullable(data: bytes) -> bytes | None:
    return None if data == b"<null>" else data


def pairs(data: bytes, separator: bytes) -> tuple[Header, ...]:
    """Parse headers as kcat and Kafka's consumer print them, with commas between headers."""
    if not data:
        return ()
    split = [part.split(separator, 1) for part in re.split(b",", data)]
    return tuple((name.decode(), nullable(value)) for name, value in split)


def encoded(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def decoded(data: str | None) -> bytes | None:
    return None if data is None else b64decode(data)
