"""Handle OffsetForLeaderEpoch 2-4: return the end offset of a leader epoch in a partition's log.

Consumers use it to detect that a log was truncated. The handler reads the leader epoch cache, not
the log. An unknown epoch gets epoch -1 and offset -1. Followers send no such request: the
answers to their fetches report divergence."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import NO_ERROR, LogbusError, wire_code
from broker_lite.model import NO_EPOCH, NO_OFFSET, OffsetAndEpoch
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import OffsetForLeaderEpochResponse as Response
from broker_lite.wire.tables import build

_Topic = Response.OffsetForLeaderTopicResult


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Return the end offset of the requested leader epoch of each partition. Each partition has its
    own error in the answer."""
    return Response(
        topics=[
            build(
                _Topic,
                topic=topic.topic,
                partitions=[_answer(parts, request, topic.topic, row) for row in topic.partitions],
            )
            for topic in message.topics
        ]
    )


def _answer(parts: BrokerContext, request: RequestContext, topic: str, row: Any) -> Any:
    code, end = NO_ERROR, OffsetAndEpoch(NO_OFFSET, NO_EPOCH)
    try:
        request.access.check_topic(topic)
        replica = parts.replicas.find(topic, row.partition)
        replica.check_leader(row.current_leader_epoch)
        log = replica.log
        end = log.leader_epochs.end_offset_for(row.leader_epoch, log.log_end_offset) or end
    except LogbusError as error:
        code = wire_code(error)
    return build(
        _Topic.EpochEndOffset,
        error_code=code,
        partition=row.partition,
        leader_epoch=end.leader_epoch,
        end_offset=end.offset,
    )
