"""The only reader of time in the broker. Called on every thread; holds no state.

Wall time stamps records and expires segments; monotonic time measures waits, so that a clock that
is set back never stalls a fetch.
"""

from __future__ import annotations

import time


class Clock:
    """Milliseconds since 1970 and milliseconds that only grow."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds from some point in the past; never goes back."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        """The same in microseconds."""
        return time.monotonic_ns() // 1_000
