"""The input of every benchmark: lines of real logs, made unique.

The lines come from ``--input FILE`` (plain or gzip), or from ``../shared/data`` beside the
repository, or from the source of Python's library. They compress as logs do.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).parent.parent.parent
BESIDE = ROOT.parent / "shared" / "data"
LINES_MAX = 200_000
LIBRARY_FILES = 400


class Lines:
    """Produces any number of lines; the same input gives the same lines in every run."""

    def __init__(self, given: Path | None = None) -> None:
        self._lines, self.source = _read(given)

    def whole(self, count: int) -> list[bytes]:
        """Return ``count`` complete lines, each with its number in front."""
        endless = itertools.cycle(self._lines)
        return [b"%d %s" % (number, line) for number, line in zip(range(count), endless)]

    def sized(self, count: int, size: int) -> list[bytes]:
        """Return ``count`` values of ``size`` bytes each: a number and log text."""
        pieces = self._pieces(size - 9)
        return [b"%08x %s" % (number, piece) for number, piece in zip(range(count), pieces)]

    def array(self, count: int) -> pa.Array:
        """Return the lines of ``whole`` as an Arrow array of binary values."""
        return pa.array(self.whole(count), pa.binary())

    def _pieces(self, size: int) -> Iterator[bytes]:
        """Yield pieces of the input for ever; each pass over it cuts at other positions."""
        text = self._text
        for shift in itertools.count():
            at = shift * 37 % size
            while at + size <= len(text):
                yield text[at : at + size]
                at += size

    @functools.cached_property
    def _text(self) -> bytes:
        return b" ".join(self._lines)


def _read(given: Path | None) -> tuple[list[bytes], str]:
    if given is None:
        beside = sorted(BESIDE.glob("*.log.gz")) if BESIDE.is_dir() else []
        given = beside[0] if beside else None
    if given is None:
        return _library(), "lines of Python's own library"
    opening = gzip.open if given.suffix == ".gz" else open
    with opening(given, "rb") as file:
        lines = [line.rstrip(b"\r\n") for line in itertools.islice(file, LINES_MAX)]
    lines = [line for line in lines if line]
    if not lines:
        raise SystemExit(f"--input {given}: no lines in it")
    return lines, given.name


def _library() -> list[bytes]:
    folder = Path(sysconfig.get_path("stdlib"))
    lines: list[bytes] = []
    for path in sorted(folder.glob("*.py"))[:LIBRARY_FILES]:
        lines += [line.rstrip() for line in path.read_bytes().splitlines() if line.strip()]
    return lines[:LINES_MAX]
