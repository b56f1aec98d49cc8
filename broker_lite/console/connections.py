"""HTTP connections with a time limit for the arrival of each request.

uvicorn has no such limit, so silent connections would use up its ``limit_concurrency``.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 30.0
"""Seconds within which a whole request must arrive: the first one from the opening of the
connection, a later one from its first byte."""


class ConsoleConnection(H11Protocol):
    """A connection that closes if a request takes longer than ``REQUEST_S`` to arrive.

    The time limit does not run while the console answers a request, or between two requests, for
    which uvicorn's ``timeout_keep_alive`` is the limit."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def data_received(self, data: bytes) -> None:
        self._begin()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _end(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
