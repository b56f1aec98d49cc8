"""Handle InitProducerId 0-5: return the producer id and epoch with which a producer writes.

Any broker serves a producer without a transactional id, which always gets a new id with epoch 0, as
in Kafka. For a transactional id, its coordinator fences the former producer, aborts that producer's
open transaction, and answers with the next epoch."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import InvalidRequestError, LogbusError
from broker_lite.model import NO_EPOCH, NO_PRODUCER, UNNUMBERED
from broker_lite.security.acls import Operation
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.transactions.events import Init
from broker_lite.wire.error_codes import code_in_version
from broker_lite.wire.tables import InitProducerIdResponse as Response


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer with a producer id and epoch.

    Without a transactional id, the producer id comes from the block that this broker has reserved;
    only the reservation of the next block needs ZooKeeper."""
    try:
        if message.transactional_id is None:
            if not request.access.may_write_any_topic():
                request.access.check_cluster(Operation.IDEMPOTENT_WRITE)
            return Response(producer_id=await parts.registry.next_producer_id(), producer_epoch=0)
        request.access.check_transactional_id(message.transactional_id)
        expected = _expected(message)
        await parts.transactions.wait_loaded(message.transactional_id)
        result = await parts.transactions.ask(
            message.transactional_id,
            Init(UNNUMBERED, message.transaction_timeout_ms, expected),
        )
        if result.error is not None:
            raise result.error
    except LogbusError as error:
        code = code_in_version(error, request.api_key, request.api_version)
        return Response(error_code=code, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH)
    return Response(producer_id=result.producer_id, producer_epoch=result.epoch)


def _expected(message: Any) -> tuple[int, int] | None:
    """Return the producer id and epoch of a producer that recovers from an error (KIP-360), or None
    for a new producer.

    Requests before version 3 lack both fields, so they give None too."""
    producer_id, epoch = message.producer_id, message.producer_epoch
    if producer_id == NO_PRODUCER and epoch == NO_EPOCH:
        return None
    if producer_id < 0 or epoch < 0:
        raise InvalidRequestError(
            f"producer id {producer_id} and epoch {epoch}: give both, or -1 for both"
        )
    return producer_id, epoch
