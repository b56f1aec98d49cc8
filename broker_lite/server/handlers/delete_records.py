"""DeleteRecords 0-2: forget what is before an offset; each partition's leader's.

Offset -1 is the high watermark; one above it is OFFSET_OUT_OF_RANGE. The answer comes when every
replica that may lead next has deleted them too, or REQUEST_TIMED_OUT. Whole segments that nobody
can read any more are deleted by the next retention run.
"""

from __future__ import annotations

import asyncio
from typing import Any

from broker_lite.errors import NO_ERROR, LogbusError, wire_code
from broker_lite.model import NO_OFFSET
from broker_lite.server.broker_context import Parts
from broker_lite.server.handlers.deadline import within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DeleteRecordsResponse as Response
from broker_lite.wire.tables import build

_Topic = Response.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult


async def handle(parts: Parts, request: RequestContext, message: Any) -> Any:
    """Each partition has its own error; they are carried out side by side."""
    topics = []
    for topic in message.topics:
        rows = await asyncio.gather(
            *(
                _delete(parts, topic.name, row.partition_index, row.offset, message.timeout_ms)
                for row in topic.partitions
            )
        )
        topics.append(build(_Topic, name=topic.name, partitions=rows))
    return Response(topics=topics)


async def _delete(parts: Parts, topic: str, partition: int, offset: int, timeout_ms: int) -> Any:
    low_watermark, code = NO_OFFSET, NO_ERROR
    try:
        deleting = parts.replicas.delete_records(topic, partition, offset)
        low_watermark = await within(timeout_ms, deleting, f"a follower of {topic}-{partition}")
    except LogbusError as error:
        code = wire_code(error)
    return build(
        _Partition, partition_index=partition, low_watermark=low_watermark, error_code=code
    )
