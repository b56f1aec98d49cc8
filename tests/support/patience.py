"""Polls for a condition in other processes, such as brokers and Spark, which send no event.

A passing test waits only until the condition holds; a failing test waits until the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
"""Seconds until a wait fails: far more than an idle machine needs, for tests on a busy one."""
LOOK_S = 0.01


def until(call: Callable[[], Any], good: Callable[[Any], Any] = bool, *, what: str = "") -> Any:
    """Call ``call`` until ``good`` accepts its result, and return the result.

    ``what`` describes the condition in the failure message.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not good(result := call()):
        assert time.monotonic() < deadline, f"{what or 'still'}: {result!r}"
        time.sleep(LOOK_S)
    return result
