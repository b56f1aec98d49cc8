"""Handle CreateTopics 2-7: create topics with a number of partitions or a replica assignment.

The controller answers when the topics are in ZooKeeper and in its metadata snapshot. logbus has no
topic creation policies."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    LogbusError,
    TopicAuthorizationError,
)
from broker_lite.model import NAME_LENGTH_MAX, NULL_TOPIC_ID, TRANSACTION_STATE, is_valid_name
from broker_lite.replication.topics import partitions_max
from broker_lite.security.acls import Operation, ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.cluster.administration import NewTopic, TopicResult
from broker_lite.server.handlers.deadline import within
from broker_lite.server.handlers.topic_settings import checked, topic_settings
from broker_lite.server.network.access import Access
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.topics import DEFAULT_COUNT
from broker_lite.wire.tables import CreateTopicsResponse as Response
from broker_lite.wire.tables import build, error_fields, uuid

STRICT_QUOTA_FROM = 6
"""The first version of CreateTopics whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
_Topic = Response.CreatableTopicResult
_Setting = _Topic.CreatableTopicConfigs


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Create the valid topics of the request. Each topic has its own error in the answer."""
    times = Counter(row.name for row in message.topics)
    results: dict[str, TopicResult] = {}
    new_topics = []
    charged: dict[str, int] = {}
    first = {row.name: row for row in reversed(message.topics)}
    for name, count in times.items():
        row = first[name]
        try:
            if count > 1:
                raise InvalidRequestError(
                    f"topic {name!r} occurs more than once in the request; name it once"
                )
            request.access.check_topic(name)
            topic = _new_topic(row)
            if request.quota is not None and not message.validate_only:
                count = parts.config.num_partitions if topic.partitions < 0 else topic.partitions
                count = min(count, partitions_max(name, 1))
                request.quota.mutate(count, is_strict=request.api_version >= STRICT_QUOTA_FROM)
                charged[name] = count
            new_topics.append(topic)
        except LogbusError as error:
            results[name] = TopicResult(name, NULL_TOPIC_ID, error)
    if new_topics:
        try:
            done = await within(
                message.timeout_ms,
                parts.registry.administration.create_topics(
                    new_topics, validate_only=message.validate_only
                ),
            )
        except LogbusError as error:
            done = [TopicResult(topic.name, NULL_TOPIC_ID, error) for topic in new_topics]
        for result in done:
            results[result.name] = result
            if request.quota is not None and result.error is not None:
                request.quota.refund(charged.get(result.name, 0), result.error)
    return Response(topics=[_answer(request.access, results[name]) for name in times])


def _new_topic(row: Any) -> NewTopic:
    """Return the topic of a request's row, after all checks that need no metadata.

    Raises LogbusError for an invalid topic."""
    if not is_valid_name(row.name):
        raise InvalidTopicError(
            f"topic name {row.name[:NAME_LENGTH_MAX]!r}: give 1 to {NAME_LENGTH_MAX} letters, "
            "digits, '.', '_' or '-'; the names '.' and '..' are not allowed"
        )
    if row.name == TRANSACTION_STATE:
        raise InvalidTopicError(
            f"topic {row.name!r} is internal; the controller creates it for the first producer "
            "with a transactional.id"
        )
    config = checked({each.name: each.value for each in row.configs})
    if row.assignments:
        if (row.num_partitions, row.replication_factor) != (DEFAULT_COUNT, DEFAULT_COUNT):
            raise InvalidRequestError(
                f"topic {row.name!r}: give an assignment, or partition count and "
                "replication factor, not both"
            )
        assignment = _assignment(row)
        return NewTopic(row.name, len(assignment), len(assignment[0]), assignment, config)
    if row.num_partitions != DEFAULT_COUNT and row.num_partitions < 1:
        raise InvalidPartitionsError(
            f"topic {row.name!r}: {row.num_partitions} partitions; give at least 1, or -1 for the "
            "broker's num.partitions"
        )
    if row.replication_factor != DEFAULT_COUNT and row.replication_factor < 1:
        raise InvalidReplicationFactorError(
            f"topic {row.name!r}: replication factor {row.replication_factor}; give at least 1, "
            "or -1 for the broker's default.replication.factor"
        )
    return NewTopic(row.name, row.num_partitions, row.replication_factor, None, config)


def _assignment(row: Any) -> list[tuple[int, ...]]:
    by_index = {each.partition_index: tuple(each.broker_ids) for each in row.assignments}
    if sorted(by_index) != list(range(len(row.assignments))):
        raise InvalidReplicaAssignmentError(
            f"topic {row.name!r}: name each partition from 0 to {len(row.assignments) - 1} once"
        )
    assignment = [by_index[index] for index in range(len(by_index))]
    for index, broker_ids in enumerate(assignment):
        if not broker_ids or len(set(broker_ids)) != len(broker_ids):
            raise InvalidReplicaAssignmentError(
                f"topic {row.name!r} partition {index}: give one or more brokers, each once"
            )
        if len(broker_ids) != len(assignment[0]):
            raise InvalidReplicaAssignmentError(
                f"topic {row.name!r}: every partition needs as many brokers as partition 0"
            )
    return assignment


def _answer(access: Access, result: TopicResult) -> Any:
    error = result.error
    if error is not None:
        return build(
            _Topic,
            name=result.name,
            topic_id=uuid(NULL_TOPIC_ID),
            **error_fields(error),
            configs=None,
        )
    shows = access.may(Operation.DESCRIBE_CONFIGS, ResourceKind.TOPIC, result.name)
    return build(
        _Topic,
        name=result.name,
        topic_id=uuid(result.topic_id or NULL_TOPIC_ID),
        **error_fields(None),
        topic_config_error_code=NO_ERROR if shows else TopicAuthorizationError.code,
        num_partitions=result.partitions if shows else -1,
        replication_factor=result.replication_factor if shows else -1,
        configs=None
        if not shows
        else [
            build(
                _Setting,
                name=each.key,
                value=each.value,
                read_only=False,
                config_source=each.source,
                is_sensitive=False,
            )
            for each in topic_settings(result.config)
        ],
    )
