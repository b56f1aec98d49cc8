"""Poll for a condition of other processes, such as brokers and Spark, which send no events.

A passing test waits only until the condition holds. A failing test waits until the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
"""Seconds after which a wait fails. An idle machine needs far less than a busy one."""
CHECK_S = 0.01


def until(
    call: Callable[[], Any],
    good: Callable[[Any], Any] = bool,
    *,
    what: str | Callable[[], object] = "",
    within_s: float = PATIENCE_S,
) -> Any:
    """Call ``call`` until ``good`` accepts its result; return the result.

    The failure message begins with ``what``, or with the result of the function ``what``.
    """
    deadline = time.monotonic() + within_s
    while not good(result := call()):
        if time.monotonic() >= deadline:
            said = what() if callable(what) else what
            raise AssertionError(f"{said or 'still'}: {result!r}")
        time.sleep(CHECK_S)
    return result
