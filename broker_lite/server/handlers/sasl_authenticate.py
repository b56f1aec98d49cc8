"""Handle SaslAuthenticate 0-2, and SASL messages without a header: one message of a login.

Every failed login gets the same answer after the same delay, so that a client cannot tell a wrong
password, an unknown user and a malformed message apart. The delay grows after many failures from
one address. The broker logs the reason. As in Kafka, the connection closes after the answer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from broker_lite.errors import IllegalSaslStateError, SaslAuthenticationError, wire_code
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.log_events import log_event
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.primitives import I32
from broker_lite.wire.tables import SaslAuthenticateResponse as Response

FAILED = (
    "the login failed: user name or password is wrong, the password was changed, or the token is "
    "not accepted"
)


class Token(NamedTuple):
    """A SASL message that came without Kafka's request header (KIP-43). It is handled like a
    decoded SaslAuthenticate request."""

    auth_bytes: bytes


def token_frame(response: Any) -> bytes:
    """Return the server's SASL message as a frame: its length and its bytes, without Kafka's
    header.

    After a failed login the frame is empty, because it has no field for an error code."""
    if response.error_code:
        return b""
    return I32.pack(len(response.auth_bytes)) + bytes(response.auth_bytes)


logger = logging.getLogger("logbus.logins")


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer with the server's next SASL message, or, after a delay, SASL_AUTHENTICATION_FAILED."""
    session = request.session
    login = session.exchange
    began_s = asyncio.get_running_loop().time()
    who = {"host": session.host, "listener": session.listener, "client_id": request.client_id}
    try:
        answer = await parts.logins.step(session, message.auth_bytes)
    except IllegalSaslStateError as error:
        return _failed(error.code, error.message)
    except SaslAuthenticationError as error:
        parts.metrics.count("authentication_failures", session.mechanism_chosen)
        logger.warning(
            "%s: %s", request, error.message, extra=log_event("login_failed", about=session.host)
        )
        user = session.claimed if login is None else login.user
        name = f"User:{user}" if user else None
        # Limit the lines for each address and user. Otherwise the failed logins of one client could
        # push all other lines out of the audit log.
        kind = session.host, name
        parts.audit.write(
            "login_failed", kind, user=name, mechanism=session.mechanism_chosen, **who
        )
        await parts.logins.wait_after_failure(session, began_s)
        session.closes = "the login failed"
        return _failed(wire_code(error), FAILED)
    if answer.is_done:
        parts.audit.write("login", user=session.principal, mechanism=session.mechanism, **who)
    return Response(
        error_code=0,
        error_message=None,
        auth_bytes=answer.message,
        session_lifetime_ms=parts.logins.lifetime_ms(session) if answer.is_done else 0,
    )


def _failed(code: int, reason: str) -> Any:
    return Response(error_code=code, error_message=reason, auth_bytes=b"", session_lifetime_ms=0)
