"""A shell that runs the client's operations in an event loop of virtual time.

A *shell* does the I/O that the client's code decides on: it sends requests, and has the clock and
the timers.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from broker_lite.client.transport.steps import Operation, Send, Timer, spawn
from broker_lite.errors import LogbusError
from broker_lite.model import Endpoint


class LoopShell(ABC):
    """The clock and timers of a client in the simulated event loop; subclasses answer the client's
    requests.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def now_ms(self) -> float:
        return self.loop.time() * 1000

    def later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self.loop.call_later(delay_ms / 1000, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon(callback)

    def disconnect(self, endpoint: Endpoint, lane: str = "") -> None:
        raise AssertionError("this shell has no connections to close")

    @abstractmethod
    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        """Send a request. Call ``on_answer`` with the response as a Python value, or with an
        error.
        """

    async def run(self, operation: Operation[Any]) -> Any:
        """Run an operation; return its result or raise its error."""
        future: asyncio.Future[Any] = self.loop.create_future()
        spawn(self, operation, future.set_result)
        found = await future
        if isinstance(found, LogbusError):
            raise found
        return found
