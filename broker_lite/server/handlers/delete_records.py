"""Handle DeleteRecords 0-2: delete the records of partitions before given offsets.

The partition's leader serves the request. Offset -1 means the high watermark; a higher offset gets
OFFSET_OUT_OF_RANGE. The broker answers once every in-sync replica has deleted the records, or with
REQUEST_TIMED_OUT. The next retention run deletes segments that have no record left."""

from __future__ import annotations

import asyncio
from typing import Any

from broker_lite.errors import NO_ERROR, InvalidTopicError, LogbusError, wire_code
from broker_lite.model import NO_OFFSET, TRANSACTION_STATE, TopicPartition
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DeleteRecordsResponse as Response
from broker_lite.wire.tables import build

_Topic = Response.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Delete records of all partitions concurrently. Each partition has its own error in the
    answer."""
    topics = []
    for topic in message.topics:
        rows = await asyncio.gather(
            *(
                _delete(
                    parts,
                    request,
                    TopicPartition(topic.name, row.partition_index),
                    row.offset,
                    message.timeout_ms,
                )
                for row in topic.partitions
            )
        )
        topics.append(build(_Topic, name=topic.name, partitions=rows))
    return Response(topics=topics)


async def _delete(
    parts: BrokerContext, request: RequestContext, at: TopicPartition, offset: int, timeout_ms: int
) -> Any:
    topic, partition = at
    low_watermark, code = NO_OFFSET, NO_ERROR
    try:
        request.access.check_topic(topic)
        if topic == TRANSACTION_STATE:
            raise InvalidTopicError(
                f"only brokers delete records of topic {topic!r}; choose another topic"
            )
        deleting = parts.replicas.delete_records(topic, partition, offset, request.spent)
        low_watermark = await within(timeout_ms, deleting, f"a follower of {topic}-{partition}")
    except LogbusError as error:
        code = wire_code(error)
    return build(
        _Partition, partition_index=partition, low_watermark=low_watermark, error_code=code
    )
