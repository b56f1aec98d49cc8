"""The client's requests DeleteGroups v2 and OffsetDelete v0, which delete consumer groups or some
of their offsets.

The client sends both requests to the group's coordinator. Field names are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int16, Int32
from broker_lite.wire.primitives import Reader, Writer


class DeletedGroup(NamedTuple):
    group_id: str
    error_code: Int16


class DeleteGroupsResponse(NamedTuple):
    throttle_time_ms: Int32
    results: tuple[DeletedGroup, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest(DeclaredCall[DeleteGroupsResponse]):
    """Delete groups with all their committed offsets."""

    API_KEY: ClassVar[int] = ApiKey.DELETE_GROUPS
    VERSION: ClassVar[int] = 2

    groups_names: tuple[str, ...]


class OffsetDeleteTopic(NamedTuple):
    name: str
    partitions: tuple[int, ...]


class DeletedPartition(NamedTuple):
    partition_index: Int32
    error_code: Int16


class OffsetDeletedTopic(NamedTuple):
    name: str
    partitions: tuple[DeletedPartition, ...]


class OffsetDeleteResponse(NamedTuple):
    """The answer to OffsetDelete. If ``error_code``, an error of the whole group, is not 0,
    ``topics`` is empty."""

    error_code: int
    throttle_time_ms: int
    topics: tuple[OffsetDeletedTopic, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    """Delete the offsets that a group has committed for some partitions. The request has the
    classic encoding, because version 0 is not flexible."""

    API_KEY: ClassVar[int] = ApiKey.OFFSET_DELETE
    VERSION: ClassVar[int] = 0

    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]

    def encode(self, writer: Writer) -> None:
        writer.classic_string(self.group_id)
        writer.i32(len(self.topics))
        for topic in self.topics:
            writer.classic_string(topic.name)
            writer.i32(len(topic.partitions))
            for partition in topic.partitions:
                writer.i32(partition)

    @staticmethod
    def decode(reader: Reader) -> OffsetDeleteResponse:
        code, throttle_ms = reader.i16(), reader.i32()
        topics = tuple(_deleted_topic(reader) for _ in range(reader.classic_count()))
        return OffsetDeleteResponse(code, throttle_ms, topics)


def _deleted_topic(reader: Reader) -> OffsetDeletedTopic:
    name, count = reader.classic_string(), reader.classic_count()
    rows = tuple(DeletedPartition(reader.i32(), reader.i16()) for _ in range(count))
    return OffsetDeletedTopic(name, rows)
