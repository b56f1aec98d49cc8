"""``LoopShell``: sends requests and runs operations on an asyncio or uvloop event loop.

It uses the same ``BrokerConnection`` as ``reactor.Reactor``. Call all methods on the loop's
thread. The loop must support ``add_reader``, which only Windows' Proactor loop does not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from broker_lite.client.client_config import security_of_environment
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.connection import BrokerConnection, unresolved
from broker_lite.client.transport.connections import Connections
from broker_lite.client.transport.steps import Operation, Send, Timer, spawn
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import ClosedError, LogbusError
from broker_lite.model import Endpoint

T = TypeVar("T")


class LoopShell:
    """Sends the requests of producers, consumers and operations on the running event loop."""

    def __init__(self, client_id: str, security: ClientSecurity | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._connections = Connections(client_id, security or security_of_environment())
        self._watched: dict[BrokerConnection, tuple[int, bool]] = {}
        self._touched: set[BrokerConnection] = set()
        self._flush_handle: asyncio.Handle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._lookups: set[asyncio.Task[None]] = set()
        self._runs: set[asyncio.Future[Any]] = set()
        self._is_closed = False

    def now_ms(self) -> float:
        return monotonic_ms()

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation (a generator of requests). Return its result, or raise its error.

        If the call is cancelled, the operation sends no further request. ``close`` makes running
        and later calls raise ClosedError."""
        if self._is_closed:
            operation.close()
            raise _closed()
        future: asyncio.Future[T] = self.loop.create_future()
        self._runs.add(future)

        def done(result: T | LogbusError) -> None:
            if future.done():
                return
            if isinstance(result, LogbusError):
                future.set_exception(result)
            else:
                future.set_result(result)

        try:
            spawn(self, operation, done)
            return await future
        except (asyncio.CancelledError, ClosedError):
            operation.close()
            raise
        finally:
            self._runs.discard(future)

    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        if self._is_closed:
            self.call_soon(partial(on_answer, _closed()))
            return
        connection, is_new = self._connections.request(send, self.now_ms(), on_answer)
        if is_new:
            task = self.loop.create_task(self._connect(connection))
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)
        self._touch(connection)
        self._set_deadline()

    async def _connect(self, connection: BrokerConnection) -> None:
        host, port = connection.endpoint
        try:
            if connection.fetches_token:
                await self.loop.run_in_executor(None, connection.prepare)
            addresses = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except LogbusError as error:
            connection.close(error)
        except (OSError, UnicodeError) as error:
            connection.close(unresolved(connection.endpoint, error))
        else:
            if not connection.closed:
                connection.connect(list(addresses))
        self._watch(connection)

    def later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self.loop.call_later(max(0.0, delay_ms) / 1000.0, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon(callback)

    def disconnect(self, endpoint: Endpoint, lane: str = "") -> None:
        connection = self._connections.disconnect(endpoint, lane)
        if connection is not None:
            self._watch(connection)

    def _touch(self, connection: BrokerConnection) -> None:
        """Schedule a write at the end of this loop iteration. It sends all requests queued by
        then."""
        self._touched.add(connection)
        if self._flush_handle is None:
            self._flush_handle = self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_handle = None
        while self._touched:
            connection = self._touched.pop()
            connection.flush()
            self._watch(connection)

    def _watch(self, connection: BrokerConnection) -> None:
        descriptor = -1 if connection.closed else connection.fileno()
        known, writes = self._watched.get(connection, (-1, False))
        if known >= 0 and known != descriptor:
            # Unregister the old descriptor, unless another connection has its number by now.
            if not any(
                row[0] == known for other, row in self._watched.items() if other is not connection
            ):
                # Ignore an error: closing the old socket has already removed it from epoll.
                for remove in (self.loop.remove_reader, self.loop.remove_writer):
                    with contextlib.suppress(OSError):
                        remove(known)
            del self._watched[connection]
            writes = False
        if descriptor < 0:
            self._watched.pop(connection, None)
            if connection.closed:
                self._connections.forget(connection)
            return
        if known != descriptor:
            self.loop.add_reader(descriptor, self._on_readable, connection)
        if connection.wants_write != writes or known != descriptor:
            if connection.wants_write:
                self.loop.add_writer(descriptor, self._on_writable, connection)
            elif writes:
                self.loop.remove_writer(descriptor)
        self._watched[connection] = (descriptor, connection.wants_write)

    def _on_readable(self, connection: BrokerConnection) -> None:
        connection.on_readable()
        if connection.closed:
            # Unregister the descriptor now: the next socket that this process opens gets its
            # number, and would be taken for this connection.
            self._watch(connection)
        self._touch(connection)

    def _on_writable(self, connection: BrokerConnection) -> None:
        connection.on_writable()
        self._watch(connection)

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            return
        due = self._connections.next_deadline_ms()
        if due != float("inf"):
            delay = min(1000.0, max(1.0, due - self.now_ms()))
            self._deadline = self.loop.call_later(delay / 1000.0, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        for connection in self._connections.expire(self.now_ms()):
            self._watch(connection)
        self._set_deadline()

    def close(self) -> None:
        """Close all connections. Requests in flight and later ones fail with ClosedError."""
        self._is_closed = True
        for future in self._runs:
            if not future.done():
                future.set_exception(_closed())
        for task in list(self._lookups):
            task.cancel()
        ended = list(self._connections)
        self._connections.close()
        for connection in ended:
            self._watch(connection)
        for handle in (self._deadline, self._flush_handle):
            if handle is not None:
                handle.cancel()
        self._deadline = self._flush_handle = None


def _closed() -> ClosedError:
    return ClosedError("the client was closed; create another one")


def resolve_with(future: asyncio.Future[Any], callback: Callable[[], Any]) -> None:
    """Complete ``future``, if it is not done, with the result or error of ``callback()``."""
    if future.done():
        return
    try:
        future.set_result(callback())
    except LogbusError as error:
        future.set_exception(error)
