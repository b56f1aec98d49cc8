"""Find the log lines that the demo sends: those of a user's file, or those of the machine and of
the demo itself.

Lines are raw bytes without line ends. The demo leaves out blank lines, and files under /var/log
that this user cannot read.
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
"""Maximum bytes of a log line. A longer line, which only binary files have, becomes several."""
NUL, NUL_SHOWN = b"\x00", "\N{REPLACEMENT CHARACTER}".encode()
JOURNAL_LINES_MAX = 50_000
"""Maximum number of lines that the demo reads from the systemd journal."""
_LOGS = Path("/var/log")
_NOT_LINES = {".journal", ".journal~"}
_NO_LOGS = {"wtmp", "btmp", "lastlog", "faillog", "README", "eipp.log.xz"}
"""Files under /var/log that are not logs: login tables, a README, apt's package list."""
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


class LineSource(NamedTuple):
    """The lines of one file or of the systemd journal.

    The demo prints ``name`` (of the file or the journal) and ``note``. The note is a remark about
    the lines, such as how many had NUL bytes; it may be empty.
    """

    name: str
    lines: list[bytes]
    note: str = ""


ReadLines = Callable[[int], list[bytes]]
"""A function that reads at most the given number of lines."""


def from_file(path: Path, lines_max: int) -> list[LineSource]:
    """Return the lines of a user's file, plain or compressed.

    Raises OSError or EOFError if the file cannot be read. NUL bytes, which a crash leaves in a log,
    become replacement characters.
    """
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            lines = _take(file, lines_max)
    except (lzma.LZMAError, zlib.error) as error:
        raise OSError(f"{path} cannot be decompressed: {error}") from None
    count = sum(NUL in line for line in lines)
    note = f"{count:,} of them with NUL bytes, each now \N{REPLACEMENT CHARACTER}" if count else ""
    if not lines:
        note = "the file has only blank lines"
    return [LineSource(path.name, [line.replace(NUL, NUL_SHOWN) for line in lines], note)]


def from_machine(lines_max: int) -> list[LineSource]:
    """Return at most ``lines_max`` lines that this user may read, of the systemd journal and
    /var/log."""
    line_sources: list[LineSource] = []
    left = lines_max
    for name, take in _machine_logs():
        lines = take(left)
        left -= len(lines)
        if lines:
            line_sources.append(LineSource(name, lines))
        if not left:
            break
    return line_sources


def _machine_logs() -> Iterator[tuple[str, ReadLines]]:
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
    # A file with NUL bytes is no text log: some files under /var/log, such as wtmp, are binary.
    return [] if any(NUL in line for line in lines) else lines


def _journal(lines_max: int) -> list[bytes]:
    if shutil.which("journalctl") is None:
        return []
    journalctl = subprocess.run(
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
    return [line for line in journalctl.stdout.split(b"\n") if line.strip()]


def _take(file: IO[bytes], lines_max: int) -> list[bytes]:
    lines: list[bytes] = []
    while len(lines) < lines_max and (line := file.readline(LINE_BYTES_MAX)):
        stripped = line.rstrip(b"\r\n")
        if stripped.strip():
            lines.append(stripped)
    return lines


class FileTail:
    """A reader of new lines in files that other processes are writing, such as the demo's logs."""

    def __init__(self, paths: Callable[[], list[Path]]) -> None:
        self._paths = paths
        self._positions: dict[Path, int] = {}

    def lines(self, lines_max: int) -> list[bytes]:
        """Return at most ``lines_max`` log lines that were written since the previous call."""
        new_lines: list[bytes] = []
        for path in self._paths():
            if len(new_lines) >= lines_max:
                break
            new_lines += self._new_lines(path, lines_max - len(new_lines))
        return new_lines

    def _new_lines(self, path: Path, lines_max: int) -> list[bytes]:
        new_lines: list[bytes] = []
        try:
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                # Leave an incomplete line for the next call.
                while len(new_lines) < lines_max and (line := file.readline()).endswith(b"\n"):
                    self._positions[path] = file.tell()
                    if line.strip():
                        new_lines.append(line.rstrip(b"\r\n"))
        except OSError:
            return new_lines
        return new_lines
