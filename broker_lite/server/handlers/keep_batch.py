"""Handle KeepBatch, logbus API 10005: restart the timeout of a micro-batch that a Spark task is
still writing with the exactly-once sink."""

from __future__ import annotations

from broker_lite.errors import LogbusError
from broker_lite.model import UNNUMBERED
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.transactions.sink_events import KeepBatch
from broker_lite.wire.calls.sinks import KeepBatchRequest, SinkResponse


async def handle(
    parts: BrokerContext, request: RequestContext, message: KeepBatchRequest
) -> SinkResponse:
    """Restart the timeout after which the coordinator aborts the query's micro-batch."""
    try:
        request.access.check_transactional_id(message.sink)
        await parts.transactions.ask_sink(
            message.sink,
            KeepBatch(UNNUMBERED, message.sink, message.run, message.batch),
        )
    except LogbusError as error:
        return SinkResponse(error.code, error.message)
    return SinkResponse()
