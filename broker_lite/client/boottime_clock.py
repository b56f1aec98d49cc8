"""A monotonic clock that continues while the machine is suspended, for group members' leases.

A lease is the limited time after a member's last heartbeat in which its consumer may return
records; then other members take over its partitions. Those members do not wait while this machine
is suspended, but Linux's ``time.monotonic`` stops then. Any thread may read the clock."""

from __future__ import annotations

import time

CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The system clock that continues in suspend: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS."""


def lease_ms() -> float:
    """Return the time in milliseconds since an arbitrary start, including time in suspend."""
    return time.clock_gettime(CLOCK) * 1000.0
