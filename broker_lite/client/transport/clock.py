"""The clock of all deadlines in the client."""

from __future__ import annotations

import time


def monotonic_ms() -> float:
    """Return the monotonic clock's milliseconds."""
    return time.monotonic() * 1000.0
