"""Handle EndGroupOffsets, logbus API 10002: commit or drop a transaction's offsets in a group.

The transaction coordinator repeats the request to the group coordinator until it succeeds. The
broker answers when ZooKeeper has confirmed the write."""

from __future__ import annotations

from broker_lite.errors import NO_ERROR, InvalidRequestError, LogbusError, wire_code
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.group_transactions import (
    EndGroupOffsetsRequest,
    EndGroupOffsetsResponse,
)


async def handle(
    parts: BrokerContext, request: RequestContext, message: EndGroupOffsetsRequest
) -> EndGroupOffsetsResponse:
    """Commit or drop the transaction's offsets. A client that is not a broker gets an error."""
    try:
        if not request.may_be_broker:
            raise InvalidRequestError(
                "only brokers end a transaction's offsets in a group; send EndTxn to the "
                "transaction coordinator"
            )
        await parts.group_transactions.end(message)
    except LogbusError as error:
        return EndGroupOffsetsResponse(wire_code(error))
    return EndGroupOffsetsResponse(NO_ERROR)
