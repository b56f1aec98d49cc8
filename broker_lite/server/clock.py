"""The broker's only source of time. Stateless; any thread may call it.

Wall time stamps records and expires segments. Monotonic time measures waits, so that setting the
clock back never delays a fetch.
"""

from __future__ import annotations

import time


class Clock:
    """A clock of wall time and monotonic time."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return wall time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return monotonic time in milliseconds since an arbitrary start."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        """Return monotonic time in microseconds."""
        return time.monotonic_ns() // 1_000
