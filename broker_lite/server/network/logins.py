"""Logins with SCRAM: what a client may send before its login, and when its session ends.

A listener with ``sasl.enabled.mechanisms`` takes only SaslHandshake, ApiVersions and
SaslAuthenticate before the login. A session ends with its credential: after a change of users the
broker closes every session whose key is not stored any more. With ``connections.max.reauth.ms`` a
client must log in again in time (KIP-368), with the same mechanism and as the same user. Loop
thread.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from broker_lite.errors import (
    IllegalSaslStateError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
)
from broker_lite.model import ScramMechanism
from broker_lite.security.scram import ScramCredential, UserCredentials
from broker_lite.security.scram_server import ScramLogin
from broker_lite.server.clock import Clock
from broker_lite.server.network.context import Session
from broker_lite.wire.api import ApiKey

BEFORE_LOGIN = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE})
"""APIs that a client may use before its login."""
REQUESTS_BEFORE_LOGIN_MAX = 8
REQUEST_BYTES_BEFORE_LOGIN_MAX = 16 << 10
FAILURE_DELAY_S = 0.1
"""Seconds until a failed login is answered (Kafka's connection.failed.authentication.delay.ms)."""
SWEEP_MS = 1000
"""Milliseconds between checks for sessions that have ended."""
NONCE_BYTES = 24

logger = logging.getLogger("logbus.logins")


class Connection(Protocol):
    """The connection of a session."""

    closed: bool

    def close(self, reason: str) -> None: ...


class Logins:
    """The logins at one broker. ``users`` returns the present users. Without ``mechanisms`` the
    broker takes no logins, and every API is open."""

    def __init__(
        self,
        mechanisms: tuple[ScramMechanism, ...] = (),
        *,
        clock: Clock | None = None,
        users: Callable[[], Mapping[str, UserCredentials]] = dict,
        salt_key: bytes = b"",
        reauth_ms: int = 0,
    ) -> None:
        self.mechanisms = mechanisms
        self._clock = clock or Clock()
        self._users = users
        self._salt_key = salt_key
        self.reauth_ms = reauth_ms
        self._sessions: dict[int, tuple[Session, Connection]] = {}

    def why_refused(self, session: Session, api_key: int, size: int) -> str:
        """Return why a session that has not logged in may not send this request; "" if it may."""
        session.early_requests += 1
        if api_key not in BEFORE_LOGIN:
            return (
                "a request before the login: set security.protocol=SASL_PLAINTEXT (or SASL_SSL), "
                "sasl.mechanism, sasl.username and sasl.password in the client"
            )
        if size > REQUEST_BYTES_BEFORE_LOGIN_MAX:
            most = REQUEST_BYTES_BEFORE_LOGIN_MAX
            return f"a request of {size} bytes before the login; at most {most} are taken"
        if session.early_requests > REQUESTS_BEFORE_LOGIN_MAX:
            return f"more than {REQUESTS_BEFORE_LOGIN_MAX} requests without a login"
        return ""

    def choose(self, session: Session, name: str) -> None:
        """Begin a login with the mechanism of this name."""
        session.exchange = None
        if not self.mechanisms:
            raise IllegalSaslStateError(
                "this broker takes no logins: sasl.enabled.mechanisms is empty"
            )
        if not session.takes_logins:
            raise IllegalSaslStateError(f"listener {session.listener} takes no logins")
        if name not in self.mechanisms:
            enabled = ", ".join(self.mechanisms)
            raise UnsupportedSaslMechanismError(
                f"sasl.mechanism={name[:40]!r} is not enabled; give one of {enabled}"
            )
        mechanism = ScramMechanism(name)
        session.mechanism_chosen = mechanism
        session.exchange = ScramLogin(
            mechanism,
            lambda user: self._credential(user, mechanism),
            secrets.token_urlsafe(NONCE_BYTES),
            self._salt_key,
        )

    def step(self, session: Session, message: bytes) -> bytes:
        """Return the server's next message. After the last, the session has the user's principal.

        Raises SaslAuthenticationError, whose message must not reach the client, and
        IllegalSaslStateError for a message without a handshake.
        """
        login = session.exchange
        if login is None:
            raise IllegalSaslStateError("SaslAuthenticate without SaslHandshake before it")
        if not session.is_challenged:
            session.is_challenged = True
            try:
                return login.challenge(message)
            except SaslAuthenticationError:
                self._forget(session)
                raise
        self._forget(session)
        proof = login.finish(message)
        principal = f"User:{login.user}"
        is_again = session.key is not None
        if is_again and (principal, session.mechanism_chosen) != (
            session.principal,
            session.mechanism,
        ):
            raise SaslAuthenticationError(
                f"{session.principal} with {session.mechanism} logged in again as {principal} "
                f"with {session.mechanism_chosen}"
            )
        session.principal = principal
        session.mechanism = session.mechanism_chosen
        session.key = login.pair
        session.needs_login = False
        session.early_requests = 0
        session.ends_ms = self._clock.monotonic_ms() + self.reauth_ms if self.reauth_ms else 0
        return proof

    @staticmethod
    def _forget(session: Session) -> None:
        session.exchange, session.is_challenged = None, False

    def _credential(self, user: str, mechanism: str) -> ScramCredential | None:
        credentials = self._users().get(user)
        found = None if credentials is None else credentials.get(ScramMechanism(mechanism))
        return None if found is None else found.at(self._clock.now_ms())

    def watch(self, session: Session, connection: Connection) -> None:
        """Close the connection when the session ends."""
        self._sessions[id(session)] = session, connection

    def sweep(self) -> None:
        """Close the connections of sessions whose key is gone, and demand a new login of those
        whose time is over. Call it after each change of users and every second."""
        now_ms = self._clock.monotonic_ms()
        for number, (session, connection) in list(self._sessions.items()):
            if connection.closed:
                del self._sessions[number]
            elif session.key is not None and not self._has_key(session):
                connection.close(f"the credential of {session.principal} has changed or is deleted")
            elif session.ends_ms and session.ends_ms <= now_ms:
                session.needs_login = True

    def _has_key(self, session: Session) -> bool:
        user = session.principal.removeprefix("User:")
        credential = self._credential(user, session.mechanism)
        return credential is not None and session.key in credential.pairs


def is_private(session: Session) -> bool:
    """Return whether the session is safe from listeners: TLS, or both ends on this machine."""
    return session.is_encrypted or ipaddress.ip_address(session.host.strip("[]")).is_loopback
