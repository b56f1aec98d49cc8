"""Accept connections on all listeners, and apply the limits and timeouts of connections.

Connections beyond ``max.connections`` are closed at once. A periodic *sweep* closes connections
that are idle or whose request has stopped arriving, and releases frame buffers that no connection
has used since the last sweep. It runs only while there are connections or free buffers."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from broker_lite import heap
from broker_lite.config import BrokerConfig
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.listeners import ListenerConfig, listener_configs
from broker_lite.errors import InvalidConfigError, LogbusError, PortInUseError
from broker_lite.model import Endpoint
from broker_lite.net.listening import why_not_listening
from broker_lite.net.transport import PlainTransport, Transport
from broker_lite.security.acls import canonical_host
from broker_lite.security.login_failures import network_of
from broker_lite.security.quotas import CONNECTION_CREATION_RATE
from broker_lite.server.clock import Clock
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.connection import Begin, ClientConnection
from broker_lite.server.network.context import ANONYMOUS, Session
from broker_lite.server.network.logins import REQUEST_BYTES_BEFORE_LOGIN_MAX
from broker_lite.server.network.memory_budget import SHRUNK_BYTES, Budget
from broker_lite.wire.buffer_pool import BufferPool
from broker_lite.wire.frame import FrameReceiver

if TYPE_CHECKING:
    from broker_lite.server.network.tls_listener import Handshakes, ListenerTls, OnLogin

logger = logging.getLogger("logbus.listener")

BACKLOG = 512
"""Maximum number of connections that the kernel queues before the broker accepts them."""
ACCEPTS_PER_TURN = 16
"""Maximum connections accepted in one iteration of the event loop; all take about 2 ms."""
ADDRESSES_CACHED = 1024
"""Maximum number of client hosts in the cache of ``_limited_host``."""
SWEEP_S = 5.0
"""Maximum seconds between two sweeps for idle and stalled connections.

Sweeps are more frequent if a connection timeout is shorter than 10 s."""
SWEEP_MIN_S = 0.1
"""Minimum seconds between two sweeps, to limit their cost, even if a client's time to log in ends
sooner."""
STALLED_MS = 5000
"""Milliseconds without bytes after which the broker closes a connection with a partial request, if
other connections wait for memory."""
ACCEPT_PAUSE_S = 0.5
"""Seconds for which the broker accepts no connection after an accept has failed, for example for
lack of file descriptors."""


SCRATCH_BYTES = 256 << 10
"""Bytes of the receive buffer that all connections share.

It has room for the five batches of 16 KB that Kafka's producer may have in flight: one read
receives them, so one flush of the log makes all of them durable."""
RELOAD_S = 10.0
"""Seconds between two checks whether certificate files have changed."""
UNREAD_MS = 60_000
"""Time in ms after which the broker disconnects a client that has read no byte of an answer."""
CHECKED_PER_TURN = 20
"""Number of client certificates checked per iteration of the event loop after TLS files changed.

A check takes 0.1 ms."""


class Listener:
    """The sockets of all listeners of a broker, and their connections.

    The constructor raises PortInUseError or InvalidConfigError, which name the setting to
    change."""

    def __init__(self, config: BrokerConfig, *, clock: Clock, metrics: Metrics) -> None:
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._budget = Budget(config.in_flight_bytes_max)
        self._connections: set[ClientConnection] = set()
        self._early: dict[ClientConnection, None] = {}
        """Connections that had to log in when they were opened, oldest first; some may be logged in
        by now."""
        self._of_address: Counter[str] = Counter()
        """Number of open connections from each address except loopback."""
        self._admitted = 0
        self._scratch = bytearray(SCRATCH_BYTES)
        self._frames = BufferPool(config.in_flight_bytes_max)
        self._sweep: asyncio.TimerHandle | None = None
        self._reload: asyncio.TimerHandle | None = None
        shortest_ms = min(
            config.connection_idle_ms, config.frame_timeout_ms, config.login_timeout_ms
        )
        self._sweep_s = min(SWEEP_S, shortest_ms / 2000)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin: Begin | None = None
        self._may_connect: Callable[[str], bool] | None = None
        self._on_login: OnLogin | None = None
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        self._handshakes: Handshakes | None = None
        self._ports: list[_Port] = []
        try:
            for each in listener_configs(config):
                self._ports.append(_Port(each, config, clock))
            self._inter_broker = next(port for port in self._ports if port.config.is_inter_broker)
            _check_cas(self._inter_broker, self._ports)
        except LogbusError:
            self.stop()
            raise

    @property
    def bound(self) -> Endpoint:
        """The address to which the first listener is bound."""
        return self._ports[0].bound

    @property
    def endpoint(self) -> Endpoint:
        """The advertised address of the listener for traffic between brokers."""
        return self._inter_broker.advertised

    @property
    def inter_broker(self) -> ListenerConfig:
        return self._inter_broker.config

    def own_principal(self, security: ClientSecurity) -> str:
        """Return the principal of a broker that connects to the listener for brokers with
        ``security``. Raises LogbusError if its certificate cannot be read or mapped."""
        brokers, tls = self.inter_broker, self._inter_broker.tls
        if brokers.has_logins:
            return f"User:{security.username}"
        if tls is None or not brokers.requires_certificate:
            return ANONYMOUS
        return tls.principal_of(security)

    @property
    def has_tls(self) -> bool:
        return any(port.tls is not None for port in self._ports)

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """The advertised address of each listener."""
        return {port.config.name: port.advertised for port in self._ports}

    def addresses(self) -> str:
        """Return the bound and the advertised address of each listener, as text for a log line."""
        return "; ".join(
            f"{port.config.name} {port.bound}, advertised as {port.advertised}"
            for port in self._ports
        )

    def exposure(self) -> list[str]:
        """Return log lines that warn of unprotected listeners that other machines can reach."""
        return [warning for port in self._ports for warning in port.exposure()]

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Begin,
        *,
        may_connect: Callable[[str], bool] | None = None,
        on_login: OnLogin | None = None,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Start to accept connections. ``begin`` receives every request.

        ``may_connect`` counts a new connection from an address against the address's quota, and
        returns whether the quota allows it; None means no quota. ``on_login`` records logins with
        client certificates (``AuditLog.write``). ``call_soon`` schedules the sending of answers: a
        broker passes ``Disk.call_soon``; the default is the event loop's method."""
        self._may_connect = may_connect
        self._call_soon = call_soon
        self._on_login = on_login
        for warning in self.exposure():
            logger.warning("%s", warning)
        self._loop, self._begin = loop, begin
        self._metrics.gauge("connections", self._count)
        exposed: dict[tuple[str, ...], float] = {
            (port.config.name,): port.is_exposed for port in self._ports
        }
        self._metrics.gauge("insecure_listeners", lambda: exposed)
        self._metrics.gauge("request_memory_bytes", lambda: self._budget.used_bytes)
        self._metrics.gauge("request_memory_limit_bytes", lambda: self._config.in_flight_bytes_max)
        if self.has_tls:
            from broker_lite.server.network.tls_listener import Handshakes

            self._handshakes = Handshakes(
                loop, clock=self._clock, metrics=self._metrics, on_login=on_login
            )
            self._reload = loop.call_later(RELOAD_S, self.reload)
            self._metrics.gauge("certificate_end_seconds", self._certificate_ends)
            for name in (port.config.name for port in self._ports if port.tls is not None):
                self._metrics.counter("certificate_reloads_failed", name)
        for port in self._ports:
            self._resume_accepting(port)

    def _count(self) -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {(port.config.name,): 0 for port in self._ports}
        for connection in self._connections:
            counts[(connection.session.listener,)] += 1
        return counts

    def _certificate_ends(self) -> dict[tuple[str, ...], float]:
        return {
            (port.config.name,): port.tls.ends_ms / 1000
            for port in self._ports
            if port.tls is not None
        }

    def reload(self) -> None:
        """Load changed TLS files for new connections, and close connections whose client
        certificates the files forbid.

        Called every ``RELOAD_S`` seconds."""
        if self._reload is None or self._loop is None:
            return
        self._reload.cancel()
        self._reload = self._loop.call_later(RELOAD_S, self.reload)
        for port in self._ports:
            if port.tls is None:
                continue
            before = port.tls.context
            if not port.tls.reload(self._foreign_cas(port)):
                self._metrics.count("certificate_reloads_failed", port.config.name)
            if port.tls.context is not before:
                name = port.config.name
                waiting = [each for each in self._connections if each.session.listener == name]
                self._close_refused(
                    port.tls, [each for each in waiting if each.session.certificate]
                )
            port.tls.warn_of_end()

    def _foreign_cas(self, port: _Port) -> frozenset[bytes]:
        """Return the certificates (DER) of the CAs that a listener must not trust.

        The listener for brokers must not trust a CA of clients, the other listeners no CA of
        brokers."""
        is_inter_broker = port is self._inter_broker
        others = self._ports if is_inter_broker else [self._inter_broker]
        cas = (each.tls.client_cas for each in others if each is not port and each.tls)
        return frozenset().union(*cas)

    def _close_refused(self, tls: ListenerTls, waiting: list[ClientConnection]) -> None:
        """Close those connections in ``waiting`` whose client certificate the changed TLS files
        forbid."""
        for connection in waiting[-CHECKED_PER_TURN:]:
            if not connection.closed and (why := tls.refusal(connection.session.certificate)):
                connection.close(why)
        del waiting[-CHECKED_PER_TURN:]
        if waiting and self._loop is not None:
            self._loop.call_soon(self._close_refused, tls, waiting)

    def stop(self) -> None:
        """Stop accepting connections. Existing connections continue."""
        for port in self._ports:
            if port.socket.fileno() == -1:
                continue
            if port.is_accepting and self._loop is not None:
                self._loop.remove_reader(port.socket.fileno())
                port.is_accepting = False
            port.socket.close()

    def close(self) -> None:
        """Stop accepting connections, and close all existing ones."""
        self.stop()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._reload is not None:
            self._reload.cancel()
            self._reload = None
        if self._handshakes is not None:
            self._handshakes.close()
        for connection in list(self._connections):
            connection.close("the broker is shutting down", quiet=True)

    @property
    def is_idle(self) -> bool:
        """Whether no connection has a request in flight or an unsent answer."""
        return all(connection.is_idle for connection in self._connections)

    def _resume_accepting(self, port: _Port) -> None:
        assert self._loop is not None
        if port.socket.fileno() != -1 and not port.is_accepting:
            port.is_accepting = True
            self._loop.add_reader(port.socket.fileno(), self._accept, port)

    def _accept(self, port: _Port) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = port.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(port, error)
                return
            self._admit(port, sock, f"{address[0]}:{address[1]}")

    def _pause_accepting(self, port: _Port, error: OSError) -> None:
        assert self._loop is not None
        logger.error(
            "cannot accept connections: %s; trying again",
            error.strerror or error,
            extra=log_event("accept_failed"),
        )
        self._loop.remove_reader(port.socket.fileno())
        port.is_accepting = False
        self._loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting, port)

    def _admit(self, port: _Port, sock: socket.socket, peer: str) -> None:
        refusal = self._refusal(port, peer)
        if refusal:
            self._count_refusal(peer, refusal)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if port.tls is None:
            self._open(port, PlainTransport(sock), peer, self._clock.monotonic_ms())
            return
        assert self._handshakes is not None
        self._close_oldest_logins()
        self._handshakes.begin(sock, peer, port.tls, partial(self._open, port))
        self._sweep_later()

    def _record(
        self, event: str, session: Session, kind: Hashable | None = None, **fields: str
    ) -> None:
        if self._on_login is not None:
            where = {"host": session.host, "listener": session.listener}
            self._on_login(event, kind, mechanism="SSL", **where, **fields)

    def _count_refusal(self, peer: str, refusal: str) -> None:
        logger.warning(
            "%s: connection closed: %s",
            peer,
            refusal,
            extra=log_event("connection_refused", about=peer.rpartition(":")[0]),
        )
        setting = refusal.partition("=")[0].partition(" ")[0]
        self._metrics.count("connections_refused", setting.replace(".", "_"))

    def _refusal(self, port: _Port, peer: str) -> str:
        """Return the limit that forbids another connection of this peer, as text; empty if none
        does."""
        if port.config.is_of_brokers_alone:
            # Connections of brokers have no limit, so that clients cannot keep out a broker by
            # using up the connections.
            return ""
        config = self._config
        handshakes = len(self._handshakes) if self._handshakes is not None else 0
        if len(self._connections) + handshakes >= config.connections_max:
            return f"max.connections={config.connections_max} connections are open already"
        if refusal := self._address_refusal(port, peer):
            return refusal
        if self._may_connect is None or self._may_connect(_host(peer)):
            return ""
        return f"{CONNECTION_CREATION_RATE} of this address is used up; see logbus quota list"

    def _address_refusal(self, port: _Port, peer: str) -> str:
        most = self._config.connections_per_ip_max
        if port.config.is_of_brokers_alone or self._of_address[_limited(peer)] < most:
            return ""
        return f"max.connections.per.ip={most} connections of this address are open already"

    def _open(self, port: _Port, transport: Transport, peer: str, began_ms: int) -> None:
        """Serve an accepted connection, after its TLS handshake if there is one.

        ``began_ms`` is the monotonic time at which it was accepted."""
        assert self._loop is not None and self._begin is not None
        if refusal := self._address_refusal(port, peer):
            # Check the limit again: other connections of the address may have reached it during
            # this connection's TLS handshake.
            self._count_refusal(peer, refusal)
            transport.close()
            return
        session = Session(
            self._admitted + 1,
            peer,
            port.config.name,
            is_encrypted=port.tls is not None,
            takes_logins=port.config.has_logins,
            needs_login=port.config.has_logins,
            opened_ms=began_ms,
            certificate=transport.subject,
        )
        if port.tls is not None and session.certificate and session.needs_login:
            # The login names the user, but the session also ends with the certificate.
            session.certificate_ends_ms = port.tls.end_of(session.certificate)
        elif port.tls is not None and session.certificate:
            try:
                identity = port.tls.identify(session.certificate)
                session.principal, session.certificate_ends_ms = identity
                self._record("login", session, user=session.principal)
            except LogbusError as error:
                why = error.message
                self._record("login_failed", session, (session.host, why), reason=why)
                logger.warning("%s: connection closed: %s", peer, error.message)
                self._metrics.count("connections_refused", "certificate")
                transport.close()
                return
        self._admitted += 1
        address = _limited(peer)
        if address:
            self._of_address[address] += 1
        connection = ClientConnection(
            self._loop,
            transport,
            session,
            receiver=FrameReceiver(
                REQUEST_BYTES_BEFORE_LOGIN_MAX
                if session.needs_login
                else self._config.frame_bytes_max,
                scratch=self._scratch,
                allocate=self._frames.take,
                grows=True,
            ),
            budget=self._budget,
            clock=self._clock,
            requests_max=self._config.connection_requests_max,
            frame_bytes_max=self._config.frame_bytes_max,
            begin=self._begin,
            ended=self._ended,
            call_soon=self._call_soon,
        )
        self._connections.add(connection)
        if session.needs_login:
            self._close_oldest_logins()
            self._early[connection] = None
        self._sweep_later()

    def _close_oldest_logins(self) -> None:
        """Close the oldest connections that have not logged in, to allow a new one.

        TLS handshakes count as well, so that slow ones cannot keep out other clients' logins."""
        limit, handshakes = self._config.connections_before_login_max, self._handshakes
        if len(self._early) + len(handshakes or ()) < limit:
            return
        self._early = {each: None for each in self._early if each.session.is_before_login}
        while len(self._early) + len(handshakes or ()) >= limit:
            login = next(iter(self._early), None)
            if handshakes and (login is None or handshakes.began_ms[0] <= login.session.opened_ms):
                handshakes.end_oldest("connections.before.login.max was reached")
            elif login is not None:
                self._metrics.count("connections_refused", "connections_before_login_max")
                login.close(
                    f"connections.before.login.max={limit} connections have not logged in, and "
                    "this is the oldest"
                )

    def _sweep_later(self) -> None:
        if self._sweep is None:
            assert self._loop is not None
            self._sweep = self._loop.call_later(self._sweep_delay_s(), self._end_silent)

    def _sweep_delay_s(self) -> float:
        """Return the seconds until the next sweep of the connections: less than usual if a
        client's time to log in ends sooner."""
        self._early = {each: None for each in self._early if each.session.is_before_login}
        began_ms = [each.session.opened_ms for each in self._early]
        began_ms += [] if self._handshakes is None else self._handshakes.began_ms
        if not began_ms:
            return self._sweep_s
        overdue_ms = min(began_ms) + self._config.login_timeout_ms + 1
        left_s = (overdue_ms - self._clock.monotonic_ms()) / 1000
        return min(self._sweep_s, max(left_s, SWEEP_MIN_S))

    def _ended(self, connection: ClientConnection, reason: str) -> None:
        self._connections.discard(connection)
        self._early.pop(connection, None)
        address = _limited(connection.session.peer)
        if address:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def _end_silent(self) -> None:
        """Close idle and stalled connections, and release unused frame buffers. Schedule the next
        sweep if connections or free buffers are left."""
        assert self._loop is not None
        now_ms = self._clock.monotonic_ms()
        idle_before = now_ms - self._config.connection_idle_ms
        began_before = now_ms - self._config.frame_timeout_ms
        silent_before = now_ms - STALLED_MS if self._budget.is_waited_for else 0
        unread_before = max(silent_before, idle_before, now_ms - UNREAD_MS)
        wall_ms = self._clock.now_ms()
        login_before = now_ms - self._config.login_timeout_ms
        if self._handshakes is not None:
            self._handshakes.expire(self._config.login_timeout_ms)
        for connection in list(self._connections):
            if connection.frame_began_ms and connection.frame_began_ms < began_before:
                limit = self._config.frame_timeout_ms
                connection.close(f"a request was not complete within {limit} ms")
            elif connection.frame_began_ms and connection.active_ms < silent_before:
                connection.close(
                    f"a partial request received no bytes for {STALLED_MS} ms, while others "
                    f"wait for its memory (queued.max.bytes)"
                )
            elif 0 < connection.unread_since_ms < unread_before:
                connection.close("the client does not read its answers")
            elif connection.active_ms < idle_before and connection.is_idle:
                connection.close("idle", quiet=True)
            elif 0 < connection.session.certificate_ends_ms < wall_ms:
                connection.close("the client's certificate has expired")
            elif connection.session.opened_ms < login_before and connection.session.is_before_login:
                limit = self._config.login_timeout_ms
                connection.close(f"no login within login.timeout.ms={limit}")
        swept_bytes = self._frames.sweep()
        if self._budget.has_shrunk() or swept_bytes >= SHRUNK_BYTES:
            heap.trim()
        self._sweep = None
        if self._connections or self._handshakes or self._frames.kept_bytes:
            self._sweep_later()


class _Port:
    """The socket, the addresses and the TLS context of one listener."""

    def __init__(self, listener: ListenerConfig, config: BrokerConfig, clock: Clock) -> None:
        self.config = listener
        self._broker = config
        self.tls: ListenerTls | None = None
        self.is_accepting = False
        self.socket = _bind(listener, config)
        host, port = self.socket.getsockname()[:2]
        self.bound = Endpoint(host, port)
        advertised = listener.advertised or Endpoint(listener.bind.host, port)
        self.advertised = Endpoint(advertised.host, advertised.port or port)
        if listener.tls is not None:
            from broker_lite.server.network.tls_listener import ListenerTls

            host = self.advertised.host
            is_any = host in ("0.0.0.0", "::")
            try:
                self.tls = ListenerTls(listener, "" if is_any else host, clock=clock)
            except LogbusError:
                self.socket.close()
                raise

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach the listener although it lacks TLS, logins or an
        authorizer."""
        is_local = _address(self.bound.host).is_loopback
        return not is_local and bool(_weakness(self.config, self._broker))

    def exposure(self) -> list[str]:
        address = _address(self.bound.host)
        if address.is_loopback:
            return []
        weakness = _weakness(self.config, self._broker)
        warning = [f"{self.config.setting} {weakness}"] if weakness else []
        if address.is_unspecified and self.config.advertised is None:
            warning.append(
                f"{_advertising(self.config)} is empty, so the advertised host is "
                f"{self.bound.host}, which other machines resolve to themselves: set it to a "
                "name of this machine"
            )
        return warning


def _check_cas(brokers: _Port, ports: list[_Port]) -> None:
    """Raise InvalidConfigError if a listener for clients trusts a CA of the listener for brokers.

    The CAs themselves are compared, because two truststore files may hold the same CA."""
    if brokers.tls is None:
        return
    trusted = brokers.tls.client_cas
    for port in ports:
        if port is not brokers and port.tls is not None and trusted & port.tls.client_cas:
            raise InvalidConfigError(
                f"listeners {brokers.config.name} and {port.config.name} trust the same CA "
                "(ssl.truststore.location), so every client could pose as a broker; give the "
                "brokers a CA of their own"
            )


def _weakness(listener: ListenerConfig, config: BrokerConfig) -> str:
    """Return which protections the listener lacks, as text for an error; empty if it lacks none."""
    lacks = []
    if listener.tls is None:
        lacks.append("TLS")
    if not (listener.has_logins or listener.requires_certificate):
        lacks.append("logins")
    if config.authorizer != "enforce":
        lacks.append("authorizer=enforce")
    if not lacks and listener.shares_certificates:
        return (
            "is reached from other machines by clients and brokers with certificates of one CA, so "
            "that a client whose certificate has a broker's name is a broker; give the brokers a "
            "listener and a CA of their own (inter.broker.listener.name)"
        )
    if not lacks:
        return ""
    return (
        f"is reached from other machines without {', '.join(lacks)}: any client may read, write "
        "and delete"
    )


def _advertising(listener: ListenerConfig) -> str:
    is_short = listener.setting.startswith("host=")
    return "advertised.host" if is_short else "advertised.listeners"


def _host(peer: str) -> str:
    return canonical_host(peer.rpartition(":")[0])


def _limited(peer: str) -> str:
    """Return the address under which ``max.connections.per.ip`` counts the peer; empty for
    loopback.

    All addresses of an IPv6 /64 count as one."""
    return _limited_host(peer.rpartition(":")[0])


@lru_cache(maxsize=ADDRESSES_CACHED)
def _limited_host(host: str) -> str:
    host = canonical_host(host)
    return "" if _address(host).is_loopback else network_of(host)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host.partition("%")[0])


def _bind(listener: ListenerConfig, config: BrokerConfig) -> socket.socket:
    host, port = listener.bind
    is_short = listener.setting.startswith("host=")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        reason = error.strerror or error
        raise InvalidConfigError(f"{listener.setting}: cannot resolve {host}: {reason}") from None
    family, kind, protocol, _, address = addresses[0]
    is_own = config.listeners_insecure_allow or _address(str(address[0])).is_loopback
    if not is_own and (weakness := _weakness(listener, config)):
        raise InvalidConfigError(
            f"{listener.setting} {weakness}. Set up the missing protection (on one machine: "
            "logbus up --secure), listen on 127.0.0.1, or, on a private network, set "
            "listeners.insecure.allow=true (logbus up --insecure)"
        )
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        at = f"port={port} on host={host}" if is_short else listener.setting
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"{at} is in use; stop the process that listens there, or set "
                f"{'port' if is_short else 'listeners'} to another number (0 takes a free one)"
            ) from None
        at = f"host={host} port={port}" if is_short else listener.setting
        raise InvalidConfigError(f"cannot listen on {at}: {why_not_listening(error)}") from None
    return sock
