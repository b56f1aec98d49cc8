"""``Session``, the state of a client connection, and ``RequestContext``, one request.

The listener creates a ``Session`` for each connection, the dispatcher a ``RequestContext`` for each
request. Fields that a client fills in grant no permission, with one exception: the client id, if
neither certificates nor logins identify brokers (``Authorizer.is_broker``), or with
authorizer=report (``Authorizer.may_be_broker``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from broker_lite.security.acls import canonical_host
from broker_lite.security.scram import KeyPair
from broker_lite.security.scram_server import ScramLogin
from broker_lite.server.network.access import Access, Authorizer, DataAccess
from broker_lite.server.network.quotas import ClientQuota, Spent, uncounted
from broker_lite.wire.api import ApiKey, RequestHeader, parse_header

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that has not authenticated, as in Kafka."""
PLAINTEXT = "PLAINTEXT"
"""The listener's name if the configuration sets ``host`` and ``port`` instead of ``listeners``."""
NO_AUTHORIZER = Authorizer()
"""An authorizer that allows every request, for brokers with ``authorizer=off``."""
NO_HEADER = 1 << 16
"""The API version that stands for a bare SASL message, without header and fields.

A header's version has 16 bits, so no client can send this value."""
SHOWN_LENGTH_MAX = 100
"""Maximum characters of a client id in a log line; the protocol allows 32 KiB."""


@dataclass(slots=True)
class Session:
    """The state of one client connection.

    ``number`` counts the connections of this process, from 1. ``peer`` is the client's
    ``host:port``. ``software`` is the client library's name and version (KIP-511). Only
    ``network/logins.py`` sets the fields of the login."""

    number: int
    peer: str
    listener: str = PLAINTEXT
    principal: str = ANONYMOUS
    software: str = ""
    is_encrypted: bool = False
    takes_logins: bool = False
    """Whether the connection's listener accepts SASL logins."""
    needs_login: bool = False
    """Whether the client must log in before any other request."""
    mechanism: str = ""
    key: KeyPair | None = None
    """The stored SCRAM keys that the user's password matched; None before a login, or with a
    token."""
    ends_ms: int = 0
    """Monotonic time (ms) by which the client must log in again; 0 means never."""
    early_requests: int = 0
    """Number of requests that the client has sent before its login."""
    exchange: ScramLogin | None = None
    """The SCRAM login in progress, or None."""
    mechanism_chosen: str = ""
    """The SASL mechanism of the client's last SaslHandshake request."""
    is_login_begun: bool = False
    sends_tokens: bool = False
    """Whether the client's next frame is a SASL message without Kafka's header."""
    is_challenged: bool = False
    """Whether the broker has sent the challenge of a SCRAM login."""
    claimed: str = ""
    """The user name in the last login attempt with PLAIN or OAUTHBEARER, successful or not."""
    certificate: bytes = b""
    """The client's verified certificate (DER); empty if the client sent none."""
    certificate_ends_ms: int = 0
    """Wall time (ms) at which the client's certificate expires; 0 means never."""
    opened_ms: int = 0
    """Monotonic time (ms) at which the listener accepted the connection."""
    closes: str = ""
    """Why the connection closes after the answer to a failed login; empty if it stays open."""
    data_access: DataAccess | None = None
    """The session's cached permissions for Produce or Fetch requests, set only by
    ``Authorizer``."""
    is_forwarded: bool = False
    """Whether this session stands for a client whose request another broker forwarded in an
    Envelope."""
    host: str = field(init=False)
    """The client's address without its port, in the notation of ACLs."""

    def __post_init__(self) -> None:
        self.host = canonical_host(self.peer.rpartition(":")[0])

    @property
    def is_before_login(self) -> bool:
        """Whether the client must log in and has never logged in."""
        return self.needs_login and not self.mechanism

    def is_over(self, now_ms: int) -> bool:
        """Return whether the client must log in, for the first time or again, before the broker may
        send it more data. ``now_ms`` is the monotonic time."""
        return self.needs_login or 0 < self.ends_ms <= now_ms


class RequestContext(NamedTuple):
    """One request, as its handler receives it.

    ``body_at`` is the index of the body's first byte in the frame. ``arrived_ms`` is the monotonic
    time of the request's arrival. ``access`` checks the client's permissions."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    session: Session
    arrived_ms: int
    access: Access = NO_AUTHORIZER.access(Session(0, ""), 0)
    quota: ClientQuota | None = None
    """The quotas that apply to the client, or None."""

    @classmethod
    def read(
        cls,
        frame: memoryview,
        session: Session,
        arrived_ms: int,
        authorizer: Authorizer = NO_AUTHORIZER,
    ) -> RequestContext:
        """Return the context of a received frame. Raises ProtocolError for a malformed header."""
        header = parse_header(frame)
        return cls(*header, session, arrived_ms, authorizer.access(session, header.api_key))

    @classmethod
    def read_token(
        cls, _frame: memoryview, session: Session, arrived_ms: int, authorizer: Authorizer
    ) -> RequestContext:
        """Return the context of a bare SASL message, a frame without Kafka's header."""
        key = ApiKey.SASL_AUTHENTICATE
        access = authorizer.access(session, key)
        return cls(key, NO_HEADER, 0, None, 0, session, arrived_ms, access)

    @property
    def header(self) -> RequestHeader:
        """The header fields of the request."""
        return RequestHeader(*self[:5])

    @property
    def is_broker(self) -> bool:
        """Whether another broker of the cluster sent the request."""
        return self.access.is_broker(self.session, self.client_id)

    @property
    def may_be_broker(self) -> bool:
        """Whether to serve the request as that of a broker; see ``Authorizer.may_be_broker``."""
        return self.access.may_be_broker(self.session, self.client_id)

    @property
    def is_forwarded(self) -> bool:
        """Whether another broker sent or forwarded the request. If so, this broker must not forward
        it."""
        return self.session.is_forwarded or self.may_be_broker

    @property
    def spent(self) -> Spent:
        """A function that charges seconds of a disk thread to the client's quota, if it has one."""
        return uncounted if self.quota is None else self.quota.spend_time

    def deadline_ms(self, timeout_ms: int) -> int:
        """Return the monotonic time (ms) by which a request with this timeout must be answered."""
        return self.arrived_ms + timeout_ms

    def __str__(self) -> str:
        """Return the client's address, client id and software, for a log line."""
        software = f" ({self.session.software})" if self.session.software else ""
        return f"{self.session.peer}: client {self.shown_client_id!r}{software}"

    @property
    def shown_client_id(self) -> str | None:
        """The first ``SHOWN_LENGTH_MAX`` characters of the client id, for a log line."""
        return None if self.client_id is None else self.client_id[:SHOWN_LENGTH_MAX]
