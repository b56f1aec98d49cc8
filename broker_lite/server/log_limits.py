"""Bounds of a broker's log: how often a warning is repeated, and how large the log file becomes.

Clients can cause a warning with every request. ``RepeatLimit`` passes a line once a minute and
counts the others. ``OutputFile`` begins another file when the one behind stdout and stderr is full.
Any thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path

WINDOW_S = 60.0
LINES_MAX = 100
"""Different lines of one log statement in a window."""
FILE_BYTES_MAX = 16 << 20
FILES_KEPT = 3
"""Besides the one that is written: broker.log.1 is the newest of them."""


class RepeatLimit(logging.Filter):
    """Passes warnings and errors that say the same once a minute, at most ``LINES_MAX`` different
    ones of a log statement. The first line of the next minute gives the number left out.

    Lines say the same if their text is the same, or the ``about`` that the statement gave
    (``extra={"about": …}``) where the text holds a number of the connection or request.
    """

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
    """What one log statement said since ``began_s``, seconds of the wall clock."""

    __slots__ = ("began_s", "left_out", "said")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.said: set[str] = set()
        self.left_out = 0


class OutputFile(logging.StreamHandler):  # type: ignore[type-arg]
    """Logs to stderr, which the parent has opened as the file at ``path``, like stdout.

    A full file is renamed to ``path``.1, and stdout and stderr go on in a new one, so what Python
    itself writes there when it crashes is in the newest file.
    """

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
        super().__init__()
        self._path = path
        self._bytes_max = bytes_max

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if os.fstat(2).st_size > self._bytes_max:
            # On a full disk the file is written further; the next line tries again.
            with contextlib.suppress(OSError):
                self._rotate()

    def _rotate(self) -> None:
        names = [self._path, *(Path(f"{self._path}.{n + 1}") for n in range(FILES_KEPT))]
        new = Path(f"{self._path}.new")
        output = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            for older, newer in zip(names[:0:-1], names[-2::-1]):
                if newer.exists():
                    newer.replace(older)
            new.replace(self._path)
            os.dup2(output, 1)
            os.dup2(output, 2)
        finally:
            os.close(output)
