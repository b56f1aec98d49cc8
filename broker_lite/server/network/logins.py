"""Logins: the requests allowed before a login, the SASL exchange, and the end of sessions.

A listener with ``sasl.enabled.mechanisms`` accepts only SaslHandshake, ApiVersions and
SaslAuthenticate before the login. A session ends with its credential: after a change of users the
broker closes every session whose stored key was removed. The session of a token ends when the token
expires. With ``connections.max.reauth.ms``, and before its token expires, a client must log in
again (KIP-368), with the same mechanism and as the same user. Runs on the event-loop thread; the
threads of ``threads`` check PLAIN passwords.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from broker_lite.errors import (
    IllegalSaslStateError,
    LogbusError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
)
from broker_lite.model import PLAIN, TLS_ONLY, ScramMechanism
from broker_lite.security.bearer import CheckedToken, parse_bearer
from broker_lite.security.login_failures import FailedLogins
from broker_lite.security.plain import PlainClaim, parse_plain, proven_pair
from broker_lite.security.scram import KeyPair, ScramCredential, UserCredentials
from broker_lite.security.scram_server import ScramLogin, fake_credential
from broker_lite.server.clock import Clock
from broker_lite.server.network.context import Session
from broker_lite.wire.api import ApiKey

BEFORE_LOGIN = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE})
"""APIs that a client may use before its login."""
REQUESTS_BEFORE_LOGIN_MAX = 8
REQUEST_BYTES_BEFORE_LOGIN_MAX = 16 << 10
SWEEP_MS = 1000
"""Milliseconds between checks for sessions that have ended."""
NONCE_BYTES = 24
CHECK_THREADS = 2
"""Maximum PLAIN passwords that are checked concurrently; each takes milliseconds of CPU time."""

logger = logging.getLogger("logbus.logins")


class Connection(Protocol):
    """The connection of a session."""

    closed: bool

    def close(self, reason: str) -> None: ...


class Issuer(Protocol):
    """The issuer of access tokens that the broker trusts."""

    async def check(self, token: str) -> CheckedToken: ...

    async def refresh(self) -> None: ...


class LoginAnswer(NamedTuple):
    """The server's next message of a login, and whether the client is logged in now."""

    message: bytes
    is_done: bool


class Proof(NamedTuple):
    """The outcome of a successful login: the user, the server's last message, the stored keys that
    match (None: login with a token), and the end of the token (wall-clock ms; 0: never).
    """

    user: str
    answer: bytes = b""
    key: KeyPair | None = None
    ends_ms: int = 0


def _any_name(name: str) -> None:
    """Accept every user name."""


class Logins:
    """The logins at one broker. ``users`` returns the present users; ``check_name`` raises for a
    name that no token may have. If ``mechanisms`` is empty, the broker accepts no logins and every
    API is open. OAUTHBEARER needs ``issuer``.
    """

    def __init__(
        self,
        mechanisms: tuple[str, ...] = (),
        *,
        clock: Clock | None = None,
        users: Callable[[], Mapping[str, UserCredentials]] = dict,
        salt_key: bytes = b"",
        reauth_ms: int = 0,
        issuer: Issuer | None = None,
        threads: Executor | None = None,
        check_name: Callable[[str], None] = _any_name,
    ) -> None:
        self.mechanisms = mechanisms
        self._clock = clock or Clock()
        self._users = users
        self._salt_key = salt_key
        self._reauth_ms = reauth_ms
        self._issuer = issuer
        self._threads = threads
        self._check_name = check_name
        self._failures = FailedLogins()
        self._sessions: dict[int, tuple[Session, Connection]] = {}

    def why_refused(self, session: Session, api_key: int, size: int) -> str:
        """Return why a session without a login may not send this request; "" if it may."""
        session.early_requests += 1
        if api_key not in BEFORE_LOGIN:
            return (
                "a request before the login: set security.protocol=SASL_PLAINTEXT (or SASL_SSL), "
                "sasl.mechanism, sasl.username and sasl.password in the client"
            )
        if size > REQUEST_BYTES_BEFORE_LOGIN_MAX:
            most = REQUEST_BYTES_BEFORE_LOGIN_MAX
            return f"a request of {size} bytes before the login; at most {most} are allowed"
        if session.early_requests > REQUESTS_BEFORE_LOGIN_MAX:
            return f"more than {REQUESTS_BEFORE_LOGIN_MAX} requests without a login"
        return ""

    def choose(self, session: Session, name: str) -> None:
        """Begin a login with the mechanism of this name."""
        self._forget(session)
        if not self.mechanisms:
            raise IllegalSaslStateError(
                "this broker has no logins: sasl.enabled.mechanisms is empty"
            )
        if not session.takes_logins:
            raise IllegalSaslStateError(f"listener {session.listener} has no logins")
        if name not in self.mechanisms:
            enabled = ", ".join(self.mechanisms)
            raise UnsupportedSaslMechanismError(
                f"sasl.mechanism={name[:40]!r} is not enabled; give one of {enabled}"
            )
        if name in TLS_ONLY and not session.is_encrypted:
            raise UnsupportedSaslMechanismError(
                f"sasl.mechanism={name} sends the secret itself, and listener {session.listener} "
                "has no TLS; use a listener with SASL_SSL"
            )
        session.mechanism_chosen = name
        session.is_login_begun = True
        if name not in TLS_ONLY:
            mechanism = ScramMechanism(name)
            session.exchange = ScramLogin(
                mechanism,
                lambda user: self._credential(user, mechanism),
                secrets.token_urlsafe(NONCE_BYTES),
                self._salt_key,
            )

    async def step(self, session: Session, message: bytes) -> LoginAnswer:
        """Return the answer to a message. After the last one the session has its principal.

        Raises SaslAuthenticationError, whose message must not reach the client, and
        IllegalSaslStateError for a message without a handshake.
        """
        login = session.exchange
        if not session.is_login_begun:
            raise IllegalSaslStateError("SaslAuthenticate without SaslHandshake before it")
        if login is not None and not session.is_challenged:
            session.is_challenged = True
            try:
                return LoginAnswer(login.challenge(message), False)
            except SaslAuthenticationError:
                self._forget(session)
                raise
        mechanism = session.mechanism_chosen
        self._forget(session)
        if login is not None:
            answer = login.finish(message)
            proof = Proof(login.user, answer, login.pair)
        elif mechanism == PLAIN:
            claim = parse_plain(message)
            session.claimed = claim.user
            proof = await self.check_password(claim)
        else:
            proof = await self._check_token(session, message)
        self._admit(session, mechanism, proof)
        return LoginAnswer(proof.answer, True)

    async def check_password(self, claim: PlainClaim) -> Proof:
        """Return the proof of a right password. Raises SaslAuthenticationError."""
        mechanism, credential = self._strongest(claim.user)
        loop = asyncio.get_running_loop()
        pair = await loop.run_in_executor(self._threads, proven_pair, claim, mechanism, credential)
        if pair is None:
            raise SaslAuthenticationError("PLAIN: the password is wrong, or there is no such user")
        return Proof(claim.user, key=pair)

    def _strongest(self, user: str) -> tuple[ScramMechanism, ScramCredential]:
        """Return the user's SCRAM-SHA-512 credential, or its SCRAM-SHA-256 credential. For an
        unknown user, return one that matches no password, so that the check takes equally long.
        """
        for mechanism in (ScramMechanism.SHA_512, ScramMechanism.SHA_256):
            found = self._credential(user, mechanism)
            if found is not None:
                return mechanism, found
        mechanism = ScramMechanism.SHA_512
        return mechanism, fake_credential(mechanism, user, self._salt_key)

    async def _check_token(self, session: Session, message: bytes) -> Proof:
        claim = parse_bearer(message)
        assert self._issuer is not None
        found = await self._issuer.check(claim.token)
        session.claimed = found.user
        if claim.authorization not in ("", found.user):
            raise SaslAuthenticationError("OAUTHBEARER: the authorization id is another user")
        try:
            self._check_name(found.user)
        except LogbusError as error:
            raise SaslAuthenticationError(f"OAUTHBEARER: {error.message}") from None
        return Proof(found.user, ends_ms=found.ends_ms)

    def _admit(self, session: Session, mechanism: str, proof: Proof) -> None:
        """Set the session's principal. Raises SaslAuthenticationError if the session already has
        another principal.
        """
        principal = f"User:{proof.user}"
        if session.mechanism and (principal, mechanism) != (session.principal, session.mechanism):
            raise SaslAuthenticationError(
                f"{session.principal} with {session.mechanism} logged in again as {principal} "
                f"with {mechanism}"
            )
        now_ms = self._clock.monotonic_ms()
        ends = [now_ms + self._reauth_ms] if self._reauth_ms else []
        if proof.ends_ms:
            ends.append(now_ms + proof.ends_ms - self._clock.now_ms())
        session.principal = principal
        session.mechanism = mechanism
        session.key = proof.key
        session.needs_login = False
        session.early_requests = 0
        session.ends_ms = min(ends, default=0)

    def lifetime_ms(self, session: Session) -> int:
        """Return the milliseconds until a session must log in again; 0: never."""
        return max(session.ends_ms - self._clock.monotonic_ms(), 1) if session.ends_ms else 0

    def failure_delay_s(self, session: Session) -> float:
        """Count a failed login of the session's address; return the seconds until its answer."""
        return self._failures.delay_s(session.host, self._clock.monotonic_ms())

    @staticmethod
    def _forget(session: Session) -> None:
        session.exchange, session.is_challenged = None, False
        session.is_login_begun, session.claimed = False, ""

    def _credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        found = self._users().get(user, {}).get(mechanism)
        return None if found is None else found.at(self._clock.now_ms())

    async def refresh(self) -> None:
        """Read the keys of tokens again if they are old. Call it every minute."""
        if self._issuer is not None:
            await self._issuer.refresh()

    def watch(self, session: Session, connection: Connection) -> None:
        """Add the session to ``sweep``, which closes the connection when the session ends."""
        self._sessions[id(session)] = session, connection

    def sweep(self) -> None:
        """Close the connections of sessions whose stored key was removed, and require a new login
        from sessions past their lifetime. Call it after each change of users and every second.
        """
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
        known = (self._credential(user, mechanism) for mechanism in ScramMechanism)
        return any(each is not None and session.key in each.pairs for each in known)


def is_private(session: Session) -> bool:
    """Return whether the traffic is protected: TLS, or both ends are on this machine."""
    return session.is_encrypted or ipaddress.ip_address(session.host.strip("[]")).is_loopback
