"""Limit the number of repeated warnings in a broker's log, and the size of the log file.

A client can cause a warning with every request. ``RepeatLimit`` passes a repeated line once a
minute and counts the others. ``OutputFile`` rotates the file of stdout and stderr. Any thread may
log."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from pathlib import Path

WINDOW_S = 60.0
LINES_MAX = 100
"""Maximum number of different lines from one log statement in a minute."""
FILE_BYTES_MAX = 16 << 20
FILES_KEPT = 3
"""Number of rotated files besides the current one; broker.log.1 is the newest."""


class RepeatLimit(logging.Filter):
    """A log filter that passes equal warnings and errors once a minute.

    Of one log statement, it passes at most ``LINES_MAX`` different lines in a minute. The next
    minute's first line tells how many were left out. If the text has a number that differs in each
    line, such as that of a connection, the statement passes ``extra={"about": …}``, which is
    compared instead of the text."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, int], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        about = getattr(record, "about", None) or record.getMessage()
        statement = record.pathname, record.lineno
        with self._lock:
            window = self._windows.get(statement)
            left_out = 0
            if window is None or not 0 <= record.created - window.began_s < WINDOW_S:
                left_out = 0 if window is None else window.left_out
                window = self._windows[statement] = _Window(record.created)
            if about in window.said or len(window.said) == LINES_MAX:
                window.left_out += 1
                return False
            window.said.add(about)
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} such lines were left out before)"
            record.args = ()
        return True


class _Window:
    """The lines from one log statement since ``began_s``, a wall time in seconds."""

    __slots__ = ("began_s", "left_out", "said")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.said: set[str] = set()
        self.left_out = 0


class OutputFile(logging.StreamHandler):  # type: ignore[type-arg]
    """A log handler for a process whose stdout and stderr both go to the file ``path``, opened by
    the parent.

    A full file is renamed to ``path``.1, and stdout and stderr go to a new file. So the newest file
    also has the text that Python writes to stderr when it crashes."""

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
        super().__init__()
        self._path = path
        self._bytes_max = bytes_max

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if os.fstat(2).st_size > self._bytes_max:
            # On a full disk the rotation fails. The old file then stays in use, and the next line
            # tries again.
            with contextlib.suppress(OSError):
                self._rotate()

    def _rotate(self) -> None:
        new = Path(f"{self._path}.new")
        output = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if self._path.exists():
                keep_rotated(self._path, self._path)
            new.replace(self._path)
            os.dup2(output, 1)
            os.dup2(output, 2)
        finally:
            os.close(output)


def keep_rotated(path: Path, full: Path) -> None:
    """Rename the file ``full`` to ``path``.1, and each file rotated earlier to the next number.

    The oldest of ``FILES_KEPT`` files is overwritten."""
    for number in range(FILES_KEPT - 1, 0, -1):
        newer = Path(f"{path}.{number}")
        if newer.exists():
            newer.replace(f"{path}.{number + 1}")
    full.replace(f"{path}.1")


def rotate_foreign(path: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
    """Rotate the output file of another process that cannot open a new one itself, such as a JVM.

    The content is copied, then the file truncated; lines written in between are lost. On a full
    disk the file stays, and the next call tries again."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > bytes_max:
            copy = Path(f"{path}.new")
            try:
                shutil.copyfile(path, copy)
                keep_rotated(path, copy)
            finally:
                copy.unlink(missing_ok=True)
            os.truncate(path, 0)
