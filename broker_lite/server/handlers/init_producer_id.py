"""InitProducerId 0-4: assign a new id to an idempotent producer; any broker serves it.

As in Kafka, a producer without a transactional id always receives a new id with epoch 0.
Transactional ids are refused as in FindCoordinator, because transactions are not supported.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import LogbusError, TransactionalIdAuthorizationError, wire_code
from broker_lite.model import NO_PRODUCER
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import InitProducerIdResponse as Response


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer from the reserved block of ids; use ZooKeeper only to reserve the next block."""
    if message.transactional_id is not None:
        return _refused(TransactionalIdAuthorizationError.code)
    try:
        producer_id = await parts.registry.next_producer_id()
    except LogbusError as error:
        return _refused(wire_code(error))
    return Response(producer_id=producer_id, producer_epoch=0)


def _refused(code: int) -> Any:
    return Response(error_code=code, producer_id=NO_PRODUCER, producer_epoch=-1)
