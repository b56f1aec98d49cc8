"""The clock of leases, which continues during suspend.

A group member may return records only for a limited time after its last heartbeat, because other
members then take over its partitions. A machine in suspend must count this time too. Linux's
``time.monotonic`` does not count suspend, so all checks of leases use this clock. Any thread may
read it.
"""

from __future__ import annotations

import time

CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that counts suspend: CLOCK_BOOTTIME on Linux, and CLOCK_MONOTONIC on macOS."""


def lease_ms() -> float:
    """Return the time in milliseconds since an arbitrary start, including time in suspend."""
    return time.clock_gettime(CLOCK) * 1000.0
