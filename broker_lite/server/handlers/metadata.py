"""Handle Metadata 0-12: return the live brokers, the controller, and topics with their leaders.

A client requests topics by name or id. With ``auto.create.topics.enable``, missing topics are
created first. An unknown topic has its own error in the answer, and so has a partition without a
live leader. If an election is due, the answer waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    InvalidTopicError,
    TopicAuthorizationError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import NULL_TOPIC_ID, TopicView, is_valid_name
from broker_lite.security.acls import CLUSTER_NAME, Operation, ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.cluster_rows import brokers, controller, partition_row
from broker_lite.server.handlers.topic_creation import create_missing
from broker_lite.server.network.access import Access
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import MetadataResponse as Response
from broker_lite.wire.tables import build, uuid

_Topic = Response.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition

NOTICE_S = 0.01
"""Seconds for which a Metadata request of a third-party client waits before it is answered.

After a broker is killed, its clients may notice the death up to 6 ms before other brokers do, and
franz-go then asks for metadata within 0.5 ms. The wait gives this broker time to notice it too."""
ROWS_IN_A_TURN = 200
"""Requested topics that are looked up in one iteration of the event loop.

A request may name 100,000 topics. If the client may not describe them, their denials would block
the loop for seconds."""
ALL_WHEN_EMPTY_UNTIL = 0
"""The last version of Metadata in which an empty list, instead of null, asks for all topics."""
NULL_NAME_FROM = 12
"""The first version of Metadata in which an answer about a topic id may leave out the name."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer from the metadata snapshot, after due elections and the creation of topics.

    A client asks for metadata when a leader's connection closes, often before the next election. If
    the answer named the dead leader, the client would connect to a closed port and retry after a
    backoff. So a third-party client's answer waits ``NOTICE_S``, in which this broker too may
    notice the death. logbus's own clients (only these send no ApiVersions) retry at once and get
    their answer at once."""
    if request.session.software and len(parts.registry.snapshot.brokers) > 1:
        await asyncio.sleep(NOTICE_S)
    requested: Any = _distinct(message.topics)
    access = request.access
    failed: dict[str, int] = {}
    if requested and parts.config.auto_create_topics and message.allow_auto_topic_creation:
        known = parts.registry.snapshot.topics
        missing = [row.name for row in requested if row.name is not None and row.name not in known]
        failed = await create_missing(parts, request, missing)
    asks_all = requested is None or (not requested and request.api_version <= ALL_WHEN_EMPTY_UNTIL)
    await parts.registry.wait_elections(
        lambda now: _visible(access, now) if asks_all else _found(access, requested, now)
    )
    snapshot = parts.registry.snapshot
    if asks_all:
        topics = [_topic(view, snapshot) for view in _visible(access, snapshot)]
    else:
        # For an empty list of topics, no other check follows. The dispatcher drops the answer of a
        # handler that has checked no permission, so check one here.
        access.visible(ResourceKind.TOPIC, ())
        topics = []
        for first in range(0, len(requested), ROWS_IN_A_TURN):
            if first:
                await asyncio.sleep(0)
            some = requested[first : first + ROWS_IN_A_TURN]
            topics += [_wanted(row, snapshot, request, failed) for row in some]
    if message.include_topic_authorized_operations:
        for row in topics:
            if not row.error_code:
                row.authorized_operations = access.operations(ResourceKind.TOPIC, row.name)
    on_cluster = message.include_cluster_authorized_operations
    return Response(
        brokers=brokers(
            parts, snapshot, Response.MetadataResponseBroker, "node_id", request.session.listener
        ),
        cluster_id=snapshot.cluster_id,
        controller_id=controller(snapshot),
        topics=topics,
        authorized_operations=(
            access.operations(ResourceKind.CLUSTER, CLUSTER_NAME) if on_cluster else None
        ),
    )


def _distinct(topics: list[Any] | None) -> list[Any] | None:
    """Return the requested topics, each once, as Kafka does. A small request could otherwise repeat
    a topic with thousands of partitions, so that the answer would use up the memory."""
    if topics is None:
        return None
    rows = {(row.name, row.topic_id if row.name is None else ""): row for row in topics}
    return list(rows.values())


def _visible(access: Access, snapshot: MetadataSnapshot) -> list[TopicView]:
    names = access.visible(ResourceKind.TOPIC, snapshot.topics)
    return [snapshot.topics[name] for name in names]


def _found(
    access: Access, requested: Iterable[Any], snapshot: MetadataSnapshot
) -> Iterator[TopicView]:
    """Yield the requested topics that exist and that the client may describe."""
    for row in requested:
        view = (
            snapshot.topics_by_id.get(row.topic_id)
            if row.name is None
            else snapshot.topics.get(row.name)
        )
        if view is not None and access.may(Operation.DESCRIBE, ResourceKind.TOPIC, view.name):
            yield view


def _wanted(
    row: Any, snapshot: MetadataSnapshot, request: RequestContext, failed: Mapping[str, int]
) -> Any:
    name, topic_id, version = row.name, row.topic_id, request.api_version
    code = NO_ERROR
    try:
        if name is None:
            request.access.check_topic_id(topic_id, snapshot.topics_by_id)
        else:
            request.access.check_topic(name)
    except TopicAuthorizationError as error:
        code = error.code
    if name is None:
        topic = snapshot.topics_by_id.get(topic_id)
        if topic is None or code:
            return build(
                _Topic,
                error_code=code or UnknownTopicIdError.code,
                name=None if version >= NULL_NAME_FROM else "",
                topic_id=uuid(topic_id),
                partitions=[],
            )
        return _topic(topic, snapshot)
    topic = snapshot.topics.get(name)
    if topic is not None and not code:
        return _topic(topic, snapshot)
    missing = UnknownTopicOrPartitionError if is_valid_name(name) else InvalidTopicError
    code = code or failed.get(name, missing.code)
    return build(_Topic, error_code=code, name=name, topic_id=uuid(NULL_TOPIC_ID), partitions=[])


def _topic(view: TopicView, snapshot: MetadataSnapshot) -> Any:
    return build(
        _Topic,
        error_code=0,
        name=view.name,
        topic_id=uuid(view.topic_id),
        is_internal=view.is_internal,
        partitions=[partition_row(_Partition, each, snapshot) for each in view.partitions],
    )
