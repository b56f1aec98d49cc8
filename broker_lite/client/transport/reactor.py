"""``Reactor``: the shell (an object that sends requests) on a background thread with a selector.

A reactor runs the I/O-free logic of a producer or consumer. Other threads may only call
``call_soon``, ``wake`` and ``stop``. A forked child process closes the sockets that it inherits; it
cannot use the reactor."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from broker_lite.client.client_config import security_of_environment
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.connection import BrokerConnection, addresses_of
from broker_lite.client.transport.connections import Connections
from broker_lite.client.transport.steps import Send, Timer
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import LogbusError
from broker_lite.model import Endpoint

CALLBACKS_PER_TURN = 1000
"""Maximum number of callbacks that run before the reactor handles its sockets again."""


class _Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Reactor:
    """A background thread that sends requests, and runs timers and callbacks, for one client."""

    def __init__(self, client_id: str, name: str, security: ClientSecurity | None = None) -> None:
        self._connections = Connections(client_id, security or security_of_environment())
        self._watched: dict[BrokerConnection, tuple[int, int]] = {}
        self._touched: set[BrokerConnection] = set()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()
        self._calls: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_receive, self._wake_send = os.pipe()
        os.set_blocking(self._wake_receive, False)
        os.set_blocking(self._wake_send, False)
        # The lock keeps ``wake`` from writing to a closed pipe, whose number may belong to another
        # file. It is reentrant because a signal handler may call ``wake`` during ``wake``.
        self._wake_lock = threading.RLock()
        self._selector.register(self._wake_receive, selectors.EVENT_READ, None)
        self._asleep = False
        self._stopping = False
        self._on_crash: Callable[[BaseException], None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _reactors.add(self)

    def start(self, on_crash: Callable[[BaseException], None] | None = None) -> None:
        """Start the thread. ``on_crash`` receives an unexpected error that ends the thread."""
        self._on_crash = on_crash
        self._thread.start()

    def now_ms(self) -> float:
        return monotonic_ms()

    @property
    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    # Methods that any thread may call.

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._calls.append(callback)
        if self._asleep:
            self.wake()

    def wake(self) -> None:
        """Wake the reactor's thread, which waits for its sockets."""
        with (
            self._wake_lock,
            contextlib.suppress(BlockingIOError),
        ):  # A full pipe has already woken the thread.
            if self._wake_send >= 0:
                os.write(self._wake_send, b"\0")

    def stop(self, timeout_s: float | None = 10.0) -> None:
        """Stop the thread. Requests in flight fail with ClosedError."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive() and not self.is_own_thread:
            self._thread.join(timeout_s)

    # Methods that run on the reactor's thread.

    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        connection, is_new = self._connections.request(send, self.now_ms(), on_answer)
        if is_new:
            look_up = partial(self._look_up, connection)
            try:
                threading.Thread(target=look_up, name="logbus-connect", daemon=True).start()
            except RuntimeError:
                # No thread can start, for example while the interpreter shuts down: look the host
                # up on the reactor's thread.
                self._calls.append(look_up)
        self._touched.add(connection)

    def _look_up(self, connection: BrokerConnection) -> None:
        """Fetch the access token for the login and resolve the broker's host name.

        Runs on a thread of its own: both may block for long, while the reactor serves the other
        connections."""
        addresses: list[tuple[Any, ...]] | LogbusError
        try:
            connection.prepare()
            addresses = addresses_of(connection.endpoint)
        except LogbusError as error:
            addresses = error
        self.call_soon(partial(self._connect, connection, addresses))

    def _connect(
        self, connection: BrokerConnection, addresses: list[tuple[Any, ...]] | LogbusError
    ) -> None:
        if isinstance(addresses, LogbusError):
            connection.close(addresses)
        elif not connection.closed:
            connection.connect(addresses)
        self._touched.add(connection)

    def disconnect(self, endpoint: Endpoint, lane: str = "") -> None:
        """Close the connection to ``endpoint`` for the purpose ``lane``.

        Its requests in flight fail with ClosedError."""
        connection = self._connections.disconnect(endpoint, lane)
        if connection is not None:
            self._touched.add(connection)

    def is_to_this_machine(self, endpoint: Endpoint, lane: str) -> bool:
        """Return whether the connection to ``endpoint`` for the purpose ``lane`` is open, and its
        broker runs on this machine."""
        connection = self._connections.get(endpoint, lane)
        return connection is not None and connection.is_to_this_machine

    def later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self.now_ms() + delay_ms, next(self._order), timer))
        return timer

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            while self._calls:
                self._calls.popleft()()
        except BaseException as error:
            # This is the thread's outermost code: no caller would catch the error. Run no callbacks
            # of requests, because the state of their owners may be inconsistent.
            self._connections.drop()
            if self._on_crash is None:
                raise
            self._on_crash(error)
        finally:
            self._connections.close()
            self._selector.close()
            self._close_wake()

    def _close_wake(self) -> None:
        with self._wake_lock:
            for descriptor in (self._wake_receive, self._wake_send):
                if descriptor >= 0:
                    os.close(descriptor)
            self._wake_receive = self._wake_send = -1

    def _turn(self) -> None:
        for _ in range(CALLBACKS_PER_TURN):
            if not self._calls:
                break
            self._calls.popleft()()
        self._run_timers()
        while self._touched:
            connection = self._touched.pop()
            connection.flush()
            self._watch(connection)
        self._asleep = True
        wait_s = 0.0 if self._calls or self._touched else self._wait_s()
        events = self._selector.select(wait_s)
        self._asleep = False
        for key, mask in events:
            connection = key.data
            if connection is None:
                self._drain_wakes()
                continue
            if mask & selectors.EVENT_READ:
                connection.on_readable()
            if mask & selectors.EVENT_WRITE:
                connection.on_writable()
            self._touched.add(connection)
        self._expire()

    def _drain_wakes(self) -> None:
        try:
            while len(os.read(self._wake_receive, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def _run_timers(self) -> None:
        now = self.now_ms()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                callback()

    def _wait_s(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        due = self._timers[0][0] if self._timers else float("inf")
        due = min(due, self._connections.next_deadline_ms())
        return None if due == float("inf") else max(0.0, (due - self.now_ms()) / 1000.0)

    def _expire(self) -> None:
        self._touched.update(self._connections.expire(self.now_ms()))

    def _watch(self, connection: BrokerConnection) -> None:
        """Update the connection's registration with the selector: its socket, and whether it waits
        to read or to write.

        The socket changes when the connection tries another address."""
        if connection.fileno() < 0 and not connection.closed:
            return  # There is no socket to register yet.
        if connection.closed:
            registration = (-1, 0)
        else:
            events = selectors.EVENT_WRITE if connection.wants_write else 0
            if not events or not connection.connecting:
                events |= selectors.EVENT_READ
            registration = (connection.fileno(), events)
        watched = self._watched.get(connection, (-1, 0))
        if watched == registration:
            return
        if watched[0] == registration[0]:
            self._selector.modify(registration[0], registration[1], connection)
        else:
            if watched[0] >= 0:
                self._unregister(watched[0], connection)
            if registration[0] >= 0:
                self._register(registration[0], registration[1], connection)
        if registration[0] >= 0:
            self._watched[connection] = registration
        else:
            self._watched.pop(connection, None)
            self._connections.forget(connection)

    def _register(self, descriptor: int, events: int, connection: BrokerConnection) -> None:
        """Register a socket's descriptor. If its number is still registered for a closed
        connection, replace that registration."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
        self._selector.register(descriptor, events, connection)

    def _unregister(self, descriptor: int, connection: BrokerConnection) -> None:
        """Unregister a closed descriptor, unless a new connection's descriptor already has the same
        number."""
        try:
            if self._selector.get_key(descriptor).data is connection:
                self._selector.unregister(descriptor)
        except (KeyError, ValueError):
            pass

    def forget(self) -> None:
        """Close the inherited descriptors in a forked child process.

        Do not shut down the sockets, which the parent still uses."""
        self._connections.drop()
        self._selector.close()
        self._wake_lock = threading.RLock()
        self._close_wake()


_reactors: weakref.WeakSet[Reactor] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for reactor in list(_reactors):
        reactor.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
