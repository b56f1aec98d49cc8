"""Handling of SIGTERM, with which Spark ends the runner of a source. Driver only.

The signal ends the program, so that open resources are closed. Only the main thread can install the
handler; one that the user installed stays.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


def stop_on_terminate() -> None:
    """Exit on SIGTERM: Spark ends the runner with it and does not call ``stop()``."""
    if threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None)
    ):
        signal.signal(signal.SIGTERM, _leave)


@contextlib.contextmanager
def termination_waits() -> Iterator[None]:
    """Delay SIGTERM during a shutdown that takes at most two seconds: Spark closes the
    connection, too, so the runner may already be closing."""
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
