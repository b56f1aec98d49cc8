"""The demo's output: progress that it redraws on a terminal, and plain lines in a file or pipe.

While the screen is open, the output of Spark's JVM and workers goes to a file. The screen writes to
the terminal through a duplicate of the original descriptor.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple, TextIO

from pyspark_logbus.demo.results import Count

_BAR_WIDTH = 28
_RESULTS_SHOWN = 8
_PLAIN_SECONDS = 2.0
_PLAIN_RESULTS = 4
_COLUMNS = 96


class Progress(NamedTuple):
    """The demo's totals: lines sent and to send, rows that the query read and wrote, its lag in
    records (None until it commits offsets), and its number of batches."""

    shipped: int
    total: int
    rows_read: int
    rows_written: int
    lag: int | None
    batches: int


class Screen:
    """The demo's output on the terminal. Only one thread may use a screen."""

    def __init__(self, stream: TextIO) -> None:
        """``stream`` is stdout or stderr."""
        number = os.dup(stream.fileno())
        self._out = os.fdopen(number, "w", encoding="utf-8", errors="replace")
        self._is_terminal = self._out.isatty()
        self._saved: tuple[int, int] | None = None
        self._drawn = 0
        self._last_plain = 0.0
        self._last_figures = ""
        self._recent: dict[tuple[str, str], Count] = {}

    def open(self, elsewhere: Path) -> None:
        """Redirect the output of this process and its children to the file ``elsewhere``."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = (os.dup(1), os.dup(2))
        with elsewhere.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)

    def close(self) -> None:
        """Restore stdout and stderr. A second call does nothing."""
        if self._saved is None:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in enumerate(self._saved, 1):
            os.dup2(saved, number)
            os.close(saved)
        self._saved = None

    def say(self, text: str = "") -> None:
        """Print a line once, above the redrawn progress."""
        self._drawn = 0
        print(text, file=self._out, flush=True)

    def draw(self, progress: Progress, changed: list[Count], *, force: bool = False) -> None:
        """Show the totals and the counts that changed last. Without a terminal, print at most every
        two seconds unless ``force``."""
        for count in reversed(changed):
            self._recent.pop(count[:2], None)
            self._recent[count[:2]] = count
        while len(self._recent) > _RESULTS_SHOWN:
            del self._recent[next(iter(self._recent))]
        if self._is_terminal:
            self._redraw(progress)
        elif force or time.monotonic() - self._last_plain >= _PLAIN_SECONDS:
            self._last_plain = time.monotonic()
            figures = _figures(progress)
            if figures != self._last_figures:
                print(figures, file=self._out)
            self._last_figures = figures
            for count in list(reversed(self._recent.values()))[:_PLAIN_RESULTS]:
                print(f"    {_result(count)}", file=self._out)
            self._recent.clear()
            self._out.flush()

    def _redraw(self, progress: Progress) -> None:
        lines = [_figures(progress), ""]
        lines += [f"    {_result(count)}" for count in reversed(self._recent.values())]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._out.write(up + "".join(f"\x1b[2K{line[:_COLUMNS]}\n" for line in lines))
        self._out.flush()
        self._drawn = len(lines)


def _figures(progress: Progress) -> str:
    """Return the progress line. Its bar shows the share of lines that the query has read."""
    share = min(1.0, progress.rows_read / progress.total) if progress.total else 1.0
    bar = ("#" * int(share * _BAR_WIDTH)).ljust(_BAR_WIDTH, ".")
    shipped = f"[{bar}] sent {progress.shipped:,}/{progress.total:,}"
    if not progress.rows_read and not progress.rows_written:
        return f"{shipped}; Spark starts its first batch …"
    # Omit the lag: it is unknown until the query has committed offsets.
    lag = "" if progress.lag is None else f"  lag {progress.lag:,}"
    return f"{shipped}  read {progress.rows_read:,}  written {progress.rows_written:,}{lag}"


def _result(count: Count) -> str:
    return f"{count.minute}  {count.kind:<14.14}  {count.lines:>8,}"
