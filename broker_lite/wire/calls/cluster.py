"""The client's requests ApiVersions v3 and Metadata v12. They return API versions, brokers, topics
and leaders.

Field names are Kafka's. A topic id is a text of 22 characters. Decoding raises ProtocolError for a
malformed answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.errors import ProtocolError
from broker_lite.model import NULL_TOPIC_ID
from broker_lite.wire.api import NO_OPERATIONS, ApiKey
from broker_lite.wire.layout import DeclaredCall, Int16, Int32, MaybeName, TopicId, codec_of
from broker_lite.wire.primitives import Reader, Writer


class VersionRange(NamedTuple):
    """The versions of one API that a broker serves."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


class FeatureRange(NamedTuple):
    """The levels of one feature of the cluster: those that a broker supports, or those that are
    finalized, which means that all brokers use them."""

    name: str
    min_version: Int16
    max_version: Int16


class ApiVersionsResponse(NamedTuple):
    """The answer to ApiVersions. ``finalized_features_epoch`` is -1 if the broker did not send
    it."""

    error_code: int
    api_keys: tuple[VersionRange, ...]
    throttle_time_ms: int
    supported_features: tuple[FeatureRange, ...]
    finalized_features_epoch: int
    finalized_features: tuple[FeatureRange, ...]


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest(DeclaredCall[ApiVersionsResponse]):
    """Request the APIs and versions that a broker serves. This is a connection's first request."""

    API_KEY: ClassVar[int] = ApiKey.API_VERSIONS
    VERSION: ClassVar[int] = 3

    client_software_name: str
    client_software_version: str

    @classmethod
    def decode(cls, reader: Reader) -> ApiVersionsResponse:
        error_code = reader.i16()
        if error_code:
            # A broker that does not support version 3 of ApiVersions answers in version 0.
            rows = tuple(
                [
                    VersionRange(reader.i16(), reader.i16(), reader.i16())
                    for _ in range(reader.classic_count())
                ]
            )
            return ApiVersionsResponse(error_code, rows, 0, (), -1, ())
        api_keys = reader.array(codec_of(VersionRange).take)
        throttle_time_ms = reader.i32()
        tags = reader.tags()
        return ApiVersionsResponse(
            error_code,
            api_keys,
            throttle_time_ms,
            Reader(tags[0]).array(codec_of(FeatureRange).take) if 0 in tags else (),
            Reader(tags[1]).i64() if 1 in tags else -1,
            Reader(tags[2]).array(_finalized_feature) if 2 in tags else (),
        )


def _finalized_feature(reader: Reader) -> FeatureRange:
    name, max_version, min_version = reader.string(), reader.i16(), reader.i16()
    reader.skip_tags()
    return FeatureRange(name, min_version, max_version)


class MetadataBroker(NamedTuple):
    """A live broker in the cluster's metadata."""

    node_id: Int32
    host: str
    port: Int32
    rack: str | None


class MetadataPartition(NamedTuple):
    """A partition in the cluster's metadata. ``leader_id`` is -1 without a leader."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: tuple[Int32, ...]


class MetadataTopic(NamedTuple):
    """A topic in the cluster's metadata. ``name`` is empty if the request gave an unknown topic
    id."""

    error_code: Int16
    name: MaybeName
    topic_id: TopicId
    is_internal: bool
    partitions: tuple[MetadataPartition, ...]
    authorized_operations: Int32 = NO_OPERATIONS

    def with_tags(self, reader: Reader) -> MetadataTopic:
        indexes = sorted(partition.partition_index for partition in self.partitions)
        if indexes != list(range(len(indexes))):
            raise ProtocolError(
                f"the response lists {len(indexes)} partitions of topic {self.name!r}, which are "
                f"not numbered from 0 to {len(indexes) - 1}"
            )
        return reader.ended(self)


class MetadataResponse(NamedTuple):
    """The answer to Metadata: the cluster's metadata as one broker knows them."""

    throttle_time_ms: Int32
    brokers: tuple[MetadataBroker, ...]
    cluster_id: str | None
    controller_id: Int32
    topics: tuple[MetadataTopic, ...]


@dataclass(frozen=True, slots=True)
class MetadataRequest(DeclaredCall[MetadataResponse]):
    """Request the cluster's metadata: its brokers, and topics with their partitions.

    ``topics`` are names, or None for all topics. ``topic_ids`` requests further topics by id."""

    API_KEY: ClassVar[int] = ApiKey.METADATA
    VERSION: ClassVar[int] = 12

    topics: tuple[str, ...] | None
    topic_ids: tuple[str, ...] = ()

    def encode(self, writer: Writer) -> None:
        if self.topics is None:
            writer.uvarint(0)
        else:
            writer.uvarint(len(self.topics) + len(self.topic_ids) + 1)
            for name in self.topics:
                writer.uuid(NULL_TOPIC_ID)
                writer.string(name)
                writer.tag_end()
            for topic_id in self.topic_ids:
                writer.uuid(topic_id)
                writer.nullable_string(None)
                writer.tag_end()
        writer.boolean(False)  # allow_auto_topic_creation
        writer.boolean(False)  # include_topic_authorized_operations
        writer.tag_end()
