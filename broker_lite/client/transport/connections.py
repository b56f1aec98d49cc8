"""``Connections``: the connections of one I/O thread, one for each broker address and lane.

A lane is the name of a purpose, such as "produce", so that requests of different purposes do not
wait for each other. The owner (``reactor.Reactor`` or ``loop.LoopShell``) opens the connections
and watches their sockets. After a connection was closed, the next request makes a new one. Only the
owner's thread uses this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from broker_lite.client.transport.connection import BrokerConnection
from broker_lite.client.transport.steps import Send
from broker_lite.config.client_security import NO_SECURITY, ClientSecurity
from broker_lite.errors import ClosedError
from broker_lite.model import Endpoint


class Connections:
    """The connections of one I/O thread, by broker address and lane (name of a purpose), with the
    same client id and security."""

    def __init__(self, client_id: str, security: ClientSecurity = NO_SECURITY) -> None:
        self._client_id = client_id
        self._security = security
        self._by_place: dict[tuple[Endpoint, str], BrokerConnection] = {}

    def __iter__(self) -> Iterator[BrokerConnection]:
        """Iterate over a copy of the connections, because some may be removed meanwhile."""
        return iter(list(self._by_place.values()))

    def request(
        self, send: Send, now_ms: float, on_answer: Callable[[Any], None]
    ) -> tuple[BrokerConnection, bool]:
        """Queue a request. Return its connection, and whether the connection is new, so that the
        caller must open it.

        Raises InvalidRequestError for a request that cannot be encoded."""
        place = send.endpoint, send.lane
        connection = self._by_place.get(place)
        is_new = connection is None or connection.closed
        if connection is None or is_new:
            connection = BrokerConnection(send.endpoint, self._client_id, self._security)
        connection.request(send.exchange, now_ms + send.timeout_ms, on_answer)
        if is_new:
            self._by_place[place] = connection
        return connection, is_new

    def get(self, endpoint: Endpoint, lane: str) -> BrokerConnection | None:
        """Return the connection to ``endpoint`` for the purpose ``lane``, even a closed one; None
        if there is none."""
        return self._by_place.get((endpoint, lane))

    def disconnect(self, endpoint: Endpoint, lane: str) -> BrokerConnection | None:
        """Close and return the connection to ``endpoint`` for the purpose ``lane``; return None if
        there is none.

        Its requests in flight fail with ClosedError."""
        connection = self._by_place.get((endpoint, lane))
        if connection is not None:
            connection.close(ClosedError(f"the client closed its connection to {endpoint}"))
        return connection

    def next_deadline_ms(self) -> float:
        """Return the time (ms) at which ``expire`` must be called; infinite without requests in
        flight."""
        return min(
            (connection.next_deadline_ms() for connection in self._by_place.values()),
            default=float("inf"),
        )

    def expire(self, now_ms: float) -> list[BrokerConnection]:
        """Close the connections on which a response is overdue, and return them."""
        late = [each for each in self if each.next_deadline_ms() <= now_ms]
        for connection in late:
            connection.expire(now_ms)
        return late

    def forget(self, connection: BrokerConnection) -> None:
        """Remove a closed connection."""
        for place, known in list(self._by_place.items()):
            if known is connection:
                del self._by_place[place]

    def close(self) -> None:
        """Close all connections. Requests in flight fail with ClosedError."""
        for connection in self:
            connection.close(ClosedError("the client was closed"))

    def drop(self) -> None:
        """Close the sockets' descriptors without calling any callback. Used in a forked child
        process, and after a crash of the I/O thread."""
        for connection in self:
            connection.drop()
        self._by_place.clear()
