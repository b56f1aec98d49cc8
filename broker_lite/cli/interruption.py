"""Handle Ctrl-C during a transfer of records. The first Ctrl-C ends a wait for input at once, but
lets a send finish, so that the command can report the number of acknowledged records.

A second Ctrl-C raises KeyboardInterrupt anywhere. Only the main thread, which receives Python's
signals, may use this module."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Interruption:
    """A context manager whose ``is_set`` is True after Ctrl-C in its block."""

    def __init__(self) -> None:
        self.is_set = False
        self._is_reading = False
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Interruption:
        # If SIGINT is ignored (a background process, nohup), leave it ignored.
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def next_of(self, source: Iterator[T]) -> T | None:
        """Return the next item; None at the end of the source or after Ctrl-C."""
        try:
            self._is_reading = True
            return None if self.is_set else next(source, None)
        except KeyboardInterrupt:
            return None
        finally:
            self._is_reading = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first, self.is_set = not self.is_set, True
        if self._is_reading or not is_first:
            raise KeyboardInterrupt
