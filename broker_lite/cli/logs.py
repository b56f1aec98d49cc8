"""``logbus logs``: the logs of the processes that ``logbus up`` started."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import click

from broker_lite.cli import output, running
from broker_lite.cli.numbers import Whole
from broker_lite.cli.up import default_directory
from broker_lite.cli.up_report import LOG
from broker_lite.errors import NoClusterError

CHECK_SECONDS = 0.2
"""Seconds between two checks for new lines."""
CHUNK_BYTES = 64 << 10
"""Bytes of one read of a log file."""
WORSE = tuple(
    f"{mark}{level}{mark}".encode()
    for level in ("WARN", "WARNING", "ERROR", "CRITICAL", "FATAL")
    for mark in (" ", '"')
)
"""The level names from WARNING on, as they stand in a line of a log: between spaces in text, and in
quotes in JSON. ZooKeeper writes WARN."""


@click.command()
@click.argument("processes", nargs=-1, metavar="[BROKER|zookeeper|up]…")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    default=20,
    show_default=True,
    type=Whole(0),
    help="Number of last lines.",
)
@click.option("-w", "--warnings", is_flag=True, help="Only warnings and errors.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the cluster. Default: the last one that 'up' started.",
)
@output.output_option
def logs(
    processes: tuple[str, ...],
    follow: bool,
    lines: int,
    warnings: bool,
    directory: Path | None,
    form: str | None,
) -> None:
    """Print the logs of brokers, of ZooKeeper and of 'up' itself, whether they run or not.

    PROCESSES are broker ids, 'zookeeper' or 'up'. Default: all. With several, each line begins with
    the name of its process. The command reads only logs of clusters that 'up' started on this
    machine. A systemd unit logs to the journal: journalctl -u logbus-broker. With -o each line is a
    row with the name of its process.

    \b
    Examples:
      logbus logs
      logbus logs 0 -n 100
      logbus logs -f --warnings
      logbus logs zookeeper --dir ./cluster
    """
    is_text = form in (None, "table")
    if follow and form not in (None, "table", "jsonl"):
        raise click.UsageError(f"--follow never ends, and -o {form} needs an end; give -o jsonl")
    folder = directory or _directory()
    found = _files(folder)
    if not found:
        raise NoClusterError(f"there are no logs in {folder}; logbus status names the clusters")
    chosen = {_name(word): found.get(_name(word)) for word in processes} if processes else found
    for name, path in chosen.items():
        if path is None:
            raise click.UsageError(
                f"there is no log of {name!r}; there are: {', '.join(found) or 'none'}"
            )
    has_prefix = is_text and len(chosen) > 1
    tails = {
        name: LogTail(path, f"{name} | ".encode() if has_prefix else b"", warnings)
        for name, path in chosen.items()
        if path is not None
    }
    for tail in tails.values():
        tail.skip_to_last(lines)
    while True:
        if is_text:
            for tail in tails.values():
                for line in tail.new_lines():
                    click.echo(line, nl=False)
        else:
            output.show(_rows(tails), form, ("process", "line"))
        if not follow:
            return
        output.raise_if_unread()
        time.sleep(CHECK_SECONDS)


def _rows(tails: Mapping[str, LogTail]) -> Iterator[dict[str, str]]:
    for name, tail in tails.items():
        for line in tail.new_lines():
            yield {"process": name, "line": line.rstrip(b"\n").decode("utf-8", "replace")}


def _directory() -> Path:
    """Return the folder of the cluster that ``logbus up`` started last, else the default folder of
    a cluster. Raises NoClusterError if neither has logs."""
    try:
        return Path(running.find(None)["directory"])
    except NoClusterError:
        folder = default_directory()
        if not _files(folder):
            raise
        return folder


def _files(directory: Path) -> dict[str, Path]:
    brokers = sorted(
        directory.glob("broker-*/broker.log"), key=lambda path: (len(path.parent.name), path)
    )
    files = {path.parent.name: path for path in brokers}
    others = {"zookeeper": directory / "zookeeper" / "zookeeper.log", "up": directory / LOG}
    return files | {name: path for name, path in others.items() if path.exists()}


def _name(word: str) -> str:
    return f"broker-{word}" if word.isdecimal() else word


class LogTail:
    """Reads the lines of a log file, and follows its rotation. Each returned line begins with
    ``prefix``."""

    def __init__(self, path: Path, prefix: bytes = b"", only_warnings: bool = False) -> None:
        self._path = path
        self._prefix = prefix
        self._only_warnings = only_warnings
        self._file: BinaryIO = path.open("rb")
        self._rest = b""

    def skip_to_last(self, count: int) -> None:
        """Skip to the last ``count`` lines (or warnings, if only those are printed)."""
        begins: deque[int] = deque(maxlen=max(count, 1))
        position = 0
        for line in self._file:
            if not self._only_warnings or is_warning(line):
                begins.append(position)
            position += len(line)
        self._file.seek(begins[0] if begins and count else position)

    def new_lines(self) -> Iterator[bytes]:
        """Yield the complete lines that were written since the last call. If the log was rotated,
        yield the lines of the old file and then those of the new one."""
        yield from self._read()
        if self._was_replaced():
            yield from self._read()
            self._file.close()
            self._file, self._rest = self._path.open("rb"), b""
            yield from self._read()

    def _read(self) -> Iterator[bytes]:
        while chunk := self._file.read(CHUNK_BYTES):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                if not self._only_warnings or is_warning(line):
                    yield self._prefix + line + b"\n"

    def _was_replaced(self) -> bool:
        """Return whether the path now names another file than the open one, or the open file was
        truncated."""
        try:
            now = self._path.stat()
        except FileNotFoundError:
            # A log rotation has renamed the old file, and not yet created the new one.
            return False
        own = os.fstat(self._file.fileno())
        is_other = (now.st_dev, now.st_ino) != (own.st_dev, own.st_ino)
        return is_other or now.st_size < self._file.tell()


def is_warning(line: bytes) -> bool:
    """Return whether a line of a log, in text or JSON, is a warning or worse."""
    return any(mark in line for mark in WORSE)
