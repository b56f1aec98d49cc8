"""Handle DescribeTopicPartitions 0: return topics with their partitions, in pages (KIP-966).

Topics are sorted by name; the cursor names the first partition of the next page. logbus has no
eligible leader replicas outside the ISR, so ``eligible_leader_replicas`` is empty."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    InvalidRequestError,
    InvalidTopicError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import NULL_TOPIC_ID, PartitionView, is_valid_name
from broker_lite.security.acls import ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.cluster_rows import partition_row
from broker_lite.server.network.access import Access
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DescribeTopicPartitionsResponse as Response
from broker_lite.wire.tables import build, uuid

_Topic = Response.DescribeTopicPartitionsResponseTopic
_Partition = _Topic.DescribeTopicPartitionsResponsePartition
_Cursor = Response.Cursor

PAGE_MAX = 2000
"""Maximum number of partitions in one answer: Kafka's default
``max.request.partition.size.limit``."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer from the metadata snapshot. Raises InvalidRequestError for a negative partition."""
    snapshot, cursor = parts.registry.snapshot, message.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise InvalidRequestError(
            f"the cursor names partition {cursor.partition_index}; give a partition of at least 0"
        )
    first_name, first = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    access = request.access
    requested = {row.name for row in message.topics}
    names = requested or access.visible(ResourceKind.TOPIC, snapshot.topics)
    left = max(min(message.response_partition_limit, PAGE_MAX), 1)
    topics: list[Any] = []
    for name in sorted(name for name in names if name >= first_name):
        start = first if name == first_name else 0
        if left == 0:
            return Response(topics=topics, next_cursor=_cursor(name, start))
        topic = _topic(access, snapshot, name, slice(start, start + left))
        topics.append(topic)
        left -= len(topic.partitions)
        view = snapshot.topics.get(name)
        end = start + len(topic.partitions)
        if view is not None and not topic.error_code and end < len(view.partitions):
            return Response(topics=topics, next_cursor=_cursor(name, end))
    return Response(topics=topics, next_cursor=None)


def _cursor(name: str, partition: int) -> Any:
    return build(_Cursor, topic_name=name, partition_index=partition)


def _topic(access: Access, snapshot: MetadataSnapshot, name: str, page: slice) -> Any:
    view = snapshot.topics.get(name)
    code = NO_ERROR
    try:
        access.check_topic(name)
    except TopicAuthorizationError as error:
        code = error.code
    if view is None or code:
        missing = UnknownTopicOrPartitionError if is_valid_name(name) else InvalidTopicError
        return build(
            _Topic,
            error_code=code or missing.code,
            name=name,
            topic_id=uuid(NULL_TOPIC_ID),
            partitions=[],
        )
    return build(
        _Topic,
        error_code=NO_ERROR,
        name=name,
        topic_id=uuid(view.topic_id),
        is_internal=view.is_internal,
        topic_authorized_operations=sum(
            1 << operation for operation in access.operations(ResourceKind.TOPIC, name)
        ),
        partitions=[_partition(each, snapshot) for each in view.partitions[page]],
    )


def _partition(view: PartitionView, snapshot: MetadataSnapshot) -> Any:
    row = partition_row(_Partition, view, snapshot)
    row.eligible_leader_replicas = row.last_known_elr = []
    return row
