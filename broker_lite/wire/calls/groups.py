"""The client's requests FindCoordinator v4, OffsetCommit v9, OffsetFetch v8, ListGroups v5 and
DescribeGroups v6, about the state and the offsets of consumer groups. Field names are Kafka's.

In tagged fields (PROTOCOL.md), logbus adds the topic's id to Kafka's topic names, because offsets
of a deleted topic must never apply to a new topic of the same name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, NULL_TOPIC_ID
from broker_lite.wire.api import NO_OPERATIONS, ApiKey
from broker_lite.wire.layout import DeclaredCall, Int8, Int16, Int32, Int64, InTag
from broker_lite.wire.primitives import I64, Reader, Writer, put_tag, uuid_bytes

KEY_TYPE_GROUP = 0
KEY_TYPE_TRANSACTION = 1

TAG_COMMIT_TOPIC_ID = 10000
"""Number of a tagged field in each topic of an OffsetCommit or TxnOffsetCommit request. The field
has the id of the topic to which the offsets belong."""
TAG_FETCH_ORIGIN = 10000
"""Number of a tagged field of OffsetFetch. In a request it asks for topic ids and commit times. In
a partition of the answer it has the topic id and the commit time."""
_ORIGIN_ASKED = b"\x01"


class FoundCoordinator(NamedTuple):
    """The coordinator of ``key``, a group or a transactional id."""

    key: str
    node_id: Int32
    host: str
    port: Int32
    error_code: Int16
    error_message: str | None


class FindCoordinatorResponse(NamedTuple):
    throttle_time_ms: Int32
    coordinators: tuple[FoundCoordinator, ...]


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(DeclaredCall[FindCoordinatorResponse]):
    """Find the coordinators of groups or of transactional ids."""

    API_KEY: ClassVar[int] = ApiKey.FIND_COORDINATOR
    VERSION: ClassVar[int] = 4

    key_type: Int8 = field(default=KEY_TYPE_GROUP, kw_only=True)
    coordinator_keys: tuple[str, ...]


class OffsetToCommit(NamedTuple):
    """An offset to commit for one partition. ``committed_offset`` is the offset of the next record
    to read."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = NO_EPOCH
    committed_metadata: str | None = None


class OffsetCommitTopic(NamedTuple):
    """The offsets to commit in one topic. The broker refuses them if the topic ``topic_id`` was
    deleted; the null id disables this check."""

    name: str
    partitions: tuple[OffsetToCommit, ...]
    topic_id: InTag[str] = NULL_TOPIC_ID

    def put_tags(self, writer: Writer) -> None:
        if self.topic_id == NULL_TOPIC_ID:
            writer.tag_end()
        else:
            put_tag(writer, TAG_COMMIT_TOPIC_ID, uuid_bytes(self.topic_id))


class CommittedPartition(NamedTuple):
    partition_index: Int32
    error_code: Int16


class CommittedTopic(NamedTuple):
    name: str
    partitions: tuple[CommittedPartition, ...]


class OffsetCommitResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[CommittedTopic, ...]


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest(DeclaredCall[OffsetCommitResponse]):
    """Commit offsets of a group. A sender that is not a member gives generation -1 and an empty
    member id, and is accepted only while the group has no members."""

    API_KEY: ClassVar[int] = ApiKey.OFFSET_COMMIT
    VERSION: ClassVar[int] = 9

    group_id: str
    generation_id_or_member_epoch: Int32 = field(default=-1, kw_only=True)
    member_id: str = field(default="", kw_only=True)
    group_instance_id: str | None = field(default=None, kw_only=True)
    topics: tuple[OffsetCommitTopic, ...]


class OffsetFetchTopic(NamedTuple):
    name: str
    partition_indexes: tuple[Int32, ...]


class OffsetFetchGroup(NamedTuple):
    """A group whose offsets are requested: those of ``topics``, or all if it is None."""

    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None = None


class FetchedOffset(NamedTuple):
    """The committed offset of one partition.

    ``committed_offset`` is -1 if the group has no offset for the partition. ``commit_ms`` is the
    commit time by the broker's clock. Kafka's brokers send neither ``topic_id`` nor ``commit_ms``.
    If the offset is -1 but ``topic_id`` is set, the group's offset belongs to a deleted topic of
    the same name, which had that id."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32
    metadata: str | None
    error_code: Int16
    topic_id: InTag[str] = NULL_TOPIC_ID
    commit_ms: InTag[int] = NO_TIMESTAMP

    def put_tags(self, writer: Writer) -> None:
        if self.committed_offset == NO_OFFSET and self.topic_id == NULL_TOPIC_ID:
            writer.tag_end()
        else:
            origin = uuid_bytes(self.topic_id) + I64.pack(self.commit_ms)
            put_tag(writer, TAG_FETCH_ORIGIN, origin)

    def with_tags(self, reader: Reader) -> FetchedOffset:
        origin = reader.tags().get(TAG_FETCH_ORIGIN)
        if origin is None:
            return self
        inner = Reader(origin)
        return self._replace(topic_id=inner.uuid(), commit_ms=inner.i64())


class FetchedOffsetsTopic(NamedTuple):
    name: str
    partitions: tuple[FetchedOffset, ...]


class FetchedOffsetsGroup(NamedTuple):
    group_id: str
    topics: tuple[FetchedOffsetsTopic, ...]
    error_code: Int16


class OffsetFetchResponse(NamedTuple):
    throttle_time_ms: Int32
    groups: tuple[FetchedOffsetsGroup, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(DeclaredCall[OffsetFetchResponse]):
    """Request the committed offsets of one or several groups."""

    API_KEY: ClassVar[int] = ApiKey.OFFSET_FETCH
    VERSION: ClassVar[int] = 8

    groups: tuple[OffsetFetchGroup, ...]
    require_stable: bool = False

    def put_tags(self, writer: Writer) -> None:
        put_tag(writer, TAG_FETCH_ORIGIN, _ORIGIN_ASKED)


class ListedGroup(NamedTuple):
    """A group in the answer to ListGroups."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class ListGroupsResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest(DeclaredCall[ListGroupsResponse]):
    """List the groups whose coordinator is the receiving broker. An empty filter selects all
    groups."""

    API_KEY: ClassVar[int] = ApiKey.LIST_GROUPS
    VERSION: ClassVar[int] = 5

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListUntypedGroupsRequest(DeclaredCall[ListGroupsResponse]):
    """ListGroups v4, for brokers before Kafka 3.8. The answer has no types of groups, so
    ``group_type`` is empty."""

    API_KEY: ClassVar[int] = ApiKey.LIST_GROUPS
    VERSION: ClassVar[int] = 4

    states_filter: tuple[str, ...] = ()

    @classmethod
    def decode(cls, reader: Reader) -> ListGroupsResponse:
        return reader.ended(
            ListGroupsResponse(reader.i32(), reader.i16(), reader.array(_untyped_group))
        )


def _untyped_group(reader: Reader) -> ListedGroup:
    return reader.ended(ListedGroup(reader.string(), reader.string(), reader.string(), ""))


class DescribedGroupMember(NamedTuple):
    """A member of a group. ``member_metadata`` is its encoded subscription and
    ``member_assignment`` its encoded assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribedGroup(NamedTuple):
    error_code: Int16
    error_message: str | None
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedGroupMember, ...]
    authorized_operations: Int32 = NO_OPERATIONS


class DescribeGroupsResponse(NamedTuple):
    throttle_time_ms: Int32
    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest(DeclaredCall[DescribeGroupsResponse]):
    """Request the state and the members of groups."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_GROUPS
    VERSION: ClassVar[int] = 6

    groups: tuple[str, ...]
    include_authorized_operations: bool = False
