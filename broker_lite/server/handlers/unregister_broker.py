"""Handle UnregisterBroker 0: remove a dead broker from the metadata.

Other brokers forward the request to the controller, which refuses it for a broker that is live or
still has replicas."""

from __future__ import annotations

from broker_lite.errors import NO_ERROR, LogbusError, wire_code
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import WAIT_MS, within
from broker_lite.server.handlers.forwarding import ask_controller
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.replicas import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(
    parts: BrokerContext, request: RequestContext, message: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Remove the broker, or forward the request to the controller."""
    try:
        if parts.registry.is_controller or request.is_forwarded:
            await within(WAIT_MS, parts.registry.administration.retire_broker(message.broker_id))
            return UnregisterBrokerResponse(0, NO_ERROR, None)
        call = UnregisterBrokerRequest(message.broker_id)
        return await within(WAIT_MS, ask_controller(parts, call, request))
    except LogbusError as error:
        return UnregisterBrokerResponse(0, wire_code(error), error.message)
