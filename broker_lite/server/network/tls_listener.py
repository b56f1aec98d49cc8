"""TLS of one listener: its context, which follows changed files, and its handshakes.

Loop thread. A handshake is a row of non-blocking steps; one loop turn spends at most
``HANDSHAKE_TURN_S`` on them, so that a storm of connections delays others little.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable

from broker_lite.config.listeners import ListenerConfig, TlsSettings
from broker_lite.errors import LogbusError
from broker_lite.net.certificates import check_certificate, subject_of
from broker_lite.net.contexts import handshake_refusal, server_context, try_handshake
from broker_lite.net.tls import TlsTransport
from broker_lite.security.certificate_names import parse_rules, principal_of
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics

logger = logging.getLogger("logbus.tls")

HANDSHAKE_TURN_S = 0.003
"""Seconds of handshake steps in one loop turn; one step takes about 1 ms."""


class ListenerTls:
    """The context of one listener. ``context`` changes when its files change."""

    def __init__(self, listener: ListenerConfig, host: str, *, clock: Clock) -> None:
        assert listener.tls is not None
        self._listener = listener
        self._tls: TlsSettings = listener.tls
        self._host = host
        self._clock = clock
        self._rules = parse_rules(self._tls.mapping_rules)
        self._seen = self._versions()
        self.ends_ms = 0
        """When the certificate ends (wall clock)."""
        self.context = self._checked_context()

    def _checked_context(self) -> ssl.SSLContext:
        tls = self._tls
        self.ends_ms = check_certificate(
            tls.keystore,
            f"{tls.prefix}ssl.keystore.location",
            self._host,
            self._clock.now_ms(),
        )
        try_handshake(tls)
        return server_context(tls)

    def _versions(self) -> list[tuple[int, int]]:
        found = []
        for path in self._tls.paths:
            try:
                status = os.stat(path)
            except OSError:
                found.append((0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_ino))
        return found

    def reload(self) -> bool:
        """Use changed files for new connections. Return False if they are unusable: the old
        certificate stays in use."""
        seen = self._versions()
        if seen == self._seen:
            return True
        self._seen = seen
        try:
            self.context = self._checked_context()
        except LogbusError as error:
            logger.error("the changed TLS files are not used: %s", error.message)
            return False
        logger.info("listener %s uses the changed TLS files", self._listener.name)
        return True

    def identify(self, certificate: bytes) -> tuple[str, int]:
        """Return the principal of a client certificate and when it ends (wall-clock ms).

        Raises SaslAuthenticationError for names without a principal.
        """
        name, ends_ms = subject_of(certificate)
        return principal_of(name, self._rules), ends_ms


Opened = Callable[[TlsTransport, str], None]


class _Handshake:
    __slots__ = ("began_ms", "opened", "peer", "transport")

    def __init__(self, transport: TlsTransport, peer: str, began_ms: int, opened: Opened) -> None:
        self.transport = transport
        self.peer = peer
        self.began_ms = began_ms
        self.opened = opened


class Handshakes:
    """Connections in the TLS handshake, of all listeners. The oldest makes way for the newest."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, limit: int, clock: Clock, metrics: Metrics
    ) -> None:
        self._loop = loop
        self._limit = limit
        self._clock = clock
        self._metrics = metrics
        self._open: dict[_Handshake, None] = {}
        self._ready: deque[_Handshake] = deque()
        self._is_due = False

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, sock: socket.socket, peer: str, tls: ListenerTls, opened: Opened) -> None:
        """Shake hands on an accepted socket; call ``opened`` once the transport may be used."""
        if len(self._open) >= self._limit:
            self._end(next(iter(self._open)), "connections.before.login.max was reached")
        try:
            transport = TlsTransport(sock, tls.context, server_side=True)
        except OSError as error:
            # The peer has left already.
            logger.debug("%s: closed: %s", peer, handshake_refusal(error))
            sock.close()
            return
        handshake = _Handshake(transport, peer, self._clock.monotonic_ms(), opened)
        self._open[handshake] = None
        self._loop.add_reader(transport.fileno(), self._wake, handshake)

    def _wake(self, handshake: _Handshake) -> None:
        self._unwatch(handshake)
        self._ready.append(handshake)
        self._run_soon()

    def _run_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        until = time.perf_counter() + HANDSHAKE_TURN_S
        while self._ready and time.perf_counter() < until:
            handshake = self._ready.popleft()
            if handshake in self._open:
                self._step(handshake)
        if self._ready:
            self._run_soon()

    def _step(self, handshake: _Handshake) -> None:
        transport = handshake.transport
        try:
            transport.handshake()
        except BlockingIOError:
            watch = self._loop.add_writer if transport.wants_write else self._loop.add_reader
            watch(transport.fileno(), self._wake, handshake)
        except OSError as error:
            self._end(handshake, handshake_refusal(error))
        else:
            del self._open[handshake]
            handshake.opened(transport, handshake.peer)

    def expire(self, timeout_ms: int) -> None:
        """Close connections whose handshake takes longer than ``timeout_ms``."""
        before = self._clock.monotonic_ms() - timeout_ms
        for handshake in list(self._open):
            if handshake.began_ms < before:
                self._end(handshake, f"no TLS handshake within login.timeout.ms={timeout_ms}")

    def close(self) -> None:
        for handshake in list(self._open):
            self._unwatch(handshake)
            handshake.transport.close()
        self._open.clear()

    def _end(self, handshake: _Handshake, reason: str) -> None:
        del self._open[handshake]
        self._metrics.count("connections_refused", "handshake")
        about = f"{handshake.peer.rpartition(':')[0]} {reason}"
        logger.warning("%s: closed: %s", handshake.peer, reason, extra={"about": about})
        self._unwatch(handshake)
        handshake.transport.refuse()

    def _unwatch(self, handshake: _Handshake) -> None:
        descriptor = handshake.transport.fileno()
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)
