"""Limit how many login requests start in one iteration of the event loop.

Thousands of clients may connect together, for example after a restart of their application. A
request before a login takes about 0.25 ms of the event loop's thread; the limit keeps the wait of
clients that have logged in at a few milliseconds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from broker_lite.errors import LogbusError
from broker_lite.server.network.connection import ResponseSlot
from broker_lite.server.network.context import RequestContext

PER_TURN = 8
"""Maximum login requests started in one iteration of the event loop; all take about 2 ms."""

Start = Callable[[RequestContext, memoryview, ResponseSlot], None]
"""Starts a request that came before its client's login; a LogbusError that it raises closes the
connection."""


class LoginQueue:
    """The queue of requests from clients that have not logged in.

    ``start`` is called with each request, in the order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Start) -> None:
        self._loop = loop
        self._start = start
        self._waiting: deque[tuple[RequestContext, memoryview, ResponseSlot]] = deque()

    def add(self, request: RequestContext, frame: memoryview, reply: ResponseSlot) -> None:
        """Queue a request; it starts in a later iteration of the event loop, after those queued
        before."""
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
