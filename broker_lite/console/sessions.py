"""Sessions of the console: logins, tokens against forged forms, and the names that a user may see.

If the brokers demand a login, users sign in with their SCRAM credentials. The console then connects
to the brokers as the user, so that the cluster's ACLs apply. Until it ends, the user's session
holds SCRAM keys in memory, which are valid for this cluster only; with PLAIN it holds the password.
If the brokers demand no login, the console serves every browser of this machine."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from broker_lite.bus.blocking import Bus
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.secret import Secret
from broker_lite.console.settings import ConsoleSettings
from broker_lite.errors import (
    LogbusError,
    RetriableError,
    SaslAuthenticationError,
    ThrottlingQuotaExceededError,
)
from broker_lite.security.plain import parse_basic
from broker_lite.security.scram import ScramKeys

logger = logging.getLogger("logbus.console")

IDLE_S = 30 * 60.0
"""Seconds without a request after which a session ends. The automatic refresh of an open page does
not count as a request."""
LIFE_S = 12 * 3600.0
"""Seconds after the user's login at which a session ends, even if it is in use."""
SESSIONS_MAX = 100
"""Maximum sessions. A new session beyond the limit ends the session with the longest idle time."""
LOGINS_AT_ONCE = 4
"""Maximum concurrent logins, because for each the broker and the console compute thousands of
hashes."""
VISIBLE_S = 10.0
"""Seconds for which the names of topics and groups that a user may describe are cached."""
VISIBLE_WAIT_S = 2.0
"""Seconds for which one request waits for a refresh of the cached names of topics and groups that
its user may describe."""
ANSWER_MS = 10_000
"""Maximum milliseconds that a login or a change waits for the brokers."""
USER_MAX, PASSWORD_MAX = 256, 1024
"""Maximum characters of a user's name and of a password."""


class TooManyLoginsError(ThrottlingQuotaExceededError):
    """The console already runs ``LOGINS_AT_ONCE`` logins."""


class VisibleNames(NamedTuple):
    """The topics and groups that a user may describe, and whether the user may describe the
    cluster."""

    topics: frozenset[str]
    groups: frozenset[str]
    describes_cluster: bool


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user of a request, with the rights and the connections of that user.

    ``bus`` is the client that acts as the user. ``token`` protects the user's forms (CSRF).
    ``visible`` has the names of topics and groups that the user may describe. If ``is_old``, the
    brokers did not answer, and these are the last known names. Without logins, ``user`` is empty
    and ``visible`` is None."""

    bus: Bus
    token: str
    may_change: bool
    user: str = ""
    visible: VisibleNames | None = None
    is_old: bool = False


@dataclass(slots=True)
class _Session:
    user: str
    bus: Bus
    used_s: float
    visible: VisibleNames
    asked_s: float
    begun_s: float
    asking: Future[VisibleNames] | None = None
    is_old: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sessions:
    """All sessions of one console. Any thread may use them. ``clock`` returns monotonic seconds."""

    def __init__(
        self, bus: Bus, settings: ConsoleSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.demands_login = bus.security.demands_login
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._logins = threading.Semaphore(LOGINS_AT_ONCE)
        self._sessions: dict[str, _Session] = {}
        self._scrapers: dict[str, str] = {}
        """The session id of each HTTP Basic login, by a keyed hash of user and password."""

    @property
    def cookie(self) -> str:
        """The name of the session cookie. It contains the port, because browsers send a host's
        cookies to all ports of the host, and so to other consoles."""
        return f"logbus_console_{self._settings.port}"

    def new_id(self) -> str:
        """Return a new cookie value for a browser without a cookie."""
        return secrets.token_urlsafe(32)

    def token(self, session_id: str) -> str:
        """Return the token against forged requests (CSRF) that this browser's forms must send."""
        return hmac.new(self._key, session_id.encode(), hashlib.sha256).hexdigest()

    def is_genuine(self, session_id: str, token: str) -> bool:
        """Return whether a form's ``token`` is the one made for the browser's session cookie."""
        return bool(session_id) and hmac.compare_digest(
            self.token(session_id).encode(), token.encode()
        )

    def viewer(self, session_id: str, *, renews: bool = True) -> Viewer | None:
        """Return the viewer (the user of a request) whose cookie has the value ``session_id``, or
        None if the browser must sign in. With ``renews``, the request counts as use of the session
        (``IDLE_S``)."""
        token, may_change = self.token(session_id), self._settings.may_change(self._bus.security)
        if not self.demands_login:
            return Viewer(self._bus, token, may_change)
        session = self._find(session_id, renews=renews)
        if session is None:
            return None
        try:
            visible = self._visible(session)
        except SaslAuthenticationError:
            # The user's password was changed, or the user was deleted, so end the session.
            self.sign_out(session_id)
            return None
        return Viewer(session.bus, token, may_change, session.user, visible, session.is_old)

    def has(self, session_id: str) -> bool:
        """Return whether the session is valid, or True if the console has no logins. The check does
        not count as use of the session."""
        with self._lock:
            self._end_idle()
            return not self.demands_login or session_id in self._sessions

    def sign_in(self, user: str, password: str) -> str:
        """Log in at a broker and return the new session's id. Raises SaslAuthenticationError,
        TooManyLoginsError."""
        if not 0 < len(user) <= USER_MAX or not 0 < len(password) <= PASSWORD_MAX:
            raise SaslAuthenticationError(
                "the user or the password is empty or too long; give both"
            )
        # Do not wait until other logins end: a waiting login would occupy a thread that serves
        # pages.
        if not self._logins.acquire(blocking=False):
            raise TooManyLoginsError(f"{LOGINS_AT_ONCE} logins run already; try again soon")
        try:
            bus = _bus_of(self._bus, user, password)
            try:
                visible = _describable(bus)
                bus = _without_password(bus)
            except BaseException:
                bus.close()
                raise
        finally:
            self._logins.release()
        session_id = self.new_id()
        with self._lock:
            self._end_idle()
            while len(self._sessions) >= SESSIONS_MAX:
                oldest = min(self._sessions, key=lambda each: self._sessions[each].used_s)
                self._sessions.pop(oldest).bus.close()
            now = self._clock()
            self._sessions[session_id] = _Session(user, bus, now, visible, now, now)
        return session_id

    def scraper(self, authorization: str) -> Viewer:
        """Return the viewer (the user of a request) for the user and password in an HTTP Basic
        header (``authorization``).

        The first call with a user and password logs in, and later calls reuse that session. Raises
        SaslAuthenticationError, TooManyLoginsError, and errors of the brokers."""
        claim = parse_basic(authorization)
        key = hmac.new(self._key, "\0".join(claim).encode(), hashlib.sha256).hexdigest()
        viewer = self.viewer(self._scrapers.get(key, ""))
        if viewer is None:
            session_id = self.sign_in(claim.user, claim.password)
            with self._lock:
                known = {
                    key: each for key, each in self._scrapers.items() if each in self._sessions
                }
                self._scrapers = known | {key: session_id}
            viewer = self.viewer(session_id)
            assert viewer is not None
        return viewer

    def sign_out(self, session_id: str) -> None:
        """End a session, and forget the user's keys or password."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is not None:
            session.bus.close()

    def close(self) -> None:
        """End all sessions."""
        for session_id in list(self._sessions):
            self.sign_out(session_id)

    def _find(self, session_id: str, *, renews: bool) -> _Session | None:
        with self._lock:
            self._end_idle()
            session = self._sessions.get(session_id)
            if session is not None and renews:
                session.used_s = self._clock()
            return session

    def _end_idle(self) -> None:
        now = self._clock()
        for session_id, session in list(self._sessions.items()):
            if now - session.used_s > IDLE_S or now - session.begun_s > LIFE_S:
                self._sessions.pop(session_id).bus.close()

    def _visible(self, session: _Session) -> VisibleNames:
        """Return the names of topics and groups that the user may describe, or the last known ones
        if the brokers do not answer within VISIBLE_WAIT_S."""
        with session.lock:
            is_due = self._clock() - session.asked_s > VISIBLE_S and session.asking is None
            if is_due:
                session.asked_s = self._clock()
                session.asking = _begin(_describable, session.bus)
            asking = session.asking
        if asking is None:
            return session.visible
        try:
            session.visible = asking.result(VISIBLE_WAIT_S if is_due else 0)
            session.asking, session.is_old = None, False
        except TimeoutError:
            session.is_old |= is_due
        except Exception as error:
            # Forget the failed request for the names. Otherwise every later call would raise its
            # error.
            session.asking = None
            if not isinstance(error, RetriableError):
                raise
            session.is_old = True
            logger.warning("the names that %r may describe are old: %s", session.user, error)
        return session.visible


def _begin(function: Callable[[Bus], VisibleNames], bus: Bus) -> Future[VisibleNames]:
    """Call a function in a daemon thread, so that a call that hangs does not delay the end of the
    process."""
    future: Future[VisibleNames] = Future()

    def call() -> None:
        try:
            future.set_result(function(bus))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="logbus-names", daemon=True).start()
    return future


def _bus_of(service: Bus, user: str, password: str) -> Bus:
    return _bus_with(service, replace(service.security, username=user, secret=Secret(password)))


def _bus_with(other: Bus, security: ClientSecurity) -> Bus:
    bus = Bus(other.bootstrap_servers, client_id=other.client_id, options={}, security=security)
    bus.admin.timeout_ms = ANSWER_MS
    return bus


def _without_password(bus: Bus) -> Bus:
    """Return a client with the SCRAM keys of the login of ``bus`` in place of the password, and
    close ``bus``. Return ``bus`` itself if each login needs the password (PLAIN)."""
    security = bus.admin.security_without_password()
    if not isinstance(security.secret, ScramKeys):
        return bus
    keyed = _bus_with(bus, security)
    bus.close()
    return keyed


def _describable(bus: Bus) -> VisibleNames:
    """Return the names that the user of ``bus`` may describe: the topics and groups that brokers
    list to that user."""
    view = bus.admin.cluster()
    topics = frozenset(name for name, topic in view.topics.items() if topic.error is None)
    groups = frozenset(row.group for row in bus.admin.list_groups())
    return VisibleNames(topics, groups, _may_describe_cluster(bus))


def _may_describe_cluster(bus: Bus) -> bool:
    """Return whether the user of ``bus`` may describe the cluster. To other users, brokers do not
    show their data directories."""
    try:
        reports = bus.admin.broker_reports(with_sizes=False)
    except LogbusError:
        return False
    return any(row.error is None for report in reports for row in report.log_dirs)
