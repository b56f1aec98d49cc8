"""The clock of leases, which continues during suspend.

A group member may return records for a limited time after its last heartbeat. Other members then
take over, by the clocks of running machines. A suspended machine must count that time too;
``time.monotonic`` on Linux does not. All lease checks read this clock; pure code receives its
values. Any thread.
"""

from __future__ import annotations

import time

CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's clock that counts suspend; on macOS, CLOCK_MONOTONIC counts it."""


def lease_ms() -> float:
    """Return the time in milliseconds since an arbitrary start, including time in suspend."""
    return time.clock_gettime(CLOCK) * 1000.0
