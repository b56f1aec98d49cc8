"""How long an administrative request may wait for ZooKeeper, or followers: as its client does.

Used by the handlers that change metadata or delete records. What was asked may still be done
afterwards, as the error says; the client finds out by asking for the metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from broker_lite.errors import RequestTimedOutError

WAIT_MS_MIN = 1000
"""A client that gives no time to speak of gets this: less would refuse what is about to be done."""
WAIT_MS_MAX = 60_000

T = TypeVar("T")


async def within(timeout_ms: int, work: Awaitable[T], whom: str = "ZooKeeper") -> T:
    """The result of ``work``; raises RequestTimedOutError where ``whom`` takes longer."""
    wait_ms = min(max(timeout_ms, WAIT_MS_MIN), WAIT_MS_MAX)
    try:
        return await asyncio.wait_for(work, wait_ms / 1000)
    except TimeoutError:
        raise RequestTimedOutError(
            f"{whom} did not confirm it within {wait_ms} ms; it may yet take effect"
        ) from None
