"""The client's requests CreateTopics v7, DeleteTopics v6, CreatePartitions v3 and DeleteRecords v2.

Field names are Kafka's. A topic id is a text of 22 characters. The client sends DeleteRecords to
the leader of each partition, and the other requests to the controller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NULL_TOPIC_ID
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer

DEFAULT_COUNT = -1
"""A new topic's partition count or replication factor that stands for the broker's default."""


class ReplicaAssignment(NamedTuple):
    """The brokers that have a replica of one partition, the preferred leader first."""

    partition_index: int
    broker_ids: tuple[int, ...]


class CreatableTopic(NamedTuple):
    """A topic to create. If ``assignments`` chooses the brokers of each partition,
    ``num_partitions`` and ``replication_factor`` must be -1."""

    name: str
    num_partitions: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class CreatedConfig(NamedTuple):
    """A setting of a created topic."""

    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool


class CreatedTopic(NamedTuple):
    """The result of creating one topic."""

    name: str
    topic_id: str
    error_code: int
    error_message: str | None
    num_partitions: int
    replication_factor: int
    configs: tuple[CreatedConfig, ...]


class CreateTopicsResponse(NamedTuple):
    throttle_time_ms: int
    topics: tuple[CreatedTopic, ...]


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    """Create topics. With ``validate_only``, the controller only checks whether it could create
    them."""

    API_KEY: ClassVar[int] = ApiKey.CREATE_TOPICS
    VERSION: ClassVar[int] = 7

    topics: tuple[CreatableTopic, ...]
    timeout_ms: int = 60_000
    validate_only: bool = False

    def encode(self, writer: Writer) -> None:
        def put_assignment(row: ReplicaAssignment) -> None:
            writer.i32(row.partition_index)
            writer.array(row.broker_ids, writer.i32)
            writer.tag_end()

        def put_config(row: tuple[str, str | None]) -> None:
            writer.string(row[0])
            writer.nullable_string(row[1])
            writer.tag_end()

        def put_topic(row: CreatableTopic) -> None:
            writer.string(row.name)
            writer.i32(row.num_partitions)
            writer.i16(row.replication_factor)
            writer.array(row.assignments, put_assignment)
            writer.array(row.configs, put_config)
            writer.tag_end()

        writer.array(self.topics, put_topic)
        writer.i32(self.timeout_ms)
        writer.boolean(self.validate_only)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> CreateTopicsResponse:
        return reader.ended(CreateTopicsResponse(reader.i32(), reader.array(_created_topic)))


def _created_topic(reader: Reader) -> CreatedTopic:
    return reader.ended(
        CreatedTopic(
            reader.string(),
            reader.uuid(),
            reader.i16(),
            reader.nullable_string(),
            reader.i32(),
            reader.i16(),
            reader.nullable_array(_created_config) or (),
        )
    )


def _created_config(reader: Reader) -> CreatedConfig:
    return reader.ended(
        CreatedConfig(
            reader.string(),
            reader.nullable_string(),
            reader.boolean(),
            reader.i8(),
            reader.boolean(),
        )
    )


class DeletedTopic(NamedTuple):
    """The result of deleting one topic. ``name`` is empty if the request gave an unknown topic
    id."""

    name: str
    topic_id: str
    error_code: int
    error_message: str | None


class DeleteTopicsResponse(NamedTuple):
    throttle_time_ms: int
    responses: tuple[DeletedTopic, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    """Delete topics, each by name or by id."""

    API_KEY: ClassVar[int] = ApiKey.DELETE_TOPICS
    VERSION: ClassVar[int] = 6

    names: tuple[str, ...] = ()
    topic_ids: tuple[str, ...] = ()
    timeout_ms: int = 60_000

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

    @staticmethod
    def decode(reader: Reader) -> DeleteTopicsResponse:
        return reader.ended(DeleteTopicsResponse(reader.i32(), reader.array(_deleted_topic)))


def _deleted_topic(reader: Reader) -> DeletedTopic:
    return reader.ended(
        DeletedTopic(
            reader.nullable_string() or "", reader.uuid(), reader.i16(), reader.nullable_string()
        )
    )


@dataclass(frozen=True, slots=True)
class PartitionsToCreate:
    """A topic that gets more partitions. ``count`` is the new total number of partitions.
    ``assignments`` are the brokers of each added partition; with None, the controller assigns
    brokers."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitionsResult(NamedTuple):
    """The result of adding partitions to one topic."""

    name: str
    error_code: int
    error_message: str | None


class CreatePartitionsResponse(NamedTuple):
    throttle_time_ms: int
    results: tuple[CreatePartitionsResult, ...]


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    """Add partitions to topics."""

    API_KEY: ClassVar[int] = ApiKey.CREATE_PARTITIONS
    VERSION: ClassVar[int] = 3

    topics: tuple[PartitionsToCreate, ...]
    timeout_ms: int = 60_000
    validate_only: bool = False

    def encode(self, writer: Writer) -> None:
        def put_assignment(broker_ids: tuple[int, ...]) -> None:
            writer.array(broker_ids, writer.i32)
            writer.tag_end()

        def put_topic(row: PartitionsToCreate) -> None:
            writer.string(row.name)
            writer.i32(row.count)
            writer.nullable_array(row.assignments, put_assignment)
            writer.tag_end()

        writer.array(self.topics, put_topic)
        writer.i32(self.timeout_ms)
        writer.boolean(self.validate_only)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> CreatePartitionsResponse:
        return reader.ended(
            CreatePartitionsResponse(reader.i32(), reader.array(_partitions_result))
        )


def _partitions_result(reader: Reader) -> CreatePartitionsResult:
    return reader.ended(
        CreatePartitionsResult(reader.string(), reader.i16(), reader.nullable_string())
    )


class DeleteRecordsPartition(NamedTuple):
    """A partition whose records before ``offset`` are deleted. -1 stands for the high watermark."""

    partition_index: int
    offset: int


class DeleteRecordsTopic(NamedTuple):
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


class DeletedRecordsPartition(NamedTuple):
    """The result of deleting records of one partition. ``low_watermark`` is the first offset that
    remains."""

    partition_index: int
    low_watermark: int
    error_code: int


class DeletedRecordsTopic(NamedTuple):
    name: str
    partitions: tuple[DeletedRecordsPartition, ...]


class DeleteRecordsResponse(NamedTuple):
    throttle_time_ms: int
    topics: tuple[DeletedRecordsTopic, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    """Delete the oldest records of partitions that the receiving broker leads."""

    API_KEY: ClassVar[int] = ApiKey.DELETE_RECORDS
    VERSION: ClassVar[int] = 2

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: int = 60_000

    def encode(self, writer: Writer) -> None:
        def put_partition(row: DeleteRecordsPartition) -> None:
            writer.i32(row.partition_index)
            writer.i64(row.offset)
            writer.tag_end()

        def put_topic(row: DeleteRecordsTopic) -> None:
            writer.string(row.name)
            writer.array(row.partitions, put_partition)
            writer.tag_end()

        writer.array(self.topics, put_topic)
        writer.i32(self.timeout_ms)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> DeleteRecordsResponse:
        return reader.ended(
            DeleteRecordsResponse(reader.i32(), reader.array(_deleted_records_topic))
        )


def _deleted_records_topic(reader: Reader) -> DeletedRecordsTopic:
    return reader.ended(
        DeletedRecordsTopic(reader.string(), reader.array(_deleted_records_partition))
    )


def _deleted_records_partition(reader: Reader) -> DeletedRecordsPartition:
    return reader.ended(DeletedRecordsPartition(reader.i32(), reader.i64(), reader.i16()))
