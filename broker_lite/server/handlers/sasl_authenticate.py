"""SaslAuthenticate 0-2: one message of a SCRAM login.

Every failure has the same answer, after the same time: a wrong password, an unknown user and a
broken message look alike. The reason is in the broker's log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from broker_lite.errors import IllegalSaslStateError, SaslAuthenticationError, wire_code
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.server.network.logins import FAILURE_DELAY_S
from broker_lite.wire.tables import SaslAuthenticateResponse as Response

FAILED = "the login failed: user name or password is wrong, or the password was changed"

logger = logging.getLogger("logbus.logins")


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Return the server's message, or error 58 after a delay."""
    session = request.session
    try:
        answer = parts.logins.step(session, message.auth_bytes)
    except IllegalSaslStateError as error:
        return _failed(error.code, error.message)
    except SaslAuthenticationError as error:
        parts.metrics.count("logins_failed")
        logger.warning("%s: %s", request, error.message, extra={"about": session.host})
        await asyncio.sleep(FAILURE_DELAY_S)
        return _failed(wire_code(error), FAILED)
    is_done = session.exchange is None
    return Response(
        error_code=0,
        error_message=None,
        auth_bytes=answer,
        session_lifetime_ms=parts.logins.reauth_ms if is_done else 0,
    )


def _failed(code: int, reason: str) -> Any:
    return Response(error_code=code, error_message=reason, auth_bytes=b"", session_lifetime_ms=0)
