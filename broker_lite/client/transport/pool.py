"""``Pool``: the shell (an object that sends requests) on the calling thread, which borrows
connections.

A pool lends each connection to one thread at a time. In a forked child process the pool is empty:
the child closes the sockets that it inherits."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from broker_lite.client.client_config import security_of_environment
from broker_lite.client.transport.access_tokens import RENEWED_AFTER, with_token
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.connection import FRAME_BYTES_MAX, addresses_of, open_socket
from broker_lite.client.transport.login import LoggedIn, TaskSecret, login
from broker_lite.client.transport.received_buffers import received_buffers
from broker_lite.client.transport.steps import Exchange, Operation, Pause, Send, SendAll, overdue
from broker_lite.config.client_security import NO_SECURITY, ClientSecurity
from broker_lite.errors import LogbusError, NetworkError, ProtocolError, RequestTimedOutError
from broker_lite.model import Endpoint
from broker_lite.net.opening import client_transport, connection_failure, early_end
from broker_lite.net.transport import Transport
from broker_lite.wire.api import correlation_id_of
from broker_lite.wire.frame import FrameReceiver

T = TypeVar("T")

IDLE_PER_BROKER = 4
"""Maximum number of idle connections to one broker that a pool keeps."""
SHARED_POOLS_MAX = 16
"""Maximum number of shared pools. Without a limit a Spark executor would keep one pool for each
access token that it has used."""
CONNECT_TIMEOUT_S = 10.0
"""Seconds after which an attempt to connect to one address of a broker fails."""
ARRIVED_MS = 100.0
"""Minimum timeout (ms) of ``receive``, even after the request's deadline: the response may have
arrived while the caller waited for another broker."""


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
        for family, kind, protocol, _, address in addresses_of(endpoint):
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

        The result is False if a response is outstanding, if the broker has closed the connection or
        sent unexpected bytes, or if the login session ends soon."""
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
        # Read even after the deadline: the caller may have waited for another broker until then,
        # and this broker's response may have arrived meanwhile.
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
    """A pool of broker connections that threads borrow. It keeps at most IDLE_PER_BROKER idle
    connections to each broker."""

    def __init__(self, client_id: str = "logbus", security: ClientSecurity | None = None) -> None:
        self.client_id = client_id
        self.security = security or security_of_environment()
        self._lock = threading.Lock()
        self._idle: dict[Endpoint, list[PooledConnection]] = {}
        self._task_secret: TaskSecret | None = None
        _pools.add(self)

    def borrow(self, endpoint: Endpoint, timeout_ms: float) -> PooledConnection:
        """Return a connection that no other caller uses until this caller passes it to ``release``
        or closes it.

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
        """Give a borrowed connection back. It is closed if it is not reusable, or if the pool has
        enough idle connections."""
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
        until the password changes. Call it after a request, which logs in."""
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
        """Empty the pool in a forked child process, because the parent still uses its
        connections."""
        self._lock = threading.Lock()
        self.close()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_shared: dict[tuple[str, ClientSecurity], Pool] = {}
_shared_lock = threading.Lock()


def shared_pool(client_id: str = "logbus", security: ClientSecurity | None = None) -> Pool:
    """Return the pool that all callers in this process with this client id and security share.

    With more than SHARED_POOLS_MAX pools, the idle connections of the least recently used pool are
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


os.register_at_fork(after_in_child=_after_fork_in_child)
