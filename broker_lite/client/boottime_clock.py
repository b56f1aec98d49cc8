"""The clock of leases. A member of a group may hand out for so long after its last heartbeat, and
others take over after that, by clocks of machines that are awake: so its own must not stand still
while its machine is suspended, as ``time.monotonic`` does on Linux.

Members and whoever asks whether their lease holds read this one; pure code is given its times. Any
thread.
"""

from __future__ import annotations

import time

CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's that counts sleep; macOS's CLOCK_MONOTONIC counts it."""


def lease_ms() -> float:
    """Milliseconds that never go back; to compare with each other only."""
    return time.clock_gettime(CLOCK) * 1000.0
