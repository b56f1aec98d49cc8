"""Driver only: SIGTERM, by which Spark ends the runner of a source.

It becomes the end of the program, so that what is open is closed, but for the moments in which that
is being done. Only the main thread can; a handler that somebody else has set is left alone.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


def stop_on_terminate() -> None:
    """Spark ends the runner with SIGTERM and does not call ``stop()``: let it come to that."""
    if threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None)
    ):
        signal.signal(signal.SIGTERM, _leave)


@contextlib.contextmanager
def termination_waits() -> Iterator[None]:
    """Spark closes the connection too, so SIGTERM may find the runner already at its end: what is
    left to be done takes two seconds at most, and would not be done at all."""
    ours = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) is _leave
    )
    if ours:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, _leave)


def _leave(_: int, __: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
