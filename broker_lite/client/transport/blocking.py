"""``Reactor`` and ``Pool``: the shells, which send requests to brokers, for clients without
asyncio.

A ``Reactor`` is a background thread with a selector. It runs the engine of a producer or consumer;
other threads may only call ``call_soon``, ``wake`` and ``stop``. A ``Pool`` lends connections to
the threads that call it, each to one thread at a time.

A forked child process closes the sockets that it inherits. It can use a pool, which is then empty,
but not a reactor."""

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
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from broker_lite.client.client_config import security_of_environment
from broker_lite.client.transport.access_tokens import RENEWED_AFTER, with_token
from broker_lite.client.transport.connection import (
    FRAME_BYTES_MAX,
    BrokerConnection,
    open_socket,
    unresolved,
)
from broker_lite.client.transport.connections import Connections
from broker_lite.client.transport.login import LoggedIn, TaskSecret, login
from broker_lite.client.transport.received_buffers import received_buffers
from broker_lite.client.transport.steps import (
    Exchange,
    Operation,
    Pause,
    Send,
    SendAll,
    Timer,
    overdue,
)
from broker_lite.config.client_security import NO_SECURITY, ClientSecurity
from broker_lite.errors import (
    LogbusError,
    NetworkError,
    ProtocolError,
    RequestTimedOutError,
)
from broker_lite.model import Endpoint
from broker_lite.net.opening import client_transport, connection_failure, early_end
from broker_lite.net.transport import Transport
from broker_lite.wire.api import correlation_id_of
from broker_lite.wire.frame import FrameReceiver

T = TypeVar("T")

IDLE_PER_BROKER = 4
"""Maximum number of idle connections to one broker that a pool keeps."""
SHARED_POOLS_MAX = 16
"""Maximum number of shared pools. Without a limit a Spark executor would keep one for each access
token that it has used."""
CONNECT_TIMEOUT_S = 10.0
"""Seconds after which an attempt to connect to one address of a broker fails."""
ARRIVED_MS = 100.0
"""Milliseconds for which a response is read after its deadline, because it may have arrived."""
CALLBACKS_PER_TURN = 1000
"""Maximum number of callbacks that run before the reactor handles its sockets again."""


def monotonic_ms() -> float:
    """Return the monotonic clock's milliseconds. All deadlines in the client refer to this
    clock."""
    return time.monotonic() * 1000.0


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
        """Start the thread. ``on_crash`` receives an unexpected error that ends it."""
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
                # No thread can start, for example while the interpreter shuts down.
                self._calls.append(look_up)
        self._touched.add(connection)

    def _look_up(self, connection: BrokerConnection) -> None:
        """Fetch the access token for the login and resolve the broker's host name.

        Runs on a thread of its own: both may block for long, while the reactor serves the other
        connections."""
        addresses: list[tuple[Any, ...]] | LogbusError
        try:
            connection.prepare()
            addresses = _addresses(connection.endpoint)
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
        """Return whether the connection for the purpose ``lane`` is open and its broker is on this
        machine."""
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
        """Register the connection's socket with the selector, to read, and to write while it
        connects or has queued bytes.

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
        """Register a socket's descriptor. If a closed connection left this number registered,
        replace the registration."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
        self._selector.register(descriptor, events, connection)

    def _unregister(self, descriptor: int, connection: BrokerConnection) -> None:
        """Unregister a closed descriptor, unless a new connection's descriptor has its number."""
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


def _addresses(endpoint: Endpoint) -> list[tuple[Any, ...]]:
    try:
        return socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise unresolved(endpoint, error) from None


class PooledConnection:
    """A blocking connection that one borrower at a time uses; responses come in request order."""

    def __init__(
        self,
        endpoint: Endpoint,
        client_id: str,
        timeout_s: float,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self.endpoint = endpoint
        self.client_id = client_id
        self._security = security
        self._receiver = FrameReceiver(FRAME_BYTES_MAX, allocate=received_buffers.take)
        self._frames: deque[memoryview] = deque()
        self._sent: deque[tuple[int, Exchange[Any]]] = deque()
        self._next_id = 0
        self._is_answered = False
        self.task_secret: TaskSecret | None = None
        """A secret from the login, with which another process can log in without the password."""
        self._renewed_ms = float("inf")
        """Monotonic time (ms) from which on the connection is not lent: its login ends soon
        (KIP-368)."""
        reason: OSError | None = None
        deadline_s = time.monotonic() + timeout_s
        for family, kind, protocol, _, address in _addresses(endpoint):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise RequestTimedOutError(f"cannot connect to {endpoint} in time")
            sock = open_socket(family, kind, protocol)
            sock.settimeout(min(left_s, CONNECT_TIMEOUT_S))
            try:
                sock.connect(address)
            except OSError as error:
                reason = error
                sock.close()
                continue
            self._transport = self._open(sock)
            if security.demands_login:
                self._log_in(deadline_s * 1000)
            return
        why = getattr(reason, "strerror", None) or str(reason or "no address")
        raise NetworkError(f"cannot connect to {endpoint}: {why}")

    def _open(self, sock: socket.socket) -> Transport:
        try:
            transport = client_transport(sock, self.endpoint.host, self._security)
            if transport.is_handshaking:
                transport.handshake()
        except OSError as error:
            sock.close()
            raise connection_failure(self.endpoint, self._security, error, True) from None
        except LogbusError:
            sock.close()
            raise
        return transport

    def _log_in(self, deadline_ms: float) -> None:
        answer: Any = None
        try:
            steps = login(self.endpoint, with_token(self._security))
            while True:
                self.send(steps.send(answer), deadline_ms)
                answer = self.receive(deadline_ms)
        except StopIteration as end:
            logged_in: LoggedIn = end.value
            self.task_secret = logged_in.secret
            if logged_in.lifetime_ms:
                self._renewed_ms = monotonic_ms() + logged_in.lifetime_ms * RENEWED_AFTER
        except BaseException:
            self.close()
            raise

    @property
    def is_reusable(self) -> bool:
        """Return whether the pool may lend the connection again.

        Not if a response is outstanding, if the broker has closed the connection or sent unexpected
        bytes, or if the login session ends soon."""
        if self._sent or self._frames or monotonic_ms() >= self._renewed_ms:
            return False
        return self._transport.is_silent()

    @property
    def is_to_this_machine(self) -> bool:
        """Whether the broker runs on this machine: both ends have the same address."""
        return self._transport.is_to_this_machine

    def send(self, exchange: Exchange[Any], deadline_ms: float) -> None:
        """Send one request. Raises NetworkError or RequestTimedOutError."""
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        try:
            self._set_timeout(deadline_ms)
            for buffer in exchange.frame(self._next_id, self.client_id):
                self._transport.send_all(buffer)
        except TimeoutError:
            raise overdue(self.endpoint, exchange) from None
        except OSError as error:
            raise self._lost(error) from None
        self._sent.append((self._next_id, exchange))

    def receive(self, deadline_ms: float) -> Any:
        """Return the response to the oldest unanswered request.

        Raises NetworkError, RequestTimedOutError or ProtocolError."""
        # The caller may have waited for another broker until the deadline. Do not lose a response
        # that has arrived meanwhile.
        deadline_ms = max(deadline_ms, monotonic_ms() + ARRIVED_MS)
        correlation_id, exchange = self._sent[0]
        try:
            while not self._frames:
                self._set_timeout(deadline_ms)
                count = self._transport.read_into(self._receiver.buffer())
                if count == 0:
                    raise self._ended()
                self._frames.extend(self._receiver.received(count))
            self._is_answered = True
        except TimeoutError:
            raise overdue(self.endpoint, exchange) from None
        except OSError as error:
            raise self._lost(error) from None
        frame = self._frames.popleft()
        if correlation_id_of(frame) != correlation_id:
            raise ProtocolError(
                f"a response of {self.endpoint} does not belong to the oldest open request"
            )
        answer = exchange.answer(frame)
        self._sent.popleft()
        return answer

    def _set_timeout(self, deadline_ms: float) -> None:
        left_s = (deadline_ms - monotonic_ms()) / 1000.0
        if left_s <= 0:
            raise TimeoutError
        self._transport.settimeout(left_s)

    def _lost(self, error: OSError) -> LogbusError:
        answered = self._is_answered
        return connection_failure(self.endpoint, self._security, error, False, is_answered=answered)

    def _ended(self) -> NetworkError:
        if not self._is_answered:
            return early_end(self.endpoint, self._security)
        return NetworkError(f"{self.endpoint} closed the connection")

    def interrupt(self) -> None:
        """Make a ``receive`` that blocks in another thread raise NetworkError."""
        if self._sent:
            with contextlib.suppress(OSError):
                self._transport.interrupt()

    def close(self) -> None:
        self._transport.close()


class Pool:
    """A pool of broker connections that threads borrow. IDLE_PER_BROKER idle ones are kept for each
    broker."""

    def __init__(self, client_id: str = "logbus", security: ClientSecurity | None = None) -> None:
        self.client_id = client_id
        self.security = security or security_of_environment()
        self._lock = threading.Lock()
        self._idle: dict[Endpoint, list[PooledConnection]] = {}
        self._task_secret: TaskSecret | None = None
        _pools.add(self)

    def borrow(self, endpoint: Endpoint, timeout_ms: float) -> PooledConnection:
        """Return a connection for the caller alone, until it calls ``release`` with it or closes
        it.

        Raises NetworkError or a login error."""
        while True:
            with self._lock:
                idle = self._idle.get(endpoint)
                connection = idle.pop() if idle else None
            if connection is None:
                opened = PooledConnection(
                    endpoint, self.client_id, timeout_ms / 1000.0, self.security
                )
                self._task_secret = opened.task_secret
                return opened
            if connection.is_reusable:
                return connection
            connection.close()

    def release(self, connection: PooledConnection) -> None:
        """Give a borrowed connection back. It is closed if it is not reusable, or if enough are
        idle."""
        if connection.is_reusable:
            with self._lock:
                idle = self._idle.setdefault(connection.endpoint, [])
                if len(idle) < IDLE_PER_BROKER:
                    idle.append(connection)
                    return
        connection.close()

    def ask(self, send: Send) -> Any:
        """Send one request and return its response. Raises the request's error."""
        answer = self.ask_all((send,))[0]
        if isinstance(answer, LogbusError):
            raise answer
        return answer

    def ask_all(self, sends: Sequence[Send]) -> list[Any]:
        """Send requests to several brokers in parallel. Return a response or error for each, in
        order."""
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
                self.release(connection)
        return answers

    def run(self, operation: Operation[T]) -> T:
        """Run an operation (a generator of requests) on the calling thread. Return its result, or
        raise its error."""
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

    def security_without_password(self) -> ClientSecurity:
        """Return security settings that may be pickled for other processes.

        In place of the password, they have the keys of the last SCRAM login, the token of
        OAUTHBEARER, or the ``PlainPassword`` of PLAIN. SCRAM keys are valid for this cluster only,
        until the password changes. Call it after a request has succeeded."""
        if self._task_secret is None:
            return self.security
        return replace(self.security, secret=self._task_secret)

    def close(self) -> None:
        """Close the idle connections. The pool stays usable."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def forget(self) -> None:
        """Drop the connections in a forked child process, because the parent still uses them."""
        self._lock = threading.Lock()
        self.close()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_reactors: weakref.WeakSet[Reactor] = weakref.WeakSet()
_shared: dict[tuple[str, ClientSecurity], Pool] = {}
_shared_lock = threading.Lock()


def shared_pool(client_id: str = "logbus", security: ClientSecurity | None = None) -> Pool:
    """Return the pool that all callers in this process with this client id and security share.

    With more than SHARED_POOLS_MAX pools, the idle connections of the least recently used are
    closed."""
    chosen = security or security_of_environment()
    key = client_id, chosen
    with _shared_lock:
        pool = _shared.pop(key, None)
        if pool is None:
            pool = Pool(client_id, chosen)
        _shared[key] = pool
        oldest = _shared.pop(next(iter(_shared))) if len(_shared) > SHARED_POOLS_MAX else None
    if oldest is not None:
        oldest.close()
    return pool


def _after_fork_in_child() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool.forget()
    for reactor in list(_reactors):
        reactor.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
