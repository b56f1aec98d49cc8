"""The TLS of a listener: load its certificates, reload changed ones, and do TLS handshakes.

A handshake is a sequence of non-blocking steps. One iteration of the event loop spends about
``HANDSHAKE_TURN_S`` seconds on steps, so that many new connections hardly delay open ones."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

from broker_lite.config import DAY
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.listeners import ListenerConfig, TlsSettings
from broker_lite.errors import InvalidConfigError, LogbusError
from broker_lite.net.certificates import (
    ClientTrust,
    check_certificate,
    read_certificate,
    read_revocations,
    subject_of,
)
from broker_lite.net.contexts import handshake_refusal, server_context, try_handshake
from broker_lite.net.tls import TlsTransport
from broker_lite.security.acls import canonical_host
from broker_lite.security.certificate_names import parse_rules, principal_of
from broker_lite.server.clock import Clock
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Metrics

logger = logging.getLogger("logbus.tls")

WARNED_BEFORE_END_MS = 30 * DAY
"""The broker warns once a day from this many milliseconds before its certificate expires."""
HANDSHAKE_TURN_S = 0.002
"""Seconds after which no further handshake step starts in an iteration of the event loop.

A step takes about 1 ms."""


class ListenerTls:
    """The TLS context of one listener.

    ``host`` is the advertised host, which the certificate must name; an empty text omits that
    check. ``reload`` replaces ``context`` when the files have changed."""

    def __init__(self, listener: ListenerConfig, host: str, *, clock: Clock) -> None:
        assert listener.tls is not None
        self._listener = listener
        self._tls: TlsSettings = listener.tls
        self._host = host
        self._clock = clock
        self._rules = parse_rules(self._tls.mapping_rules)
        self._seen = self._versions()
        self.ends_ms = 0
        """Wall time (ms) at which the broker's certificate expires."""
        self._warned_ms = 0
        self.context = self._checked_context()
        self._trust = self._read_trust(self.context)
        self._has_lost_cas = False
        """Whether the last change of the files removed a CA. ``refusal`` then also checks which CA
        signed a client's certificate."""

    @property
    def listener_name(self) -> str:
        return self._listener.name

    @property
    def demands_certificate(self) -> bool:
        """Whether the listener requires a client certificate, whose name becomes the client's
        principal."""
        return self._listener.requires_certificate

    @property
    def client_cas(self) -> frozenset[bytes]:
        """The CAs (DER) whose certificates the listener accepts from clients."""
        return _cas(self.context)

    def _read_trust(self, context: ssl.SSLContext) -> ClientTrust:
        tls, now_ms = self._tls, self._clock.now_ms()
        revoked = read_revocations(tls.crl, f"{tls.prefix}ssl.crl.location", now_ms)
        return ClientTrust(_cas(context), revoked)

    def _checked_context(self) -> ssl.SSLContext:
        tls = self._tls
        self.ends_ms = check_certificate(
            tls.keystore,
            f"{tls.prefix}ssl.keystore.location",
            self._host,
            self._clock.now_ms(),
        )
        context = server_context(tls)
        try_handshake(tls, is_mutual=self._listener.is_of_brokers_alone)
        return context

    def _versions(self) -> list[tuple[int, int]]:
        versions = []
        for path in self._tls.paths:
            try:
                status = os.stat(path)
            except OSError:
                versions.append((0, 0))
            else:
                versions.append((status.st_mtime_ns, status.st_ino))
        return versions

    def reload(self, foreign_cas: frozenset[bytes] = frozenset()) -> bool:
        """Load the TLS files for new connections if they have changed.

        Return False and keep the former context if they cannot be used or trust one of
        ``foreign_cas``, the CAs (DER) that the listener must not trust."""
        seen = self._versions()
        if seen == self._seen:
            return True
        self._seen = seen
        try:
            context = self._checked_context()
            trust = self._read_trust(context)
            if foreign_cas & _cas(context):
                raise InvalidConfigError(
                    f"{self._tls.prefix}ssl.truststore.location={self._tls.truststore}: brokers "
                    "and clients would share a CA, so every client could pose as a broker; give "
                    "the brokers a CA of their own"
                )
        except LogbusError as error:
            logger.error(
                "the changed TLS files are not used: %s",
                error.message,
                extra=log_event("certificate_rejected"),
            )
            return False
        self._has_lost_cas = bool(self.client_cas - _cas(context))
        self.context, self._trust = context, trust
        logger.info(
            "listener %s uses the changed TLS files",
            self._listener.name,
            extra=log_event("certificate_reloaded"),
        )
        return True

    def refusal(self, certificate: bytes) -> str:
        """Return why the current TLS files forbid an open session's client certificate (DER).

        Return an empty text if they allow it. After a CA was removed, each certificate that no
        remaining CA signed directly is forbidden: Python's ``ssl`` does not show intermediate CAs.
        The client's next handshake checks the whole chain."""
        return self._trust.refusal(certificate, checks_ca=self._has_lost_cas)

    def warn_of_end(self) -> None:
        """Log once a day that the broker's certificate expires within 30 days or has expired."""
        now_ms = self._clock.now_ms()
        left_ms = self.ends_ms - now_ms
        if left_ms > WARNED_BEFORE_END_MS or now_ms - self._warned_ms < DAY:
            return
        self._warned_ms = now_ms
        when = "has ended" if left_ms < 0 else f"ends in {left_ms // DAY} days"
        logger.warning(
            "%sssl.keystore.location=%s: the certificate of listener %s %s; replace the file, the "
            "broker loads it by itself",
            self._tls.prefix,
            self._tls.keystore,
            self._listener.name,
            when,
            extra=log_event("certificate_ends"),
        )

    def identify(self, certificate: bytes) -> tuple[str, int]:
        """Return the principal for a client certificate (DER), and when it expires (wall time, ms).

        Raises SaslAuthenticationError if no mapping rule applies to the certificate's name."""
        name, ends_ms = subject_of(certificate)
        return principal_of(name, self._rules), ends_ms

    def end_of(self, certificate: bytes) -> int:
        """Return when a client certificate (DER) expires (wall time, ms)."""
        return subject_of(certificate)[1]

    def principal_of(self, security: ClientSecurity) -> str:
        """Return the principal of a client with the certificate in ``security``.

        Raises InvalidConfigError if the file cannot be read, and SaslAuthenticationError if no
        mapping rule applies."""
        path = security.certificate_location
        return self.identify(read_certificate(path, "ssl.certificate.location"))[0]


def _cas(context: ssl.SSLContext) -> frozenset[bytes]:
    return frozenset(context.get_ca_certs(binary_form=True))


Opened = Callable[[TlsTransport, str, int], None]
"""A function that receives a completed handshake: transport, client's ``host:port``, and the
monotonic time (ms) at which the connection was accepted."""


class OnLogin(Protocol):
    """Records a successful or failed login (``AuditLog.write``).

    Of events with equal ``event`` and ``kind``, at most one is recorded in 10 s."""

    def __call__(self, event: str, kind: Hashable | None = None, **fields: str) -> None: ...


class _Handshake:
    __slots__ = ("began_ms", "context", "opened", "peer", "tls", "transport")

    def __init__(
        self, transport: TlsTransport, peer: str, began_ms: int, opened: Opened, tls: ListenerTls
    ) -> None:
        self.tls, self.context = tls, tls.context
        self.transport = transport
        self.peer = peer
        self.began_ms = began_ms
        self.opened = opened


class Handshakes:
    """The connections of all listeners whose TLS handshake is in progress.

    The listeners take turns, so that a flood of clients' handshakes does not delay those of
    brokers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock,
        metrics: Metrics,
        on_login: OnLogin | None = None,
    ) -> None:
        self._on_login = on_login
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._open: dict[_Handshake, None] = {}
        self._ready: dict[ListenerTls, deque[_Handshake]] = {}
        """The handshakes whose next step can run, by listener. The listener whose turn is next is
        first."""
        self._is_due = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def began_ms(self) -> list[int]:
        """A list with the monotonic time (ms) at which the oldest handshake began; empty without
        handshakes."""
        return [each.began_ms for each in itertools.islice(self._open, 1)]

    def begin(self, sock: socket.socket, peer: str, tls: ListenerTls, opened: Opened) -> None:
        """Start the TLS handshake on an accepted socket; ``opened`` is called when it is
        complete."""
        transport = TlsTransport(sock, tls.context, server_side=True)
        handshake = _Handshake(transport, peer, self._clock.monotonic_ms(), opened, tls)
        self._open[handshake] = None
        self._loop.add_reader(transport.fileno(), self._wake, handshake)

    def _wake(self, handshake: _Handshake) -> None:
        self._unwatch(handshake)
        self._ready.setdefault(handshake.tls, deque()).append(handshake)
        self._run_soon()

    def _run_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        until = time.perf_counter() + HANDSHAKE_TURN_S
        while self._ready and time.perf_counter() < until:
            tls = next(iter(self._ready))
            waiting = self._ready.pop(tls)
            handshake = waiting.popleft()
            if waiting:
                self._ready[tls] = waiting
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
            if transport.subject and handshake.context is not handshake.tls.context:
                # The TLS files have changed since the handshake began, and may now reject the
                # certificate: its CA may no longer be trusted, or it may be revoked.
                self._end(handshake, "the TLS files changed during the handshake; connect again")
                return
            del self._open[handshake]
            handshake.opened(transport, handshake.peer, handshake.began_ms)

    def end_oldest(self, reason: str) -> None:
        """Close the connection whose handshake began first, to make room for a new one."""
        self._end(next(iter(self._open)), reason)

    def expire(self, timeout_ms: int) -> None:
        """Close the connections whose handshake has taken longer than ``timeout_ms``."""
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
        if self._on_login is not None and handshake.tls.demands_certificate:
            host = canonical_host(handshake.peer.rpartition(":")[0])
            fields = {"host": host, "listener": handshake.tls.listener_name, "reason": reason}
            self._on_login("login_failed", (host, reason), mechanism="SSL", **fields)
        about = f"{handshake.peer.rpartition(':')[0]} {reason}"
        logger.warning(
            "%s: connection closed: %s",
            handshake.peer,
            reason,
            extra=log_event("tls_handshake_failed", about=about),
        )
        self._unwatch(handshake)
        handshake.transport.refuse()

    def _unwatch(self, handshake: _Handshake) -> None:
        descriptor = handshake.transport.fileno()
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)
