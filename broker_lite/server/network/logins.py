"""Authenticate clients with SASL, and end sessions whose credential was removed or has expired.

Before the login, a listener with ``sasl.enabled.mechanisms`` accepts only SaslHandshake,
ApiVersions and SaslAuthenticate. When a user's password is changed or deleted, the broker closes
the sessions that logged in with it. A client must log in again before its token expires, and every
``connections.max.reauth.ms`` (KIP-368), with the same mechanism and as the same user. Worker
threads check PLAIN passwords; all else runs on the event loop's thread."""

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
"""Maximum number of requests on a connection before its login."""
REQUEST_BYTES_BEFORE_LOGIN_MAX = 16 << 10
"""Maximum bytes of a request before the login."""
SWEEP_MS = 1000
"""Time in ms between two checks for sessions whose credential was removed or has expired."""
NONCE_BYTES = 24
"""Number of random bytes in the server's nonce of a SCRAM login."""
CHECK_THREADS = 2
"""Number of threads that check PLAIN passwords. A check takes several ms of processor time."""

logger = logging.getLogger("logbus.logins")


class Connection(Protocol):
    """A session's connection, which ``Logins.sweep`` may close."""

    closed: bool

    def close(self, reason: str) -> None: ...


class Issuer(Protocol):
    """The issuer of access tokens that this broker trusts."""

    async def check(self, token: str) -> CheckedToken: ...

    async def refresh(self) -> None: ...


class LoginAnswer(NamedTuple):
    """The server's next SASL message; ``is_done`` tells whether the client is logged in now."""

    message: bytes
    is_done: bool


class Proof(NamedTuple):
    """The outcome of a successful login.

    ``answer`` is the server's last message. ``key`` has the user's stored keys that match the
    password; None after a login with a token. ``ends_ms`` is the wall time at which the token
    expires; 0 means never."""

    user: str
    answer: bytes = b""
    key: KeyPair | None = None
    ends_ms: int = 0


def _any_name(name: str) -> None:
    """Accept every user name."""


class Logins:
    """The logins at one broker. With empty ``mechanisms``, no client logs in.

    ``users`` returns the current users. ``reauth_ms`` is the maximum time between two logins of a
    session; 0 means no limit. OAUTHBEARER needs ``issuer``. ``check_name`` raises LogbusError for a
    user name that is refused in a token."""

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
        """Return why a client may not send this request before its login; an empty text if it
        may."""
        session.early_requests += 1
        if api_key not in BEFORE_LOGIN:
            return (
                "a request before the login: set security.protocol=SASL_PLAINTEXT (or SASL_SSL), "
                "sasl.mechanism, sasl.username and sasl.password in the client"
            )
        if size > REQUEST_BYTES_BEFORE_LOGIN_MAX:
            most = REQUEST_BYTES_BEFORE_LOGIN_MAX
            return f"a request before the login has {size} bytes; at most {most} are allowed"
        if session.early_requests > REQUESTS_BEFORE_LOGIN_MAX:
            return f"more than {REQUESTS_BEFORE_LOGIN_MAX} requests came before the login"
        return ""

    def choose(self, session: Session, name: str, *, with_headers: bool = True) -> None:
        """Begin a login with the SASL mechanism of this name.

        ``with_headers`` means that the client sends its SASL messages in SaslAuthenticate requests.
        Raises IllegalSaslStateError if the listener accepts no logins, and
        UnsupportedSaslMechanismError for a mechanism that the session may not use."""
        self._forget(session)
        if not self.mechanisms:
            raise IllegalSaslStateError(
                "this broker accepts no logins, because its sasl.enabled.mechanisms is empty; set "
                "security.protocol=PLAINTEXT or SSL in the client"
            )
        if not session.takes_logins:
            raise IllegalSaslStateError(
                f"listener {session.listener} accepts no logins; set security.protocol=PLAINTEXT "
                "or SSL in the client"
            )
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
        session.sends_tokens = not with_headers
        if name not in TLS_ONLY:
            mechanism = ScramMechanism(name)
            session.exchange = ScramLogin(
                mechanism,
                lambda user: self._credential(user, mechanism),
                secrets.token_urlsafe(NONCE_BYTES),
                self._salt_key,
            )

    async def step(self, session: Session, message: bytes) -> LoginAnswer:
        """Return the answer to a client's SASL message. The last message of a login sets the
        session's principal.

        Raises SaslAuthenticationError for a failed login (the error's text must not reach the
        client), and IllegalSaslStateError for a message that no SaslHandshake preceded."""
        login = session.exchange
        if not session.is_login_begun:
            raise IllegalSaslStateError(
                "SaslAuthenticate came before SaslHandshake; send SaslHandshake first"
            )
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
        """Check a user name and a password, and return the outcome of the login.

        Raises SaslAuthenticationError if they are wrong."""
        mechanism, credential = self._strongest(claim.user)
        loop = asyncio.get_running_loop()
        pair = await loop.run_in_executor(self._threads, proven_pair, claim, mechanism, credential)
        if pair is None:
            raise SaslAuthenticationError("PLAIN: the user does not exist or the password is wrong")
        return Proof(claim.user, key=pair)

    def _strongest(self, user: str) -> tuple[ScramMechanism, ScramCredential]:
        """Return the user's SCRAM-SHA-512 credential, else the SCRAM-SHA-256 one.

        For an unknown user, return a credential that matches no password, so that the duration of
        the check does not reveal which users exist."""
        for mechanism in (ScramMechanism.SHA_512, ScramMechanism.SHA_256):
            credential = self._credential(user, mechanism)
            if credential is not None:
                return mechanism, credential
        mechanism = ScramMechanism.SHA_512
        return mechanism, fake_credential(mechanism, user, self._salt_key)

    async def _check_token(self, session: Session, message: bytes) -> Proof:
        claim = parse_bearer(message)
        assert self._issuer is not None
        checked = await self._issuer.check(claim.token)
        session.claimed = checked.user
        if claim.authorization not in ("", checked.user):
            raise SaslAuthenticationError(
                "OAUTHBEARER: the authorization id names another user than the token; leave it "
                "empty"
            )
        try:
            self._check_name(checked.user)
        except LogbusError as error:
            raise SaslAuthenticationError(f"OAUTHBEARER: {error.message}") from None
        return Proof(checked.user, ends_ms=checked.ends_ms)

    def _admit(self, session: Session, mechanism: str, proof: Proof) -> None:
        """Set the session's principal and the time by which the client must log in again.

        Raises SaslAuthenticationError if the client logged in before with another mechanism or
        user."""
        principal = f"User:{proof.user}"
        if session.mechanism and (principal, mechanism) != (session.principal, session.mechanism):
            raise SaslAuthenticationError(
                f"a connection of {session.principal} ({session.mechanism}) cannot change to "
                f"{principal} ({mechanism}); open another connection"
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
        """Return the milliseconds until the client must log in again; 0 means never."""
        return max(session.ends_ms - self._clock.monotonic_ms(), 1) if session.ends_ms else 0

    async def wait_after_failure(self, session: Session, began_s: float) -> None:
        """Count a failed login from the session's address, and wait until its answer may be sent.

        The answer is sent a fixed time after ``began_s``, the time of the event loop's clock at
        which the check began. Otherwise its duration would reveal whether the user exists."""
        due_s = began_s + self._failures.delay_s(session.host, self._clock.monotonic_ms())
        await asyncio.sleep(max(due_s - asyncio.get_running_loop().time(), 0))

    @staticmethod
    def _forget(session: Session) -> None:
        session.exchange, session.is_challenged = None, False
        session.is_login_begun, session.claimed = False, ""
        session.sends_tokens = False

    def _credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        credential = self._users().get(user, {}).get(mechanism)
        return None if credential is None else credential.at(self._clock.now_ms())

    async def refresh(self) -> None:
        """Read the token issuer's keys again if they are old (``TokenIssuer.refresh``).

        The broker calls this every minute."""
        if self._issuer is not None:
            await self._issuer.refresh()

    def watch(self, session: Session, connection: Connection) -> None:
        """Let ``sweep`` check from now on whether the session, on ``connection``, is valid."""
        self._sessions[id(session)] = session, connection

    def expire(self, session: Session) -> None:
        """Require a session past its lifetime to log in again."""
        session.needs_login = session.is_over(self._clock.monotonic_ms())

    def sweep(self) -> None:
        """Close sessions whose user's credential was changed or deleted, and require sessions past
        their lifetime to log in again.

        The broker calls this every second and after each change of users."""
        for number, (session, connection) in list(self._sessions.items()):
            if connection.closed:
                del self._sessions[number]
            elif session.key is not None and not self._has_key(session):
                connection.close(f"the credential of {session.principal} was changed or deleted")
            else:
                self.expire(session)

    def _has_key(self, session: Session) -> bool:
        user = session.principal.removeprefix("User:")
        known = (self._credential(user, mechanism) for mechanism in ScramMechanism)
        return any(each is not None and session.key in each.pairs for each in known)


def is_private(session: Session) -> bool:
    """Return whether no other machine can read the session's traffic: it uses TLS or loopback."""
    return session.is_encrypted or ipaddress.ip_address(session.host.strip("[]")).is_loopback
