"""Requests of connections that have not logged in. Loop thread.

Thousands of clients may connect at once, for example after a restart of their application. Each
request of a login takes about 0.25 ms of the loop. A turn of the loop therefore begins at most
``PER_TURN`` of them, so that clients that are logged in wait for a few milliseconds at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from broker_lite.errors import LogbusError
from broker_lite.server.network.connection import ResponseSlot
from broker_lite.server.network.context import RequestContext

PER_TURN = 8
"""Maximum requests before a login that one turn of the loop begins: 2 ms of processor time."""

Start = Callable[[RequestContext, memoryview, ResponseSlot], None]
"""Starts a request. Raises LogbusError to close its connection."""


class LoginQueue:
    """The waiting requests, in the order of their arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Start) -> None:
        self._loop = loop
        self._start = start
        self._waiting: deque[tuple[RequestContext, memoryview, ResponseSlot]] = deque()

    def add(self, request: RequestContext, frame: memoryview, reply: ResponseSlot) -> None:
        """Start the request in the next turn of the loop, or after the requests that wait."""
        if not self._waiting:
            self._loop.call_soon(self._run)
        self._waiting.append((request, frame, reply))

    def _run(self) -> None:
        for _ in range(min(PER_TURN, len(self._waiting))):
            request, frame, reply = self._waiting.popleft()
            if not reply.is_open:
                reply.release()
                continue
            try:
                self._start(request, frame, reply)
            except LogbusError as error:
                reply.refuse(error.message)
        if self._waiting:
            self._loop.call_soon(self._run)
