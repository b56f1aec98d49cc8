"""``Connections``: those of one shell, one to each endpoint and lane.

The shell opens them and watches their sockets. One that has ended is replaced by the next request
to its place, or forgotten when the shell hears of its end. For the shell's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from broker_lite.client.transport.connection import Connection
from broker_lite.client.transport.steps import Send
from broker_lite.errors import ClosedError
from broker_lite.model import Endpoint


class Connections:
    """``client_id`` is what brokers are told of who asks."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._by_place: dict[tuple[Endpoint, str], Connection] = {}

    def __iter__(self) -> Iterator[Connection]:
        """As they are now: they may end and be forgotten meanwhile."""
        return iter(list(self._by_place.values()))

    def request(
        self, send: Send, now_ms: float, on_answer: Callable[[Any], None]
    ) -> tuple[Connection, bool]:
        """Queue a request: on which connection, and whether that is new and has to be opened.
        Raises InvalidRequestError for what cannot be sent."""
        place = send.endpoint, send.lane
        connection = self._by_place.get(place)
        is_new = connection is None or connection.closed
        if connection is None or is_new:
            connection = Connection(send.endpoint, self._client_id)
        connection.request(send.exchange, now_ms + send.timeout_ms, on_answer)
        if is_new:
            self._by_place[place] = connection
        return connection, is_new

    def get(self, endpoint: Endpoint, lane: str) -> Connection | None:
        """The one that is there, open or not."""
        return self._by_place.get((endpoint, lane))

    def disconnect(self, endpoint: Endpoint, lane: str) -> Connection | None:
        """End a connection; what is under way on it fails with ClosedError."""
        connection = self._by_place.get((endpoint, lane))
        if connection is not None:
            connection.close(ClosedError(f"the connection to {endpoint} was given up"))
        return connection

    def next_deadline_ms(self) -> float:
        """When ``expire`` has something to do; infinite while nothing is under way."""
        return min(
            (connection.next_deadline_ms() for connection in self._by_place.values()),
            default=float("inf"),
        )

    def expire(self, now_ms: float) -> list[Connection]:
        """End those on which an answer is overdue; which those are."""
        late = [each for each in self if each.next_deadline_ms() <= now_ms]
        for connection in late:
            connection.expire(now_ms)
        return late

    def forget(self, connection: Connection) -> None:
        """It has ended."""
        for place, known in list(self._by_place.items()):
            if known is connection:
                del self._by_place[place]

    def close(self) -> None:
        """End all; requests under way fail with ClosedError."""
        for connection in self:
            connection.close(ClosedError("the client was closed"))

    def drop(self) -> None:
        """In a forked child: close the descriptors and forget what was under way."""
        for connection in self:
            connection.drop()
        self._by_place.clear()
