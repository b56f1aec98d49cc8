"""A timer for the earliest of many deadlines, on the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_lite.server.clock import Clock

NEVER = 1 << 62
"""The time of an alarm that is not set, in monotonic milliseconds."""


class Alarm:
    """A timer that calls ``ring`` once, at the earliest of the times that were set."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = NEVER
        self._is_closed = False

    def set(self, at_ms: int) -> None:
        """Call ``ring`` at ``at_ms`` (monotonic time), unless an earlier time is set already."""
        if at_ms >= self._at_ms or self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(at_ms - self._clock.monotonic_ms(), 0) / 1000
        self._at_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._due)

    def close(self) -> None:
        """Cancel the timer. Later calls of ``set`` do nothing."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer, self._at_ms = None, NEVER
        self._ring()
