"""The listening socket and its connections: accepting, limits and timeouts. Loop thread only.

Connections beyond ``max.connections`` are closed at once. A sweep closes idle connections and
connections whose request stopped arriving, and releases unused memory. It runs only while it has
work. ``stop`` ends accepting; ``close`` also closes every connection.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket

from broker_lite.config import BrokerConfig
from broker_lite.errors import InvalidConfigError, PortInUseError
from broker_lite.model import Endpoint
from broker_lite.net.transport import PlainTransport
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.connection import Begin, ClientConnection
from broker_lite.server.network.context import PLAINTEXT, Session
from broker_lite.server.network.memory_budget import Budget
from broker_lite.wire.frame import SCRATCH_BYTES, FrameReceiver
from broker_lite.wire.reused_memory import ReusedMemory

logger = logging.getLogger("logbus.listener")

BACKLOG = 512
"""The kernel's backlog of connections that are not accepted yet."""
ACCEPTS_PER_TURN = 64
"""Maximum connections accepted per loop turn, which leaves time for the existing ones."""
SWEEP_S = 5.0
"""Maximum seconds between sweeps; shorter timeouts shorten it."""
STALLED_MS = 5000
"""Milliseconds after which a stalled request is closed while other connections wait for memory."""
ACCEPT_PAUSE_S = 0.5
"""Seconds until accepting resumes after the process ran out of file descriptors."""


_OPEN = (
    "is reached from other machines, and there are no logins and no encryption: every client "
    "may read, write and delete everything"
)


class Listener:
    """A bound socket and its connections. The constructor raises PortInUseError or
    InvalidConfigError, which name the option."""

    def __init__(self, config: BrokerConfig, *, clock: Clock, metrics: Metrics) -> None:
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._budget = Budget(config.in_flight_bytes_max)
        self._connections: set[ClientConnection] = set()
        self._admitted = 0
        self._scratch = bytearray(SCRATCH_BYTES)
        self._frames = ReusedMemory(config.in_flight_bytes_max)
        self._sweep: asyncio.TimerHandle | None = None
        shortest_ms = min(config.connection_idle_ms, config.frame_timeout_ms)
        self._sweep_s = min(SWEEP_S, shortest_ms / 2000)
        self._accepting = False
        self._socket = _bind(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin: Begin | None = None
        host, port = self._socket.getsockname()[:2]
        self.bound = Endpoint(host, port)

    @property
    def endpoint(self) -> Endpoint:
        """The address advertised to clients."""
        config = self._config
        return Endpoint(
            config.advertised_host or config.host, config.advertised_port or self.bound.port
        )

    def exposure(self) -> list[str]:
        """Return warnings about the hosts that can reach this address; empty if only this
        machine can."""
        address = _address(self.bound.host)
        if address.is_loopback:
            return []
        warning = [f"host={self._config.host} {_OPEN}"]
        if address.is_unspecified and not self._config.advertised_host:
            warning.append(
                f"advertised.host is empty, so the advertised host is {self.bound.host}, "
                "which leads other machines to themselves: set it to a name of this machine"
            )
        return warning

    def start(self, loop: asyncio.AbstractEventLoop, begin: Begin) -> None:
        """Accept connections; ``begin`` receives every request."""
        for warning in self.exposure():
            logger.warning("%s", warning)
        self._loop, self._begin = loop, begin
        self._metrics.gauge("connections", lambda: {(PLAINTEXT,): len(self._connections)})
        self._metrics.gauge("request_memory_bytes", lambda: self._budget.used_bytes)
        self._metrics.gauge("request_memory_limit_bytes", lambda: self._config.in_flight_bytes_max)
        self._resume_accepting()

    def stop(self) -> None:
        """Stop accepting; existing connections continue."""
        if self._socket.fileno() == -1:
            return
        if self._accepting and self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._accepting = False
        self._socket.close()

    def close(self) -> None:
        """Stop accepting and close every connection."""
        self.stop()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in list(self._connections):
            connection.close("the broker stops", quiet=True)

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight and no answer is unsent."""
        return all(connection.is_idle for connection in self._connections)

    def _resume_accepting(self) -> None:
        assert self._loop is not None
        if self._socket.fileno() != -1 and not self._accepting:
            self._accepting = True
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            self._admit(sock, f"{address[0]}:{address[1]}")

    def _pause_accepting(self, error: OSError) -> None:
        assert self._loop is not None
        logger.error("cannot accept connections: %s; trying again", error.strerror or error)
        self._loop.remove_reader(self._socket.fileno())
        self._accepting = False
        self._loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting)

    def _admit(self, sock: socket.socket, peer: str) -> None:
        config = self._config
        if len(self._connections) >= config.connections_max:
            logger.warning(
                "%s: closed: max.connections=%d are open",
                peer,
                config.connections_max,
                extra={"about": peer.rpartition(":")[0]},
            )
            self._metrics.count("connections_refused", "max_connections")
            sock.close()
            return
        assert self._loop is not None and self._begin is not None
        self._admitted += 1
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = ClientConnection(
            self._loop,
            PlainTransport(sock),
            Session(self._admitted, peer, needs_login=bool(config.sasl_mechanisms)),
            receiver=FrameReceiver(
                config.frame_bytes_max,
                scratch=self._scratch,
                allocate=self._frames.take,
                grows=True,
            ),
            budget=self._budget,
            clock=self._clock,
            requests_max=config.connection_requests_max,
            begin=self._begin,
            ended=self._ended,
        )
        self._connections.add(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._sweep_s, self._end_silent)

    def _ended(self, connection: ClientConnection, reason: str) -> None:
        self._connections.discard(connection)

    def _end_silent(self) -> None:
        """Close idle and stalled connections, and schedule the next sweep while any connection
        is open."""
        assert self._loop is not None
        now_ms = self._clock.monotonic_ms()
        idle_before = now_ms - self._config.connection_idle_ms
        began_before = now_ms - self._config.frame_timeout_ms
        silent_before = now_ms - STALLED_MS if self._budget.is_waited_for else 0
        for connection in list(self._connections):
            if connection.frame_began_ms and connection.frame_began_ms < began_before:
                limit = self._config.frame_timeout_ms
                connection.close(f"a request was not whole within {limit} ms")
            elif connection.frame_began_ms and connection.active_ms < silent_before:
                connection.close(
                    f"nothing of a request that had begun came for {STALLED_MS} ms, while others "
                    f"wait for its memory (queued.max.bytes)"
                )
            elif 0 < connection.unread_since_ms < max(silent_before, idle_before):
                connection.close("its client does not read the answers")
            elif connection.active_ms < idle_before and connection.is_idle:
                connection.close("idle", quiet=True)
        self._frames.sweep()
        self._sweep = None
        if self._connections or self._frames.kept_bytes:
            self._sweep = self._loop.call_later(self._sweep_s, self._end_silent)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host.partition("%")[0])


def _bind(config: BrokerConfig) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise InvalidConfigError(f"host={config.host!r}: {error.strerror or error}") from None
    family, kind, protocol, _, address = found[0]
    if not config.listeners_insecure_allow and not _address(str(address[0])).is_loopback:
        raise InvalidConfigError(
            f"host={config.host} {_OPEN}. Listen on 127.0.0.1, or, on a private network, "
            "set listeners.insecure.allow=true (logbus up --insecure)"
        )
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port={config.port} on host={config.host} is in use; stop the process that "
                f"listens there, or set port to another number (0 takes a free one)"
            ) from None
        raise InvalidConfigError(
            f"cannot listen on host={config.host} port={config.port}: {error.strerror or error}"
        ) from None
    return sock
