"""Handle SIGTERM, with which Spark ends the runner process of a source on the driver.

The handler exits through ``sys.exit``, so that ``finally`` blocks close open resources. Only the
main thread can install the handler, and only if the program has no handler of its own.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


def stop_on_terminate() -> None:
    """Install the handler of SIGTERM. Spark ends the runner process of a source by SIGTERM and does
    not call ``stop()``."""
    if threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None)
    ):
        signal.signal(signal.SIGTERM, _leave)


@contextlib.contextmanager
def termination_waits() -> Iterator[None]:
    """Ignore SIGTERM during the block. The block shuts down the source's process on the driver, in
    about ten seconds at most (``group_progress.CLOSE_S``).

    To end the process, Spark closes its connection, which starts the shutdown. Spark also sends
    SIGTERM, which may arrive during the shutdown.
    """
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
