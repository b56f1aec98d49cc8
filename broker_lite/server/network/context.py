"""The session and request context of a client request, as every handler receives them.

The listener creates a ``Session`` for each connection, the dispatcher a ``RequestContext`` for each
request. No client-supplied field grants a right. Until brokers have certificates, only
``is_broker`` trusts the client id, and only to prevent a second forwarding. Loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from broker_lite.security.scram import KeyPair
from broker_lite.security.scram_server import ScramLogin
from broker_lite.wire.api import RequestHeader, parse_header

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that has not authenticated (Kafka's name for it)."""
PLAINTEXT = "PLAINTEXT"
"""The name of the listener of ``host`` and ``port``."""
_BROKER_CLIENT = "logbus-broker-"


def broker_client_id(broker_id: int) -> str:
    """Return the client id that a broker gives when it sends requests to another broker."""
    return f"{_BROKER_CLIENT}{broker_id}"


@dataclass(slots=True)
class Session:
    """A client connection. ``number`` counts the connections of a listener from 1; ``peer`` is
    the client's ``host:port``. ApiVersions 3 and later set ``software`` to name and version
    (KIP-511). ``logins`` alone sets the fields of the login."""

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
    """Monotonic time from which the client must log in again; 0: never."""
    early_requests: int = 0
    exchange: ScramLogin | None = None
    """The login in progress."""
    mechanism_chosen: str = ""
    is_challenged: bool = False
    certificate_ends_ms: int = 0
    """When the client's certificate ends (wall-clock ms); 0: never."""
    opened_ms: int = 0
    """Monotonic time at which the session began."""

    @property
    def is_before_login(self) -> bool:
        """Whether the client must log in and never has."""
        return self.needs_login and not self.mechanism

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return self.peer.rpartition(":")[0]


class RequestContext(NamedTuple):
    """One request: its header fields, its session, and its arrival time (monotonic ms)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    session: Session
    arrived_ms: int

    @classmethod
    def read(cls, frame: memoryview, session: Session, arrived_ms: int) -> RequestContext:
        """Return the context of a received frame. Raises ProtocolError for a broken header."""
        return cls(*parse_header(frame), session, arrived_ms)

    @property
    def header(self) -> RequestHeader:
        """The request's own header."""
        return RequestHeader(*self[:5])

    @property
    def is_broker(self) -> bool:
        """Whether another broker of the cluster sent the request."""
        return (self.client_id or "").startswith(_BROKER_CLIENT)

    def deadline_ms(self, timeout_ms: int) -> int:
        """Return the monotonic time by which a request with this timeout must be answered."""
        return self.arrived_ms + timeout_ms

    def __str__(self) -> str:
        """Return the sender for logs: address, client id and software."""
        software = f" ({self.session.software})" if self.session.software else ""
        return f"{self.session.peer}: client {self.client_id!r}{software}"
