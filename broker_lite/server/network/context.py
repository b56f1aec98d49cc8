"""The session and request context of a client request, as every handler receives them.

The listener creates a ``Session`` for each connection, the dispatcher a ``RequestContext`` for each
request. No field that a client supplies grants a permission, with one exception: if neither
certificates nor logins identify brokers, ``is_broker`` trusts the client id
(``Authorizer.is_broker``). Runs on the event-loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from broker_lite.security.acls import canonical_host
from broker_lite.security.scram import KeyPair
from broker_lite.security.scram_server import ScramLogin
from broker_lite.server.network.access import Access, Authorizer, DataAccess
from broker_lite.server.network.quotas import ClientQuota
from broker_lite.wire.api import RequestHeader, parse_header

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that has not authenticated (Kafka's name for it)."""
PLAINTEXT = "PLAINTEXT"
"""The listener name used if only ``host`` and ``port`` are set."""
NO_AUTHORIZER = Authorizer()
SHOWN_LENGTH_MAX = 100
"""Maximum characters of a client id in a log line; the protocol allows 32 KiB."""


@dataclass(slots=True)
class Session:
    """A client connection. ``number`` counts the connections of a listener from 1; ``peer`` is the
    client's ``host:port``. ApiVersions 3 and later set ``software`` to name and version (KIP-511).
    Only ``logins`` sets the fields of the login.
    """

    number: int
    peer: str
    listener: str = PLAINTEXT
    principal: str = ANONYMOUS
    software: str = ""
    is_encrypted: bool = False
    takes_logins: bool = False
    """Whether the listener has logins."""
    needs_login: bool = False
    """Whether the client must log in before any other request."""
    mechanism: str = ""
    key: KeyPair | None = None
    """The stored keys with which the user logged in; None before the login."""
    ends_ms: int = 0
    """Monotonic time in ms from which the client must log in again; 0: never."""
    early_requests: int = 0
    exchange: ScramLogin | None = None
    """The login in progress with SCRAM."""
    mechanism_chosen: str = ""
    is_login_begun: bool = False
    is_challenged: bool = False
    claimed: str = ""
    """The user of the last login with PLAIN or OAUTHBEARER."""
    certificate: bytes = b""
    """The client's certificate (DER), which the listener verified; empty: none."""
    certificate_ends_ms: int = 0
    """Wall time in milliseconds at which the client's certificate expires; 0: never."""
    opened_ms: int = 0
    """Monotonic time in milliseconds at which the session began."""
    data_access: DataAccess | None = None
    """The access for Produce and Fetch requests. Only ``Authorizer`` sets it."""
    is_forwarded: bool = False
    """Whether another broker forwarded the client's request."""
    host: str = field(init=False)
    """The client's address without its port, in the form that ACLs use."""

    def __post_init__(self) -> None:
        self.host = canonical_host(self.peer.rpartition(":")[0])

    @property
    def is_before_login(self) -> bool:
        """Whether the client must log in and has never done so."""
        return self.needs_login and not self.mechanism


class RequestContext(NamedTuple):
    """One request: its header fields, its session, its arrival time (monotonic ms), and its
    permissions.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    session: Session
    arrived_ms: int
    access: Access = NO_AUTHORIZER.access(Session(0, ""), 0)
    quota: ClientQuota | None = None
    """The quotas that apply to the client; None if no quota applies."""

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

    @property
    def header(self) -> RequestHeader:
        """The request's own header."""
        return RequestHeader(*self[:5])

    @property
    def is_broker(self) -> bool:
        """Whether another broker of the cluster sent the request."""
        return self.access.is_broker(self.session, self.client_id)

    @property
    def is_forwarded(self) -> bool:
        """Whether a broker sends the request for a client; it is not forwarded again."""
        return self.session.is_forwarded or self.is_broker

    def deadline_ms(self, timeout_ms: int) -> int:
        """Return the monotonic time by which a request with this timeout must be answered."""
        return self.arrived_ms + timeout_ms

    def __str__(self) -> str:
        """Return the sender for logs: address, client id and software."""
        software = f" ({self.session.software})" if self.session.software else ""
        return f"{self.session.peer}: client {self.shown_client_id!r}{software}"

    @property
    def shown_client_id(self) -> str | None:
        """The client id, cut for a log line."""
        return None if self.client_id is None else self.client_id[:SHOWN_LENGTH_MAX]
