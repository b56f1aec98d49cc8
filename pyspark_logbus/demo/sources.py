"""The lines that the demo ships: a user's file, or the machine's own logs and the demo's own.

A source yields raw lines without their ends, blank ones left out. What cannot be read of the
machine's logs is passed over: which ones a user may read differs from machine to machine. Nothing
is read beyond the lines that are wanted.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

LINE_BYTES_MAX = 1 << 20
"""Longer lines are no log lines; a binary file looks like one."""
NUL, NUL_SHOWN = b"\x00", "\N{REPLACEMENT CHARACTER}".encode()
JOURNAL_LINES_MAX = 50_000
_LOGS = Path("/var/log")
_NOT_LINES = {".journal", ".journal~"}
_NO_LOGS = {"wtmp", "btmp", "lastlog", "faillog", "README", "eipp.log.xz"}
"""Tables of logins, a text about logs, and apt's copy of the package list."""
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


class Source(NamedTuple):
    """Some lines, the name under which they are listed, and what there is to say of them."""

    name: str
    lines: list[bytes]
    note: str = ""


Take = Callable[[int], list[bytes]]
"""Reads at most so many lines."""


def from_file(path: Path, lines_max: int) -> list[Source]:
    """A user's file, plain or packed. Raises OSError or EOFError if it cannot be read.

    NUL bytes, as a crash leaves them in a log, are shown as such and not taken for a binary file.
    """
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            lines = _take(file, lines_max)
    except (lzma.LZMAError, zlib.error) as error:
        raise OSError(f"{path} cannot be unpacked: {error}") from None
    count = sum(NUL in line for line in lines)
    note = f"{count:,} of them with NUL bytes, each now \N{REPLACEMENT CHARACTER}" if count else ""
    if not lines:
        note = "it has no line that is not blank"
    return [Source(path.name, [line.replace(NUL, NUL_SHOWN) for line in lines], note)]


def from_machine(lines_max: int) -> list[Source]:
    """What this user may read of /var/log and of the journal, at most ``lines_max`` in all."""
    found: list[Source] = []
    left = lines_max
    for name, take in _machine_logs():
        lines = take(left)
        left -= len(lines)
        if lines:
            found.append(Source(name, lines))
        if not left:
            break
    return found


def _machine_logs() -> Iterator[tuple[str, Take]]:
    yield "journal", _journal
    for path in sorted(_LOGS.rglob("*")) if _LOGS.is_dir() else []:
        if path.name in _NO_LOGS or path.suffix in _NOT_LINES or not path.is_file():
            continue
        yield str(path.relative_to(_LOGS)), partial(_log, path)


def _log(path: Path, lines_max: int) -> list[bytes]:
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            lines = _take(file, lines_max)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return []
    # What holds NUL bytes under /var/log is a table, not text.
    return [] if any(NUL in line for line in lines) else lines


def _journal(lines_max: int) -> list[bytes]:
    if shutil.which("journalctl") is None:
        return []
    asked = subprocess.run(
        [
            "journalctl",
            "--no-pager",
            "-q",
            "-o",
            "short-iso",
            "-n",
            str(min(lines_max, JOURNAL_LINES_MAX)),
        ],
        capture_output=True,
        check=False,
    )
    return [line for line in asked.stdout.split(b"\n") if line.strip()]


def _take(file: IO[bytes], lines_max: int) -> list[bytes]:
    lines: list[bytes] = []
    while len(lines) < lines_max and (line := file.readline(LINE_BYTES_MAX)):
        stripped = line.rstrip(b"\r\n")
        if stripped.strip():
            lines.append(stripped)
    return lines


class Tail:
    """New whole lines of files that are still being written, such as the demo's own logs."""

    def __init__(self, paths: Callable[[], list[Path]]) -> None:
        self._paths = paths
        self._positions: dict[Path, int] = {}

    def lines(self, lines_max: int) -> list[bytes]:
        """What was written since the last call, at most ``lines_max`` lines."""
        found: list[bytes] = []
        for path in self._paths():
            if len(found) >= lines_max:
                break
            found += self._new_lines(path, lines_max - len(found))
        return found

    def _new_lines(self, path: Path, lines_max: int) -> list[bytes]:
        found: list[bytes] = []
        try:
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                # A line without its end is still being written: it comes with the next call.
                while len(found) < lines_max and (line := file.readline()).endswith(b"\n"):
                    self._positions[path] = file.tell()
                    if line.strip():
                        found.append(line.rstrip(b"\r\n"))
        except OSError:
            return found
        return found
