"""SaslHandshake 1: choose the mechanism of the login.

Version 0 is not served: the login messages that follow it have no Kafka headers, and clients since
Kafka 1.0 use version 1.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import NO_ERROR, LogbusError, wire_code
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import SaslHandshakeResponse as Response


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer with the enabled mechanisms, and with an error for a mechanism that is not enabled."""
    code = NO_ERROR
    try:
        parts.logins.choose(request.session, message.mechanism)
    except LogbusError as error:
        code = wire_code(error)
    return Response(error_code=code, mechanisms=[str(each) for each in parts.logins.mechanisms])
