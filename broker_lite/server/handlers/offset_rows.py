"""Validate and authorize the offsets in OffsetCommit and TxnOffsetCommit requests, and build the
answers with each partition's error code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_lite.errors import (
    InvalidRequestError,
    LogbusError,
    OffsetMetadataTooLargeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    wire_code,
)
from broker_lite.model import NULL_TOPIC_ID, CommittedOffset, TopicPartition
from broker_lite.server.broker_context import BrokerContext
from broker_lite.wire.tables import build, own_tag


@dataclass(slots=True)
class OffsetRows:
    """The offsets of a commit request that may be stored, and the error code of each requested
    partition."""

    message: Any
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    codes: dict[TopicPartition, int] = field(default_factory=dict)
    """The error code of each partition in ``offsets``, set once the offsets were stored."""
    refused: dict[tuple[TopicPartition, str], int] = field(default_factory=dict)
    """The error codes of refused offsets, by partition and the topic id that the client sent."""

    @classmethod
    def checked(
        cls, parts: BrokerContext, message: Any, check_access: Callable[[str], None]
    ) -> OffsetRows:
        """Divide the offsets in a commit request into those that may be stored and those that are
        refused.

        ``check_access`` raises LogbusError if the client may not commit offsets of a topic."""
        rows = cls(message)
        for topic in message.topics:
            topic_id = own_tag(topic) or NULL_TOPIC_ID
            for row in topic.partitions:
                key = TopicPartition(topic.name, row.partition_index)
                try:
                    check_access(topic.name)
                    rows.offsets[key] = _checked_offset(parts, key, row, topic_id)
                except LogbusError as error:
                    rows.refused[key, topic_id] = wire_code(error)
        return rows

    def stored(self, results: Mapping[TopicPartition, LogbusError | None]) -> None:
        """Set the error code of each partition from ``results``, the results of storing the
        offsets; None is success."""
        for key, failure in results.items():
            self.codes[key] = wire_code(failure)

    def failed(self, code: int) -> None:
        """Give all partitions in ``offsets`` the error code ``code``: the whole commit failed."""
        self.codes = dict.fromkeys(self.offsets, code)

    def answer(self, topic_kind: Any, partition_kind: Any) -> list[Any]:
        """Return the error codes of all requested partitions, grouped by topic, as messages of type
        ``topic_kind``."""
        return [
            build(
                topic_kind,
                name=topic.name,
                partitions=[
                    build(
                        partition_kind,
                        partition_index=row.partition_index,
                        error_code=self._code(topic, row),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in self.message.topics
        ]

    def _code(self, topic: Any, row: Any) -> int:
        key = TopicPartition(topic.name, row.partition_index)
        return self.refused.get((key, own_tag(topic) or NULL_TOPIC_ID)) or self.codes[key]


def _checked_offset(
    parts: BrokerContext, key: TopicPartition, row: Any, topic_id: str
) -> CommittedOffset:
    """Return one partition's offset from the request, with the topic's id and the commit time.

    ``topic_id`` is the id that the client sent, or NULL_TOPIC_ID. Raises UnknownTopicIdError,
    UnknownTopicOrPartitionError, InvalidRequestError or OffsetMetadataTooLargeError."""
    topic = parts.registry.snapshot.topics.get(key.topic)
    if topic is not None and topic_id not in (NULL_TOPIC_ID, topic.topic_id):
        raise UnknownTopicIdError(
            f"the topic of {key} has id {topic.topic_id}, not {topic_id}: it was recreated"
        )
    if topic is None or topic.partition(key.partition) is None:
        raise UnknownTopicOrPartitionError(f"partition {key} does not exist")
    if row.committed_offset < 0:
        raise InvalidRequestError(
            f"{key}: offset {row.committed_offset} is negative; commit 0 or more"
        )
    metadata = row.committed_metadata or ""
    limit = parts.config.offset_metadata_bytes_max
    if len(metadata.encode("utf-8")) > limit:
        raise OffsetMetadataTooLargeError(
            f"{key}: the metadata of the offset has more than {limit} bytes; commit less metadata"
        )
    return CommittedOffset(
        row.committed_offset,
        row.committed_leader_epoch,
        metadata,
        topic.topic_id,
        parts.clock.now_ms(),
    )
