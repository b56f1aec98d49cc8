"""The socket shells: ``Reactor`` (a thread with a selector, for engines that run by themselves) and
``Pool`` (connections that a calling thread borrows, for one question at a time).

A reactor belongs to its thread; others may call ``call_soon``, ``wake`` and ``stop``. A pool is
shared by all threads, one borrower a connection. After a fork the child drops the inherited
descriptors; it can use a pool, which starts anew, but not a reactor.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from broker_lite.client.transport.connection import (
    FRAME_BYTES_MAX,
    Connection,
    has_one_address,
    open_socket,
)
from broker_lite.client.transport.connections import Connections
from broker_lite.client.transport.rooms import received_rooms
from broker_lite.client.transport.steps import Exchange, Operation, Pause, Send, SendAll, Timer
from broker_lite.errors import (
    LogbusError,
    NetworkError,
    ProtocolError,
    RequestTimedOutError,
)
from broker_lite.model import Endpoint
from broker_lite.wire.api import correlation_id_of
from broker_lite.wire.frame import FrameReceiver

T = TypeVar("T")

IDLE_PER_BROKER = 4
"""Connections that a pool keeps for later, to one broker."""
CONNECT_TIMEOUT_S = 10.0
CALLBACKS_PER_TURN = 1000


def monotonic_ms() -> float:
    """The clock of every client object: milliseconds that never go back."""
    return time.monotonic() * 1000.0


class _Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Reactor:
    """A thread that watches connections and timers and calls back."""

    def __init__(self, client_id: str, name: str) -> None:
        self._connections = Connections(client_id)
        self._watched: dict[Connection, tuple[int, int]] = {}
        self._touched: set[Connection] = set()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()
        self._calls: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_receive, self._wake_send = os.pipe()
        os.set_blocking(self._wake_receive, False)
        os.set_blocking(self._wake_send, False)
        # The pipe's numbers are another file's as soon as it is closed. A signal may wake twice.
        self._wake_lock = threading.RLock()
        self._selector.register(self._wake_receive, selectors.EVENT_READ, None)
        self._asleep = False
        self._stopping = False
        self._on_crash: Callable[[BaseException], None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _reactors.add(self)

    def start(self, on_crash: Callable[[BaseException], None] | None = None) -> None:
        """Start the thread. ``on_crash`` hears of an error that no code expected."""
        self._on_crash = on_crash
        self._thread.start()

    def now_ms(self) -> float:
        return monotonic_ms()

    @property
    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    # -- from any thread

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._calls.append(callback)
        if self._asleep:
            self.wake()

    def wake(self) -> None:
        """Make the thread look at once."""
        with self._wake_lock, contextlib.suppress(BlockingIOError):  # full: it is awake
            if self._wake_send >= 0:
                os.write(self._wake_send, b"\0")

    def stop(self, timeout_s: float | None = 10.0) -> None:
        """End the thread; requests under way fail with ClosedError."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive() and not self.is_own_thread:
            self._thread.join(timeout_s)

    # -- on the thread

    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        connection, is_new = self._connections.request(send, self.now_ms(), on_answer)
        if is_new:
            # Not here: a failure would call back before the caller is done.
            self._calls.append(partial(self._connect, connection))
        self._touched.add(connection)

    def _connect(self, connection: Connection) -> None:
        try:
            connection.connect(_addresses(connection.endpoint))
        except NetworkError as error:
            connection.close(error)
        self._touched.add(connection)

    def disconnect(self, endpoint: Endpoint, lane: str = "") -> None:
        """End a connection; what is under way on it fails with ClosedError."""
        connection = self._connections.disconnect(endpoint, lane)
        if connection is not None:
            self._touched.add(connection)

    def is_to_this_machine(self, endpoint: Endpoint, lane: str) -> bool:
        """Whether there is an open connection, and to a process on this machine."""
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
        except BaseException as error:  # the thread's outermost frame
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

    def _watch(self, connection: Connection) -> None:
        """Keep the selector in step; a descriptor changes when the next address is tried."""
        if connection.fileno() < 0 and not connection.closed:
            return  # its turn to connect has not come yet
        if connection.closed:
            wanted = (-1, 0)
        else:
            events = 0 if connection.connecting else selectors.EVENT_READ
            if connection.wants_write:
                events |= selectors.EVENT_WRITE
            wanted = (connection.fileno(), events)
        watched = self._watched.get(connection, (-1, 0))
        if watched == wanted:
            return
        if watched[0] == wanted[0]:
            self._selector.modify(wanted[0], wanted[1], connection)
        else:
            if watched[0] >= 0:
                self._unregister(watched[0], connection)
            if wanted[0] >= 0:
                self._register(wanted[0], wanted[1], connection)
        if wanted[0] >= 0:
            self._watched[connection] = wanted
        else:
            self._watched.pop(connection, None)
            self._connections.forget(connection)

    def _register(self, descriptor: int, events: int, connection: Connection) -> None:
        """Watch a descriptor, whose number a connection closed just now may have had."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
        self._selector.register(descriptor, events, connection)

    def _unregister(self, descriptor: int, connection: Connection) -> None:
        """Forget a descriptor, which may be another connection's by now."""
        try:
            if self._selector.get_key(descriptor).data is connection:
                self._selector.unregister(descriptor)
        except (KeyError, ValueError):
            pass

    def forget(self) -> None:
        """In a forked child: drop what the parent's thread owns, touching nothing shared."""
        self._connections.drop()
        self._selector.close()
        self._wake_lock = threading.RLock()
        self._close_wake()


def _addresses(endpoint: Endpoint) -> list[tuple[Any, ...]]:
    try:
        return socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NetworkError(f"cannot resolve {endpoint}: {error.strerror or error}") from None


class PooledConnection:
    """A blocking connection of one borrower: ``send`` any number, ``receive`` in the same order."""

    def __init__(self, endpoint: Endpoint, client_id: str, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.client_id = client_id
        self._receiver = FrameReceiver(FRAME_BYTES_MAX, allocate=received_rooms.take)
        self._frames: deque[memoryview] = deque()
        self._sent: deque[tuple[int, Exchange[Any]]] = deque()
        self._next_id = 0
        reason: OSError | None = None
        for family, kind, protocol, _, address in _addresses(endpoint):
            sock = open_socket(family, kind, protocol)
            sock.settimeout(min(timeout_s, CONNECT_TIMEOUT_S))
            try:
                sock.connect(address)
            except OSError as error:
                reason = error
                sock.close()
                continue
            self._sock = sock
            return
        why = getattr(reason, "strerror", None) or str(reason or "no address")
        raise NetworkError(f"cannot connect to {endpoint}: {why}")

    @property
    def is_reusable(self) -> bool:
        """No answer is due, and the peer has neither closed nor said anything unasked."""
        if self._sent or self._frames:
            return False
        self._sock.setblocking(False)
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def is_to_this_machine(self) -> bool:
        """Whether the peer has the address that we have."""
        return has_one_address(self._sock)

    def send(self, exchange: Exchange[Any], deadline_ms: float) -> None:
        """Send one request; raises NetworkError or RequestTimedOutError."""
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        self._set_timeout(deadline_ms)
        try:
            for buffer in exchange.frame(self._next_id, self.client_id):
                self._sock.sendall(buffer)
        except TimeoutError:
            raise self._late() from None
        except OSError as error:
            raise NetworkError(f"lost the connection to {self.endpoint}: {error}") from None
        self._sent.append((self._next_id, exchange))

    def receive(self, deadline_ms: float) -> Any:
        """The answer to the oldest request."""
        correlation_id, exchange = self._sent[0]
        try:
            while not self._frames:
                self._set_timeout(deadline_ms)
                count = self._sock.recv_into(self._receiver.buffer())
                if count == 0:
                    raise NetworkError(f"{self.endpoint} closed the connection")
                self._frames.extend(self._receiver.received(count))
        except TimeoutError:
            raise self._late() from None
        except OSError as error:
            raise NetworkError(f"lost the connection to {self.endpoint}: {error}") from None
        frame = self._frames.popleft()
        if correlation_id_of(frame) != correlation_id:
            raise ProtocolError(f"{self.endpoint}: an answer to another request")
        answer = exchange.answer(frame)
        self._sent.popleft()
        return answer

    def _set_timeout(self, deadline_ms: float) -> None:
        left_s = (deadline_ms - monotonic_ms()) / 1000.0
        if left_s <= 0:
            raise self._late()
        self._sock.settimeout(left_s)

    def _late(self) -> RequestTimedOutError:
        return RequestTimedOutError(f"{self.endpoint} did not answer in time")

    def interrupt(self) -> None:
        """From another thread: end a ``receive`` that waits, with NetworkError."""
        if self._sent:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


class Pool:
    """Connections to the brokers that threads borrow; at most a few idle ones are kept."""

    def __init__(self, client_id: str = "logbus") -> None:
        self.client_id = client_id
        self._lock = threading.Lock()
        self._idle: dict[Endpoint, list[PooledConnection]] = {}
        _pools.add(self)

    def borrow(self, endpoint: Endpoint, timeout_ms: float) -> PooledConnection:
        """A connection for the caller alone, until ``give_back`` or its ``close``."""
        while True:
            with self._lock:
                idle = self._idle.get(endpoint)
                connection = idle.pop() if idle else None
            if connection is None:
                return PooledConnection(endpoint, self.client_id, timeout_ms / 1000.0)
            if connection.is_reusable:
                return connection
            connection.close()

    def give_back(self, connection: PooledConnection) -> None:
        """Return a connection whose answers have all arrived; any other is closed."""
        if connection.is_reusable:
            with self._lock:
                idle = self._idle.setdefault(connection.endpoint, [])
                if len(idle) < IDLE_PER_BROKER:
                    idle.append(connection)
                    return
        connection.close()

    def ask(self, send: Send) -> Any:
        """One question, one answer; raises what went wrong."""
        answer = self.ask_all((send,))[0]
        if isinstance(answer, LogbusError):
            raise answer
        return answer

    def ask_all(self, sends: Sequence[Send]) -> list[Any]:
        """Ask several brokers at once: an answer or an error each."""
        answers: list[Any] = [None] * len(sends)
        waiting: list[tuple[int, PooledConnection, float]] = []
        for index, send in enumerate(sends):
            deadline_ms = monotonic_ms() + send.timeout_ms
            try:
                connection = self.borrow(send.endpoint, send.timeout_ms)
                try:
                    connection.send(send.exchange, deadline_ms)
                except BaseException:
                    connection.close()
                    raise
            except LogbusError as error:
                answers[index] = error
                continue
            waiting.append((index, connection, deadline_ms))
        while waiting:
            index, connection, deadline_ms = waiting.pop(0)
            try:
                answers[index] = connection.receive(deadline_ms)
            except LogbusError as error:
                answers[index] = error
                connection.close()
            except BaseException:
                connection.close()
                for _, other, _ in waiting:
                    other.close()
                raise
            else:
                self.give_back(connection)
        return answers

    def run(self, operation: Operation[T]) -> T:
        """Carry an operation out on the calling thread; raises the error that ended it."""
        result: Any = None
        try:
            while True:
                if isinstance(result, LogbusError):
                    step = operation.throw(result)
                else:
                    step = operation.send(result)
                match step:
                    case Send():
                        result = self.ask_all((step,))[0]
                    case SendAll(sends):
                        result = self.ask_all(sends)
                    case Pause(delay_ms):
                        time.sleep(max(0.0, delay_ms) / 1000.0)
                        result = None
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            operation.close()

    def close(self) -> None:
        """Close the idle connections; the pool stays usable."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def forget(self) -> None:
        """In a forked child: the parent goes on with the connections, so only drop them here."""
        self._lock = threading.Lock()
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_reactors: weakref.WeakSet[Reactor] = weakref.WeakSet()
_shared: dict[str, Pool] = {}


def shared_pool(client_id: str = "logbus") -> Pool:
    """The process's own pool: everybody who reads in this process shares its connections."""
    return _shared.setdefault(client_id, Pool(client_id))


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool.forget()
    for reactor in list(_reactors):
        reactor.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
