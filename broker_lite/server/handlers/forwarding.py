"""Passing a request on to the controller, for APIs whose clients ask any broker.

One short connection a request: these are rare. The controller's answer is the client's; without a
controller, or where it cannot be reached or is deposed before it answers, NotControllerError, which
clients try again. A request that was passed on is not passed on again. Loop thread.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from broker_lite.errors import NotControllerError, ProtocolError
from broker_lite.server.one_call import ask
from broker_lite.server.parts import Parts
from broker_lite.wire.api import Call, RequestHeader

FORWARDED_CLIENT_ID = "logbus-forwarded"
"""Says that a broker passed this on, so that two brokers that each take the other for controller
do not pass it to and fro."""

LOOK_S = 0.1
"""How late a waiting request finds out that the controller is another."""

T = TypeVar("T")


def is_forwarded(request: RequestHeader) -> bool:
    """Whether a broker sent it."""
    return request.client_id == FORWARDED_CLIENT_ID


async def ask_controller(parts: Parts, call: Call[T]) -> T:
    """The controller's answer. Raises NotControllerError where there is none to be had."""
    snapshot = parts.registry.snapshot
    controller = snapshot.brokers.get(snapshot.controller_id)
    if controller is None or controller.broker_id == parts.broker_id:
        raise NotControllerError("no controller is known at present; try again")
    asking = asyncio.ensure_future(
        ask(controller.endpoint, call, FORWARDED_CLIENT_ID, parts.config.frame_bytes_max)
    )
    try:
        while not asking.done():
            await asyncio.wait((asking,), timeout=LOOK_S)
            if not asking.done() and parts.registry.snapshot.controller_id != controller.broker_id:
                raise NotControllerError(
                    f"broker {controller.broker_id} is the controller no more; try again"
                )
        return asking.result()
    except (OSError, asyncio.IncompleteReadError, ProtocolError) as error:
        raise NotControllerError(
            f"the controller, broker {controller.broker_id}, did not answer ({error}); try again"
        ) from None
    finally:
        asking.cancel()
