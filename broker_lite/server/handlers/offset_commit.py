"""Handle OffsetCommit 0-9: write a group's offsets to ZooKeeper. The group's coordinator serves it.

The broker answers after ZooKeeper has confirmed the write. While a group has members, only its
members may commit, in the current generation. Otherwise any client may commit, without a
generation.

A logbus client sends each topic's id in a tagged field. If the topic was deleted and recreated
since, the commit fails with UNKNOWN_TOPIC_ID. Without a topic id, the commit applies to the present
topic of that name.

The handler ignores the retention time of versions 2-4 and the commit time of version 1. The broker
keeps offsets until their group or topic is deleted, or until an empty group exceeds the broker's
offset retention.
"""

from __future__ import annotations

from typing import Any

from broker_lite.coordinator.events import Commit
from broker_lite.errors import (
    NO_ERROR,
    InvalidRequestError,
    LogbusError,
    OffsetMetadataTooLargeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    error_for,
    wire_code,
)
from broker_lite.model import NULL_TOPIC_ID, CommittedOffset, TopicPartition
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import OffsetCommitResponse as Response
from broker_lite.wire.tables import build, own_tag

_Topic = Response.OffsetCommitResponseTopic
_Partition = _Topic.OffsetCommitResponsePartition


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Commit the offset of each partition. The offsets of other partitions are committed even if
    some partitions are refused.
    """
    refused: dict[tuple[TopicPartition, str], int] = {}
    codes: dict[TopicPartition, int] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    access = request.access
    for topic in message.topics:
        topic_id = own_tag(topic) or NULL_TOPIC_ID
        for row in topic.partitions:
            key = TopicPartition(topic.name, row.partition_index)
            try:
                access.check_group(message.group_id)
                access.check_topic(topic.name)
                offsets[key] = checked_offset(parts, key, row, topic_id)
            except LogbusError as error:
                refused[key, topic_id] = wire_code(error)

    def commit(token: int) -> Commit:
        return Commit(
            token,
            message.member_id,
            message.group_instance_id,
            message.generation_id_or_member_epoch,
        )

    if offsets:
        began_us = parts.clock.monotonic_us()
        try:
            claim = await parts.groups.claim_for_commit(message.group_id, commit)
            results = await parts.registry.groups.commit(message.group_id, offsets, claim)
        except LogbusError as error:
            codes = dict.fromkeys(offsets, wire_code(error))
        else:
            for key, failure in results.items():
                codes[key] = NO_ERROR if failure is None else wire_code(failure)
        seconds = (parts.clock.monotonic_us() - began_us) / 1e6
        parts.groups.commit_durations.observe(seconds)

    for code in (*refused.values(), *codes.values()):
        if code != NO_ERROR:
            parts.metrics.count("offset_commit_errors", error_for(code).name)

    def answer(topic: Any, row: Any) -> Any:
        key = TopicPartition(topic.name, row.partition_index)
        code = refused.get((key, own_tag(topic) or NULL_TOPIC_ID)) or codes[key]
        return build(_Partition, partition_index=row.partition_index, error_code=code)

    return Response(
        topics=[
            build(
                _Topic, name=topic.name, partitions=[answer(topic, row) for row in topic.partitions]
            )
            for topic in message.topics
        ]
    )


def checked_offset(
    parts: BrokerContext, key: TopicPartition, row: Any, topic_id: str
) -> CommittedOffset:
    """Return the offset of one partition in the request, with the topic's id and the commit time.

    ``topic_id`` is the id that the client sent, or NULL_TOPIC_ID. Raise UnknownTopicIdError,
    UnknownTopicOrPartitionError, InvalidRequestError or OffsetMetadataTooLargeError.
    """
    topic = parts.registry.snapshot.topics.get(key.topic)
    if topic is not None and topic_id not in (NULL_TOPIC_ID, topic.topic_id):
        raise UnknownTopicIdError(f"{key} has topic id {topic.topic_id}, not {topic_id}")
    if topic is None or not 0 <= key.partition < len(topic.partitions):
        raise UnknownTopicOrPartitionError(f"{key} does not exist")
    if row.committed_offset < 0:
        raise InvalidRequestError(f"{key}: offset {row.committed_offset} is negative")
    metadata = row.committed_metadata or ""
    limit = parts.config.offset_metadata_bytes_max
    if len(metadata.encode("utf-8")) > limit:
        raise OffsetMetadataTooLargeError(f"{key}: metadata is longer than {limit} bytes")
    return CommittedOffset(
        row.committed_offset,
        row.committed_leader_epoch,
        metadata,
        topic.topic_id,
        parts.clock.now_ms(),
    )
