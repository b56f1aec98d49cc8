"""Authenticate and authorize requests for ``/metrics`` over TLS.

A client logs in with a certificate, or with HTTP Basic and the password of a SCRAM user, which
another thread checks. Its principal needs the operation Describe on the cluster. A starting
broker refuses every login, because it has not read users and ACLs yet, and a stopping broker
because its audit log ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_lite.errors import ClusterAuthorizationError, SaslAuthenticationError
from broker_lite.security.acls import Operation
from broker_lite.security.plain import parse_basic
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.log_events import log_event
from broker_lite.server.network.context import Session
from broker_lite.wire.api import ApiKey

if TYPE_CHECKING:
    from broker_lite.server.network.tls_listener import ListenerTls

logger = logging.getLogger("logbus.logins")

BASIC = "BASIC"
"""The name of HTTP Basic authentication in the audit log and in metrics."""


class HttpLogin:
    """The TLS of the HTTP port, and the login of its clients.

    ``parts`` returns the parts of the broker, or None while the broker starts or stops."""

    def __init__(self, parts: Callable[[], BrokerContext | None], tls: ListenerTls) -> None:
        self._parts = parts
        self.tls = tls

    async def refusal(self, host: str, certificate: bytes, authorization: str) -> int:
        """Return 0 if a request for ``/metrics`` is allowed, else the HTTP status of the refusal:
        401 without a valid login, 403 without the permission, 503 while the broker starts
        or stops.

        ``certificate`` is the client's certificate (DER), or empty. ``authorization`` is the value
        of the Authorization header."""
        parts = self._parts()
        if parts is None:
            return 503
        session = Session(0, f"{host}:0", self.tls.listener_name, is_encrypted=True)
        if not certificate and not authorization:
            return 401
        mechanism = "SSL" if certificate else BASIC
        began_s = asyncio.get_running_loop().time()
        fields = {"mechanism": mechanism, "host": session.host, "listener": session.listener}
        try:
            if certificate:
                session.principal, _ = self.tls.identify(certificate)
            else:
                proof = await parts.logins.check_password(parse_basic(authorization))
                session.principal = f"User:{proof.user}"
        except SaslAuthenticationError as error:
            parts.metrics.count("authentication_failures", mechanism)
            logger.warning(
                "%s: refused a login for /metrics: %s",
                host,
                error.message,
                extra=log_event("login_failed", about=session.host),
            )
            parts.audit.write(
                "login_failed", (session.host, mechanism), reason=error.message, **fields
            )
            await parts.logins.wait_after_failure(session, began_s)
            return 401
        parts.audit.write(
            "login", (session.principal, session.host, mechanism), user=session.principal, **fields
        )
        access = parts.authorizer.access(session, ApiKey.DESCRIBE_CLUSTER)
        try:
            access.check_cluster(Operation.DESCRIBE)
        except ClusterAuthorizationError:
            return 403
        return 0
