"""InitProducerId 0-4: a new id for an idempotent producer, from any broker.

As in Kafka, a producer without a transactional id always gets a new id with epoch 0, whatever id
it had. A transactional id is refused until transactions are built, as by FindCoordinator.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import LogbusError, TransactionalIdAuthorizationError, wire_code
from broker_lite.model import NO_PRODUCER
from broker_lite.server.broker_context import Parts
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import InitProducerIdResponse as Response


async def handle(parts: Parts, request: RequestContext, message: Any) -> Any:
    """Needs ZooKeeper only when a block of ids is used up."""
    if message.transactional_id is not None:
        return _refused(TransactionalIdAuthorizationError.code)
    try:
        producer_id = await parts.registry.next_producer_id()
    except LogbusError as error:
        return _refused(wire_code(error))
    return Response(producer_id=producer_id, producer_epoch=0)


def _refused(code: int) -> Any:
    return Response(error_code=code, producer_id=NO_PRODUCER, producer_epoch=-1)
