"""Handle SaslHandshake 0-1: choose the SASL mechanism of a login.

After a request of version 0, the next frames of both sides are SASL messages without Kafka's header
(KIP-43). After version 1, SaslAuthenticate requests carry the SASL messages (KIP-152)."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import NO_ERROR, LogbusError, wire_code
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import SaslHandshakeResponse as Response


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Begin a login with the named SASL mechanism, and answer with the enabled mechanisms."""
    code = NO_ERROR
    try:
        parts.logins.choose(
            request.session, message.mechanism, with_headers=request.api_version > 0
        )
    except LogbusError as error:
        code = wire_code(error)
    return Response(error_code=code, mechanisms=[str(each) for each in parts.logins.mechanisms])
