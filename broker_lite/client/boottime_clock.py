"""A monotonic clock that continues while the machine is suspended. Group members measure their
leases with it.

A group member's lease is the limited time after its last heartbeat in which it may return records.
Afterwards other members take over its partitions. The time in suspend counts too, but Linux's
``time.monotonic`` leaves it out. All checks of leases therefore use this clock. Any thread may read
it.
"""

from __future__ import annotations

import time

CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The system clock that continues in suspend: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS."""


def lease_ms() -> float:
    """Return the time in milliseconds since an arbitrary start, including time in suspend."""
    return time.clock_gettime(CLOCK) * 1000.0
