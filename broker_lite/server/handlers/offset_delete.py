"""OffsetDelete 0: a group's offsets of some partitions, through any broker.

A partition that has no offset is no error, as in Kafka. Subscribed members, which Kafka protects
from this, come with group coordination.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    LogbusError,
    UnknownTopicOrPartitionError,
    wire_code,
)
from broker_lite.model import TopicPartition
from broker_lite.server.handlers.deadline import within
from broker_lite.server.parts import Parts
from broker_lite.wire.api import RequestHeader
from broker_lite.wire.tables import OffsetDeleteResponse as Response
from broker_lite.wire.tables import build

WAIT_MS = 30_000
"""The request itself has no field for it."""

_Topic = Response.OffsetDeleteResponseTopic
_Partition = _Topic.OffsetDeleteResponsePartition


async def handle(parts: Parts, request: RequestHeader, message: Any) -> Any:
    """What is wrong with the group is one error for all; a partition that is not there, its own."""
    asked = {
        TopicPartition(topic.name, row.partition_index)
        for topic in message.topics
        for row in topic.partitions
    }
    known = {key for key in asked if _exists(parts, key)}
    try:
        work = parts.registry.delete_group_offsets(message.group_id, known)
        await within(WAIT_MS, work)
    except LogbusError as error:
        return Response(error_code=wire_code(error), topics=[])

    def answer(name: str, index: int) -> Any:
        there = TopicPartition(name, index) in known
        code = NO_ERROR if there else UnknownTopicOrPartitionError.code
        return build(_Partition, partition_index=index, error_code=code)

    return Response(
        error_code=NO_ERROR,
        topics=[
            build(
                _Topic,
                name=topic.name,
                partitions=[answer(topic.name, row.partition_index) for row in topic.partitions],
            )
            for topic in message.topics
        ],
    )


def _exists(parts: Parts, key: TopicPartition) -> bool:
    topic = parts.registry.snapshot.topics.get(key.topic)
    return topic is not None and 0 <= key.partition < len(topic.partitions)
