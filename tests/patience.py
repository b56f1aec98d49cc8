"""Waiting for what has no event: a cluster, Spark and other processes take their own time.

A test that passes waits no longer than what it waits for takes; the limit is for one that fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
"""Absurdly long on an idle machine, and little for a test on a busy one."""
LOOK_S = 0.01


def until(call: Callable[[], Any], good: Callable[[Any], Any] = bool, *, what: str = "") -> Any:
    """Call again until the result is good; the result. ``what``: said where it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not good(result := call()):
        assert time.monotonic() < deadline, f"{what or 'still'}: {result!r}"
        time.sleep(LOOK_S)
    return result
