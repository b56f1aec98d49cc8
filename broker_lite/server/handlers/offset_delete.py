"""Handle OffsetDelete 0: delete a group's offsets of given partitions, as the group's coordinator.

As in Kafka, a partition without an offset is no error. Offsets of a topic to which a member
subscribes are kept (GROUP_SUBSCRIBED_TO_TOPIC); if the coordinator does not know the subscriptions,
all are kept (NON_EMPTY_GROUP)."""

from __future__ import annotations

from typing import Any

from broker_lite.coordinator.group import Group
from broker_lite.errors import (
    NO_ERROR,
    GroupSubscribedToTopicError,
    LogbusError,
    NonEmptyGroupError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    wire_code,
)
from broker_lite.model import TopicPartition
from broker_lite.security.acls import ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import WAIT_MS, within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import OffsetDeleteResponse as Response
from broker_lite.wire.tables import build

_Topic = Response.OffsetDeleteResponseTopic
_Partition = _Topic.OffsetDeleteResponsePartition


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Delete the offsets. If the group has an error, the answer has only this error; otherwise
    each partition has its own."""
    requested = {
        TopicPartition(topic.name, row.partition_index)
        for topic in message.topics
        for row in topic.partitions
    }
    snapshot = parts.registry.snapshot
    known = {key for key in requested if snapshot.partition(*key) is not None}
    subscribed: frozenset[str] = frozenset()
    topics = dict.fromkeys(topic.name for topic in message.topics)
    try:
        request.access.check_group(message.group_id)
        visible = frozenset(request.access.visible(ResourceKind.TOPIC, topics))
        group = await parts.groups.find_or_take_over(message.group_id)
        if group is not None:
            subscribed = _subscribed(group)
        deletable = {key for key in known if key.topic in visible - subscribed}
        work = parts.registry.group_deletion.delete_offsets(message.group_id, deletable)
        await within(WAIT_MS, work)
    except LogbusError as error:
        return Response(error_code=wire_code(error), topics=[])

    def answer(name: str, index: int) -> Any:
        code = NO_ERROR
        if name not in visible:
            code = TopicAuthorizationError.code
        elif TopicPartition(name, index) not in known:
            code = UnknownTopicOrPartitionError.code
        elif name in subscribed:
            code = GroupSubscribedToTopicError.code
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


def _subscribed(group: Group) -> frozenset[str]:
    topics = group.subscribed()
    if topics is None:
        raise NonEmptyGroupError(
            f"offsets of group {group.name!r} cannot be deleted while it has members; stop its "
            "members first"
        )
    return topics
