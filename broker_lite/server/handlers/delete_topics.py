"""Handle DeleteTopics 1-6: delete topics by name, or from version 6 on by topic id.

The controller answers when the topics are deleted in ZooKeeper. Brokers delete the log files
later."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import (
    InvalidRequestError,
    LogbusError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import NULL_TOPIC_ID
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.cluster.administration import TopicResult
from broker_lite.server.handlers.deadline import within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DeleteTopicsResponse as Response
from broker_lite.wire.tables import build, error_fields, uuid

BY_ID_FROM = 6
"""The first version of DeleteTopics whose requests may name topics by id."""
STRICT_QUOTA_FROM = 5
"""The first version of DeleteTopics whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Delete the topics. Each topic has its own error in the answer."""
    if request.api_version >= BY_ID_FROM:
        requested = [(row.name, row.topic_id) for row in message.topics]
    else:
        requested = [(name, NULL_TOPIC_ID) for name in message.topic_names]
    return Response(
        responses=[await _delete(parts, request, *each, message.timeout_ms) for each in requested]
    )


async def _delete(
    parts: BrokerContext, request: RequestContext, name: str | None, topic_id: str, timeout_ms: int
) -> Any:
    error: LogbusError | None
    try:
        if name is not None and topic_id != NULL_TOPIC_ID:
            raise InvalidRequestError(f"topic {name!r}: give its name or its id, not both")
        known = parts.registry.snapshot.topics_by_id
        if name is not None:
            request.access.check_topic(name)
        else:
            request.access.check_topic_id(topic_id, known)
        topics = parts.registry.snapshot.topics
        topic = known.get(topic_id) if name is None else topics.get(name)
        if name is None and topic is None and parts.registry.is_controller:
            # Refuse the id. The controller's state machine may know a topic that this snapshot does
            # not have yet. The state machine would delete this topic, whose name was not checked
            # against the ACLs.
            raise UnknownTopicIdError(f"no topic has id {topic_id}")
        if request.quota is not None and topic is not None:
            is_strict = request.api_version >= STRICT_QUOTA_FROM
            request.quota.mutate(len(topic.partitions), is_strict=is_strict)
        work = parts.registry.administration.delete_topics([topic_id if name is None else name])
        (result,) = await within(timeout_ms, work)
        error = result.error
    except LogbusError as raised:
        error = raised
    if error is not None:
        result = TopicResult(name or "", topic_id)
        if name is None and isinstance(error, UnknownTopicOrPartitionError):
            error = UnknownTopicIdError(f"no topic has id {topic_id}")
    return build(
        Response.DeletableTopicResult,
        name=name if name is not None else result.name or None,
        topic_id=uuid(result.topic_id or NULL_TOPIC_ID),
        **error_fields(error),
    )
