"""``BrokerConnection``: a non-blocking connection to a broker.

The owner (``reactor.Reactor`` or ``loop.LoopShell``) watches the socket and calls ``on_readable``
and ``on_writable``. Only ``prepare`` blocks. Each request's callback is called exactly once, with
the response or an error. Responses arrive in the order of the requests. A network or protocol error
closes the connection and fails all requests in flight."""

from __future__ import annotations

import errno
import itertools
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from broker_lite.client.transport.access_tokens import RENEWED_AFTER, fresh_token, with_token
from broker_lite.client.transport.login import LoggedIn, Login, login
from broker_lite.client.transport.steps import Exchange, overdue
from broker_lite.config.client_security import NO_SECURITY, ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.errors import LogbusError, NetworkError, ProtocolError
from broker_lite.model import Endpoint
from broker_lite.net.opening import client_transport, connection_failure, early_end
from broker_lite.net.transport import Transport
from broker_lite.wire.api import correlation_id_of
from broker_lite.wire.frame import FrameReceiver

FRAME_BYTES_MAX = 256 << 20
"""Maximum bytes of a response. A response that announces more counts as corrupt.

A fetch response may be larger than requested: it has at least one batch, of up to 64 MiB."""
BUFFERS_PER_SEND = 512
"""Maximum number of buffers in one ``sendmsg``, below IOV_MAX (1024 on Linux and macOS)."""
READS_PER_TURN = 16
"""Maximum number of reads from a readable socket before other connections have their turn."""


class _Pending(NamedTuple):
    correlation_id: int
    exchange: Exchange[Any]
    deadline_ms: float
    on_answer: Callable[[Any], None]


class _Sent(NamedTuple):
    """A request that gets no response (acks=0). It counts as done when the connection has written
    ``end`` bytes in total."""

    end: int
    exchange: Exchange[Any]
    deadline_ms: float
    on_answer: Callable[[Any], None]


def open_socket(family: int, kind: int, protocol: int) -> socket.socket:
    """Return a new TCP socket with the options that all client connections have."""
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def unresolved(endpoint: Endpoint, error: OSError | UnicodeError) -> NetworkError:
    """Return the error for a broker whose host name was not resolved.

    Python raises UnicodeError for a name with an empty or too long part, which metadata may
    contain."""
    why = getattr(error, "strerror", None) or error
    return NetworkError(f"cannot resolve {endpoint}: {why}")


def addresses_of(endpoint: Endpoint) -> list[tuple[Any, ...]]:
    """Return the addresses of a broker's host, from a blocking look-up. Raises NetworkError."""
    try:
        return socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise unresolved(endpoint, error) from None


class BrokerConnection:
    """A connection to one broker: connecting (with the TLS handshake), then open, then closed.

    A closed connection never opens again."""

    def __init__(
        self, endpoint: Endpoint, client_id: str, security: ClientSecurity = NO_SECURITY
    ) -> None:
        self.endpoint = endpoint
        self.client_id = client_id
        self._security = security
        self.closed = False
        self.connecting = True
        self.was_refused = False
        """Whether the connection failed because every address of the broker failed and the last one
        refused the connection."""
        self._addresses: deque[tuple[Any, ...]] = deque()
        self._sock: socket.socket | None = None
        """The socket while it connects; afterwards, ``_transport`` has it."""
        self._transport: Transport | None = None
        """The connected socket, plain or with TLS."""
        self._receiver = FrameReceiver(FRAME_BYTES_MAX)
        self._out: deque[memoryview] = deque()
        self._sent: deque[_Sent] = deque()
        self._pending: deque[_Pending] = deque()
        self._is_answered = False
        """Whether the broker has sent any response on this connection."""
        self._token: object = None
        """The access token of the last login."""
        self._login: Login | None = None
        """The first login while it runs, else None. Until it ends, requests wait in ``_out``."""
        self._login_exchange: Exchange[Any] | None = None
        self._login_out: deque[memoryview] = deque()
        self._renewal: Login | None = None
        """A repeated login while it runs, else None. Meanwhile new requests wait in
        ``_waiting``."""
        self._waiting: deque[tuple[Exchange[Any], float, Callable[[Any], None]]] = deque()
        self._renewed_s = float("inf")
        """Monotonic time (s) from which on the next request makes the client log in again
        (KIP-368)."""
        self._next_id = 0
        self._bytes_queued = 0
        self._bytes_written = 0

    # Methods that open the connection.

    @property
    def fetches_token(self) -> bool:
        """Whether ``prepare`` may block, because the login needs an OAuth access token that must
        first be fetched."""
        return bool(self._security.token_url)

    def prepare(self) -> None:
        """Fetch and cache the OAuth access token that the login needs, if any, before ``connect``.

        Blocks. Raises NetworkError and SaslAuthenticationError."""
        with_token(self._security)

    def connect(self, addresses: list[tuple[Any, ...]]) -> None:
        """Start to connect. Try the addresses (from ``getaddrinfo``) in order until one accepts."""
        self._addresses.extend(addresses)
        self._try_next(None)

    def _try_next(self, reason: OSError | None) -> None:
        while self._addresses:
            family, kind, protocol, _, address = self._addresses.popleft()
            previous, self._sock = self._sock, open_socket(family, kind, protocol)
            if previous is not None:
                # Close the old socket only after the new one is open. Otherwise both could have the
                # same descriptor number, and the selector would miss the change.
                previous.close()
            self._sock.setblocking(False)
            result = self._sock.connect_ex(address)
            if result in (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR):
                return
            reason = OSError(result, errno.errorcode.get(result, str(result)))
        self.was_refused = reason is not None and reason.errno == errno.ECONNREFUSED
        self.close(NetworkError(f"cannot connect to {self.endpoint}: {_why(reason)}"))

    @property
    def is_to_this_machine(self) -> bool:
        """Whether the connection is open and the broker runs here: both ends have the same
        address."""
        return self._transport is not None and self._transport.is_to_this_machine

    def fileno(self) -> int:
        opened = self._transport or self._sock
        return -1 if opened is None else opened.fileno()

    # Methods that queue requests and write them.

    @property
    def wants_write(self) -> bool:
        """Whether the I/O loop must call ``on_writable`` as soon as the socket is writable."""
        if self._transport is None:
            return True
        if self._transport.is_handshaking:
            return self._transport.wants_write
        return bool(self._queue()) or self._transport.wants_write

    def _queue(self) -> deque[memoryview]:
        """Return the queue from which to send: the login's queue during the first login, afterwards
        the requests' queue."""
        return self._out if self._login is None else self._login_out

    def request(
        self, exchange: Exchange[Any], deadline_ms: float, on_answer: Callable[[Any], None]
    ) -> None:
        """Queue a request. ``on_answer`` receives its response or an error.

        Call ``flush`` after the last request, to send all queued ones together."""
        if time.monotonic() >= self._renewed_s:
            self._begin_renewal(deadline_ms)
        if self._renewal is not None:
            self._waiting.append((exchange, deadline_ms, on_answer))
            return
        self._queue_request(exchange, deadline_ms, on_answer)

    def _queue_request(
        self, exchange: Exchange[Any], deadline_ms: float, on_answer: Callable[[Any], None]
    ) -> None:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        for buffer in exchange.frame(self._next_id, self.client_id):
            view = memoryview(buffer).cast("B")
            self._out.append(view)
            self._bytes_queued += len(view)
        if exchange.has_answer:
            self._pending.append(_Pending(self._next_id, exchange, deadline_ms, on_answer))
        else:
            self._sent.append(_Sent(self._bytes_queued, exchange, deadline_ms, on_answer))

    def flush(self) -> None:
        """Write as many queued bytes as the socket accepts."""
        out = self._queue()
        if self.connecting or self.closed or not out:
            return
        assert self._transport is not None
        try:
            while out:
                batch = [out[index] for index in range(min(len(out), BUFFERS_PER_SEND))]
                written = self._transport.write(batch)
                if self._login is None:
                    self._bytes_written += written
                while out and written >= len(out[0]):
                    written -= len(out.popleft())
                if written:
                    out[0] = out[0][written:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._fail(error)
            return
        while self._sent and self._sent[0].end <= self._bytes_written:
            self._sent.popleft().on_answer(None)

    # Methods that handle events of the socket, the login and the deadlines.

    def on_writable(self) -> None:
        """Continue the connect attempt or write queued bytes."""
        if self.closed:
            return
        if self._transport is None:
            assert self._sock is not None
            result = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not result and _is_own_end(self._sock):
                result = errno.ECONNREFUSED
            if result:
                self._try_next(OSError(result, errno.errorcode.get(result, str(result))))
                return
            self._addresses.clear()
            self._open(self._sock)
        if self.connecting:
            self._handshake()
        self.flush()

    def _open(self, sock: socket.socket) -> None:
        try:
            self._transport = client_transport(sock, self.endpoint.host, self._security)
        except LogbusError as error:
            self.close(error)
        except OSError as error:
            self._fail(error)
        else:
            self._sock = None

    def _handshake(self) -> None:
        if self.closed:
            return
        assert self._transport is not None
        try:
            if self._transport.is_handshaking:
                self._transport.handshake()
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        self.connecting = False
        if self._security.demands_login:
            self._begin_login()

    def _begin_login(self) -> None:
        try:
            # If the login needs a token, ``prepare`` has already fetched it.
            security = with_token(self._security)
        except LogbusError as error:
            self.close(error)
            return
        self._token = security.secret
        self._login = login(self.endpoint, security)
        self._continue_login(None)

    def _continue_login(self, answer: Any) -> None:
        """Send the next request of the login, or end it. A login error closes the connection."""
        assert self._login is not None
        try:
            exchange = self._login_exchange = self._login.send(answer)
        except StopIteration as end:
            self._login = None
            self._logged_in(end.value)
        except LogbusError as error:
            self.close(error)
        else:
            frames = exchange.frame(0, self.client_id)
            self._login_out.extend(memoryview(frame).cast("B") for frame in frames)
        self.flush()

    def _logged_in(self, outcome: LoggedIn) -> None:
        seconds = outcome.lifetime_ms / 1000 * RENEWED_AFTER
        self._renewed_s = time.monotonic() + seconds if seconds else float("inf")

    def _begin_renewal(self, deadline_ms: float) -> None:
        """Log in again, before the login session ends; later requests wait.

        With OAuth the login needs a newer token. Until one is cached, do nothing; the next
        request calls this method again."""
        security = self._security
        if security.token_url:
            token = fresh_token(security) if isinstance(security.secret, Secret) else None
            if token is None or token == self._token:
                return
            self._token, security = token, replace(security, secret=token)
        self._renewed_s = float("inf")
        self._renewal = login(self.endpoint, security)
        self._continue_renewal(deadline_ms, None)

    def _continue_renewal(self, deadline_ms: float, answer: Any) -> None:
        assert self._renewal is not None
        try:
            if isinstance(answer, LogbusError):
                raise answer
            exchange = self._renewal.send(answer)
        except StopIteration as end:
            self._renewal = None
            self._logged_in(end.value)
            waiting, self._waiting = self._waiting, deque()
            for request in waiting:
                self._queue_request(*request)
        except LogbusError as error:
            self.close(error)
        else:
            self._queue_request(exchange, deadline_ms, partial(self._continue_renewal, deadline_ms))
        self.flush()

    def _fail(self, error: OSError) -> None:
        answered, opening = self._is_answered, self.connecting
        self.close(
            connection_failure(self.endpoint, self._security, error, opening, is_answered=answered)
        )

    def _ended(self) -> NetworkError:
        if not self._is_answered:
            return early_end(self.endpoint, self._security)
        return NetworkError(f"{self.endpoint} closed the connection")

    def on_readable(self) -> None:
        """Receive bytes, and pass complete responses to the callbacks of their requests."""
        if self.closed or self._transport is None:
            return
        if self.connecting:
            self._handshake()
            self.flush()
            return  # If the socket has more bytes, the selector reports it again in the next turn.
        transport = self._transport
        try:
            reads = 0
            while reads < READS_PER_TURN or transport.pending:
                reads += 1
                target = self._receiver.buffer()
                if reads > READS_PER_TURN:
                    # Read only the bytes that TLS has taken from the socket already: a selector
                    # does not report them.
                    target = target[: transport.pending]
                count = transport.read_into(target)
                if count == 0:
                    self.close(self._ended())
                    return
                for frame in self._receiver.received(count):
                    self._is_answered = True
                    self._answered(frame)
                if self.closed or (count < len(target) and not transport.pending):
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
        except ProtocolError as error:
            self.close(ProtocolError(f"{self.endpoint}: {error.message}"))

    def _answered(self, frame: memoryview) -> None:
        if self._login is not None and self._login_exchange is not None:
            if correlation_id_of(frame):
                raise ProtocolError("the broker sent a response before the end of the login")
            self._continue_login(self._login_exchange.answer(frame))
            return
        if not self._pending:
            raise ProtocolError("the broker sent a response, but no request waits for one")
        pending = self._pending[0]
        if correlation_id_of(frame) != pending.correlation_id:
            raise ProtocolError(
                "the response does not belong to the connection's oldest open request"
            )
        answer = pending.exchange.answer(frame)
        self._pending.popleft()
        pending.on_answer(answer)

    def next_deadline_ms(self) -> float:
        """Return the time (ms) at which ``expire`` must be called; infinite without requests in
        flight."""
        return min((row.deadline_ms for row in self._in_flight()), default=float("inf"))

    def expire(self, now_ms: float) -> None:
        """Close the connection if a response is overdue, or if a request that gets no response is
        not written in time.

        Responses arrive in order, so an overdue response delays all later ones."""
        first = min(self._in_flight(), key=lambda row: row.deadline_ms, default=None)
        if not self.closed and first is not None and first.deadline_ms <= now_ms:
            self.close(overdue(self.endpoint, first.exchange))

    def _in_flight(self) -> Iterator[_Pending | _Sent]:
        return itertools.chain(self._pending, self._sent)

    def close(self, error: LogbusError) -> None:
        """Close the connection. Every request in flight fails with ``error``."""
        if self.closed:
            return
        self.closed = True
        self.connecting = False
        for opened in (self._transport, self._sock):
            if opened is not None:
                opened.close()
        self._out.clear()
        callbacks = [row.on_answer for row in self._sent]
        callbacks += [row.on_answer for row in self._pending]
        callbacks += [on_answer for _, _, on_answer in self._waiting]
        self._waiting.clear()
        self._sent.clear()
        self._pending.clear()
        for callback in callbacks:
            callback(error)

    def drop(self) -> None:
        """Close the socket's descriptor without calling any callback. Used in a forked child
        process, and after a crash of the I/O thread."""
        self.closed = True
        self._pending.clear()
        self._waiting.clear()
        self._sent.clear()
        for opened in (self._transport, self._sock):
            if opened is not None:
                opened.close()


def _is_own_end(sock: socket.socket) -> bool:
    """Return whether the socket is connected to itself instead of a broker.

    If no process listens on the broker's port of this machine, the kernel may choose this port as
    the socket's own."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # The connection has ended. The next receive reports this.


def _why(error: OSError | None) -> str:
    if error is None:
        return "no address"
    return error.strerror or str(error)
