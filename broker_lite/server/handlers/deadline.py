"""Limit how long an administrative request waits for ZooKeeper or for followers.

An operation that timed out may still take effect; the metadata show the client whether it did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from broker_lite.errors import RequestTimedOutError

WAIT_MS_MIN = 1000
"""Minimum timeout (ms) of an administrative request.

With a shorter timeout, operations that are about to succeed would fail."""
WAIT_MS_MAX = 60_000
"""Maximum timeout (ms) of an administrative request."""
WAIT_MS = 30_000
"""Timeout (ms) of an administrative request that has no timeout field."""

T = TypeVar("T")


async def within(timeout_ms: int, work: Awaitable[T], whom: str = "ZooKeeper") -> T:
    """Wait for ``work`` and return its result.

    After ``timeout_ms``, raise RequestTimedOutError. Its message names ``whom``, the part of the
    cluster that did not confirm the change in time."""
    wait_ms = min(max(timeout_ms, WAIT_MS_MIN), WAIT_MS_MAX)
    try:
        return await asyncio.wait_for(work, wait_ms / 1000)
    except TimeoutError:
        raise RequestTimedOutError(
            f"{whom} did not confirm the change within {wait_ms} ms; it may still take effect"
        ) from None
