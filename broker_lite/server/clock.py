"""The time, for all parts of the broker. Any thread may use a clock.

Wall time is for timestamps of records and retention. Monotonic time is for waits and timeouts, so
that setting the machine's clock back delays no fetch."""

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
