"""Handle EndBatch, logbus API 10004: the driver of a Spark query with the exactly-once sink commits
or aborts a micro-batch.

The broker answers when all transaction markers are written, or one second after the decision is
committed to ``__transaction_state``."""

from __future__ import annotations

from broker_lite.errors import LogbusError
from broker_lite.model import UNNUMBERED
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.transactions.sink_events import EndBatch
from broker_lite.transactions.sink_records import ProducerPair
from broker_lite.wire.calls.sinks import EndBatchRequest, SinkResponse


async def handle(
    parts: BrokerContext, request: RequestContext, message: EndBatchRequest
) -> SinkResponse:
    """Commit or abort a Spark query's micro-batch. A repeated request gets the same answer."""
    try:
        request.access.check_transactional_id(message.sink)
        await parts.transactions.ask_sink(
            message.sink,
            EndBatch(
                UNNUMBERED,
                message.sink,
                message.run,
                message.batch,
                message.is_commit,
                frozenset(ProducerPair(*pair) for pair in message.winners),
                message.rows,
            ),
        )
    except LogbusError as error:
        return SinkResponse(error.code, error.message)
    return SinkResponse()
