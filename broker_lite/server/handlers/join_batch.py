"""Handle JoinBatch, logbus API 10003: a task attempt of a Spark query with the exactly-once sink
begins to write a micro-batch.

The answer has the producer id and epoch for the attempt, or tells that the batch is already
committed."""

from __future__ import annotations

from broker_lite.errors import LogbusError
from broker_lite.model import UNNUMBERED
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.transactions.sink_events import JoinBatch
from broker_lite.wire.calls.sinks import JoinBatchRequest, SinkResponse


async def handle(
    parts: BrokerContext, request: RequestContext, message: JoinBatchRequest
) -> SinkResponse:
    """Add the attempt of a Spark task to its micro-batch. A repeated request gets the same
    answer."""
    try:
        request.access.check_transactional_id(message.sink)
        known = parts.registry.snapshot.topics_by_id
        for key in message.partitions:
            request.access.check_topic_id(key.topic_id, known)
        # Leave out topics that this broker's metadata do not have, because their permissions could
        # not be checked. When the task attempt sends its first batch to such a topic, the leader of
        # the partition checks the permission, and then asks the coordinator to add the partition.
        partitions = frozenset(key for key in message.partitions if key.topic_id in known)
        result = await parts.transactions.ask_sink(
            message.sink,
            JoinBatch(
                UNNUMBERED,
                message.sink,
                message.run,
                message.batch,
                message.task,
                message.attempt,
                message.timeout_ms,
                partitions,
            ),
        )
    except LogbusError as error:
        return SinkResponse(error.code, error.message)
    return SinkResponse(producer_id=result.producer_id, producer_epoch=result.epoch)
