"""Forward a request to the controller, for APIs that clients send to any broker.

The client gets the controller's answer, or NOT_CONTROLLER if the controller is unknown, was
replaced or does not answer; it then retries. A forwarded request is never forwarded again: two
brokers with stale metadata could forward it to each other for ever."""

from __future__ import annotations

import asyncio
import math
from typing import TypeVar

from broker_lite.errors import NetworkError, NotControllerError, ProtocolError, error_for
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.api import Call, decode_call, encode_call
from broker_lite.wire.calls.envelope import EnvelopeRequest

CHECK_S = 0.1
"""Seconds between two checks whether another broker has become controller, while a request waits
for the controller's answer."""

T = TypeVar("T")


async def ask_controller(
    parts: BrokerContext, call: Call[T], request: RequestContext | None = None
) -> T:
    """Send ``call`` to the controller and return its answer.

    ``request`` is the client's request. If this broker has an authorizer, the call goes in an
    Envelope (KIP-590) with the client's principal and address, so that the controller can authorize
    it. Raises NotControllerError if no controller answers."""
    if request is None or not request.access.is_checked:
        return await _send(parts, call)
    session = request.session
    inner = encode_call(call, request.correlation_id, request.client_id)
    answer = await _send(parts, EnvelopeRequest(bytes(inner[4:]), session.principal, session.host))
    if answer.error_code or answer.response is None:
        raise error_for(answer.error_code)
    return decode_call(call, memoryview(answer.response))


async def _send(parts: BrokerContext, call: Call[T]) -> T:
    snapshot = parts.registry.snapshot
    controller = snapshot.brokers.get(snapshot.controller_id)
    if controller is None or controller.broker_id == parts.broker_id:
        raise NotControllerError("no controller is known at present; try again")
    asking = asyncio.ensure_future(parts.calls.send(controller.broker_id, call, math.inf))
    try:
        while not asking.done():
            await asyncio.wait((asking,), timeout=CHECK_S)
            if not asking.done() and parts.registry.snapshot.controller_id != controller.broker_id:
                raise NotControllerError(
                    f"broker {controller.broker_id} is no longer the controller; try again"
                )
        return asking.result()
    except (NetworkError, ProtocolError) as error:
        raise NotControllerError(
            f"the controller, broker {controller.broker_id}, did not answer ({error}); try again"
        ) from None
    finally:
        asking.cancel()
