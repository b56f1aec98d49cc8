"""Limit how many requests of unauthenticated connections one turn of the event loop starts.

Thousands of clients may connect at once, for example after a restart of their application. Each
login request takes about 0.25 ms on the event-loop thread. One turn therefore starts at most
``PER_TURN`` login requests, so that logged-in clients wait a few milliseconds at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from broker_lite.errors import LogbusError
from broker_lite.server.network.connection import ResponseSlot
from broker_lite.server.network.context import RequestContext

PER_TURN = 8
"""Maximum number of login requests that one turn of the event loop starts; they take about 2 ms of
processor time.
"""

Start = Callable[[RequestContext, memoryview, ResponseSlot], None]
"""A callback that starts a request. It raises LogbusError to close the connection."""


class LoginQueue:
    """A queue of login requests. ``start`` is called for each of them, in order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Start) -> None:
        self._loop = loop
        self._start = start
        self._waiting: deque[tuple[RequestContext, memoryview, ResponseSlot]] = deque()

    def add(self, request: RequestContext, frame: memoryview, reply: ResponseSlot) -> None:
        """Queue the request. It starts in a later turn of the loop, after all earlier requests."""
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
