"""The client's requests CreateTopics v7, DeleteTopics v6, CreatePartitions v3 and DeleteRecords v2.

Field names are Kafka's. A topic id is a text of 22 characters. The client sends DeleteRecords to
the leader of each partition, and the other requests to the controller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NULL_TOPIC_ID
from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int8, Int16, Int32, Int64, MaybeName, TopicId
from broker_lite.wire.primitives import Writer

DEFAULT_COUNT = -1
"""A new topic's partition count or replication factor that stands for the broker's default."""


class ReplicaAssignment(NamedTuple):
    """The brokers that have a replica of one partition, the preferred leader first."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


class CreatableTopic(NamedTuple):
    """A topic to create. If ``assignments`` chooses the brokers of each partition,
    ``num_partitions`` and ``replication_factor`` must be -1."""

    name: str
    num_partitions: Int32 = DEFAULT_COUNT
    replication_factor: Int16 = DEFAULT_COUNT
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class CreatedConfig(NamedTuple):
    """A setting of a created topic."""

    name: str
    value: str | None
    read_only: bool
    config_source: Int8
    is_sensitive: bool


class CreatedTopic(NamedTuple):
    """The result of creating one topic."""

    name: str
    topic_id: TopicId
    error_code: Int16
    error_message: str | None
    num_partitions: Int32
    replication_factor: Int16
    configs: tuple[CreatedConfig, ...] | None


class CreateTopicsResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[CreatedTopic, ...]


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(DeclaredCall[CreateTopicsResponse]):
    """Create topics. With ``validate_only``, the controller only checks whether it could create
    them."""

    API_KEY: ClassVar[int] = ApiKey.CREATE_TOPICS
    VERSION: ClassVar[int] = 7

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 60_000
    validate_only: bool = False


class DeletedTopic(NamedTuple):
    """The result of deleting one topic. ``name`` is empty if the request gave an unknown topic
    id."""

    name: MaybeName
    topic_id: TopicId
    error_code: Int16
    error_message: str | None


class DeleteTopicsResponse(NamedTuple):
    throttle_time_ms: Int32
    responses: tuple[DeletedTopic, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(DeclaredCall[DeleteTopicsResponse]):
    """Delete topics, each by name or by id."""

    API_KEY: ClassVar[int] = ApiKey.DELETE_TOPICS
    VERSION: ClassVar[int] = 6

    names: tuple[str, ...] = ()
    topic_ids: tuple[str, ...] = ()
    timeout_ms: Int32 = 60_000

    def encode(self, writer: Writer) -> None:
        writer.uvarint(len(self.names) + len(self.topic_ids) + 1)
        for name in self.names:
            writer.string(name)
            writer.uuid(NULL_TOPIC_ID)
            writer.tag_end()
        for topic_id in self.topic_ids:
            writer.nullable_string(None)
            writer.uuid(topic_id)
            writer.tag_end()
        writer.i32(self.timeout_ms)
        writer.tag_end()


class NewPartition(NamedTuple):
    """The brokers that get a replica of an added partition, the preferred leader first."""

    broker_ids: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class PartitionsToCreate:
    """A topic that gets more partitions. ``count`` is the new total number of partitions.
    ``assignments`` has the brokers of each added partition; with None, the controller assigns
    brokers."""

    name: str
    count: Int32
    assignments: tuple[NewPartition, ...] | None = None


class CreatePartitionsResult(NamedTuple):
    """The result of adding partitions to one topic."""

    name: str
    error_code: Int16
    error_message: str | None


class CreatePartitionsResponse(NamedTuple):
    throttle_time_ms: Int32
    results: tuple[CreatePartitionsResult, ...]


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(DeclaredCall[CreatePartitionsResponse]):
    """Add partitions to topics."""

    API_KEY: ClassVar[int] = ApiKey.CREATE_PARTITIONS
    VERSION: ClassVar[int] = 3

    topics: tuple[PartitionsToCreate, ...]
    timeout_ms: Int32 = 60_000
    validate_only: bool = False


class DeleteRecordsPartition(NamedTuple):
    """A partition whose records before ``offset`` are deleted. -1 stands for the high watermark."""

    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(NamedTuple):
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


class DeletedRecordsPartition(NamedTuple):
    """The result of deleting records of one partition. ``low_watermark`` is the first offset that
    remains."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


class DeletedRecordsTopic(NamedTuple):
    name: str
    partitions: tuple[DeletedRecordsPartition, ...]


class DeleteRecordsResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[DeletedRecordsTopic, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest(DeclaredCall[DeleteRecordsResponse]):
    """Delete the oldest records of partitions that the receiving broker leads."""

    API_KEY: ClassVar[int] = ApiKey.DELETE_RECORDS
    VERSION: ClassVar[int] = 2

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32 = 60_000
