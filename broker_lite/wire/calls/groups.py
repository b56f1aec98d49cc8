"""The client's requests FindCoordinator v4, OffsetCommit v9, OffsetFetch v8, ListGroups v5 and
DescribeGroups v6, about the state and the offsets of consumer groups. Field names are Kafka's.

In tagged fields (PROTOCOL.md), logbus adds the topic's id to Kafka's topic names, because offsets
of a deleted topic must never apply to a new topic of the same name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, NULL_TOPIC_ID
from broker_lite.wire.api import ApiKey
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
    node_id: int
    host: str
    port: int
    error_code: int
    error_message: str | None


class FindCoordinatorResponse(NamedTuple):
    throttle_time_ms: int
    coordinators: tuple[FoundCoordinator, ...]


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    """Find the coordinators of groups or of transactional ids."""

    API_KEY: ClassVar[int] = ApiKey.FIND_COORDINATOR
    VERSION: ClassVar[int] = 4

    coordinator_keys: tuple[str, ...]
    key_type: int = KEY_TYPE_GROUP

    def encode(self, writer: Writer) -> None:
        writer.i8(self.key_type)
        writer.array(self.coordinator_keys, writer.string)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> FindCoordinatorResponse:
        return reader.ended(FindCoordinatorResponse(reader.i32(), reader.array(_coordinator)))


def _coordinator(reader: Reader) -> FoundCoordinator:
    return reader.ended(
        FoundCoordinator(
            reader.string(),
            reader.i32(),
            reader.string(),
            reader.i32(),
            reader.i16(),
            reader.nullable_string(),
        )
    )


class OffsetToCommit(NamedTuple):
    """An offset to commit for one partition. ``committed_offset`` is the offset of the next record
    to read."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = NO_EPOCH
    committed_metadata: str | None = None


class OffsetCommitTopic(NamedTuple):
    """The offsets to commit in one topic. The broker refuses them if the topic ``topic_id`` was
    deleted; the null id disables this check."""

    name: str
    partitions: tuple[OffsetToCommit, ...]
    topic_id: str = NULL_TOPIC_ID


class CommittedPartition(NamedTuple):
    partition_index: int
    error_code: int


class CommittedTopic(NamedTuple):
    name: str
    partitions: tuple[CommittedPartition, ...]


class OffsetCommitResponse(NamedTuple):
    throttle_time_ms: int
    topics: tuple[CommittedTopic, ...]


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """Commit offsets of a group. A sender that is not a member gives generation -1 and an empty
    member id, and is accepted only while the group has no members."""

    API_KEY: ClassVar[int] = ApiKey.OFFSET_COMMIT
    VERSION: ClassVar[int] = 9

    group_id: str
    topics: tuple[OffsetCommitTopic, ...]
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def encode(self, writer: Writer) -> None:
        writer.string(self.group_id)
        writer.i32(self.generation_id_or_member_epoch)
        writer.string(self.member_id)
        writer.nullable_string(self.group_instance_id)
        put_committed_topics(writer, self.topics)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> OffsetCommitResponse:
        return reader.ended(OffsetCommitResponse(reader.i32(), take_committed_topics(reader)))


def put_committed_topics(writer: Writer, topics: tuple[OffsetCommitTopic, ...]) -> None:
    """Write the list of topics of an OffsetCommit or TxnOffsetCommit request."""

    def put_partition(row: OffsetToCommit) -> None:
        writer.i32(row.partition_index)
        writer.i64(row.committed_offset)
        writer.i32(row.committed_leader_epoch)
        writer.nullable_string(row.committed_metadata)
        writer.tag_end()

    def put_topic(row: OffsetCommitTopic) -> None:
        writer.string(row.name)
        writer.array(row.partitions, put_partition)
        if row.topic_id == NULL_TOPIC_ID:
            writer.tag_end()
        else:
            put_tag(writer, TAG_COMMIT_TOPIC_ID, uuid_bytes(row.topic_id))

    writer.array(topics, put_topic)


def take_committed_topics(reader: Reader) -> tuple[CommittedTopic, ...]:
    """Read the list of topics of an answer to OffsetCommit or TxnOffsetCommit."""
    return reader.array(_committed_topic)


def _committed_topic(reader: Reader) -> CommittedTopic:
    return reader.ended(CommittedTopic(reader.string(), reader.array(_committed_partition)))


def _committed_partition(reader: Reader) -> CommittedPartition:
    return reader.ended(CommittedPartition(reader.i32(), reader.i16()))


class OffsetFetchTopic(NamedTuple):
    name: str
    partition_indexes: tuple[int, ...]


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

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str | None
    error_code: int
    topic_id: str = NULL_TOPIC_ID
    commit_ms: int = NO_TIMESTAMP


class FetchedOffsetsTopic(NamedTuple):
    name: str
    partitions: tuple[FetchedOffset, ...]


class FetchedOffsetsGroup(NamedTuple):
    group_id: str
    topics: tuple[FetchedOffsetsTopic, ...]
    error_code: int


class OffsetFetchResponse(NamedTuple):
    throttle_time_ms: int
    groups: tuple[FetchedOffsetsGroup, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """Request the committed offsets of one or several groups."""

    API_KEY: ClassVar[int] = ApiKey.OFFSET_FETCH
    VERSION: ClassVar[int] = 8

    groups: tuple[OffsetFetchGroup, ...]
    require_stable: bool = False

    def encode(self, writer: Writer) -> None:
        def put_topic(row: OffsetFetchTopic) -> None:
            writer.string(row.name)
            writer.array(row.partition_indexes, writer.i32)
            writer.tag_end()

        def put_group(row: OffsetFetchGroup) -> None:
            writer.string(row.group_id)
            writer.nullable_array(row.topics, put_topic)
            writer.tag_end()

        writer.array(self.groups, put_group)
        writer.boolean(self.require_stable)
        put_tag(writer, TAG_FETCH_ORIGIN, _ORIGIN_ASKED)

    @staticmethod
    def decode(reader: Reader) -> OffsetFetchResponse:
        return reader.ended(OffsetFetchResponse(reader.i32(), reader.array(_fetched_group)))


def _fetched_group(reader: Reader) -> FetchedOffsetsGroup:
    return reader.ended(
        FetchedOffsetsGroup(reader.string(), reader.array(_fetched_topic), reader.i16())
    )


def _fetched_topic(reader: Reader) -> FetchedOffsetsTopic:
    return reader.ended(FetchedOffsetsTopic(reader.string(), reader.array(_fetched_offset)))


def _fetched_offset(reader: Reader) -> FetchedOffset:
    row = FetchedOffset(
        reader.i32(), reader.i64(), reader.i32(), reader.nullable_string(), reader.i16()
    )
    origin = reader.tags().get(TAG_FETCH_ORIGIN)
    if origin is None:
        return row
    inner = Reader(origin)
    return row._replace(topic_id=inner.uuid(), commit_ms=inner.i64())


def encode_offset_fetch(response: OffsetFetchResponse, writer: Writer) -> None:
    """Write the body of an answer to OffsetFetch v8, on the broker's side, with the topic ids and
    commit times that a client of logbus requested."""

    def put_offset(row: FetchedOffset) -> None:
        writer.i32(row.partition_index)
        writer.i64(row.committed_offset)
        writer.i32(row.committed_leader_epoch)
        writer.nullable_string(row.metadata)
        writer.i16(row.error_code)
        if row.committed_offset == NO_OFFSET and row.topic_id == NULL_TOPIC_ID:
            writer.tag_end()
        else:
            origin = uuid_bytes(row.topic_id) + I64.pack(row.commit_ms)
            put_tag(writer, TAG_FETCH_ORIGIN, origin)

    def put_topic(row: FetchedOffsetsTopic) -> None:
        writer.string(row.name)
        writer.array(row.partitions, put_offset)
        writer.tag_end()

    def put_group(row: FetchedOffsetsGroup) -> None:
        writer.string(row.group_id)
        writer.array(row.topics, put_topic)
        writer.i16(row.error_code)
        writer.tag_end()

    writer.i32(response.throttle_time_ms)
    writer.array(response.groups, put_group)
    writer.tag_end()


class ListedGroup(NamedTuple):
    """A group in the answer to ListGroups."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class ListGroupsResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    """List the groups whose coordinator is the receiving broker. An empty filter selects all
    groups."""

    API_KEY: ClassVar[int] = ApiKey.LIST_GROUPS
    VERSION: ClassVar[int] = 5

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()

    def encode(self, writer: Writer) -> None:
        writer.array(self.states_filter, writer.string)
        writer.array(self.types_filter, writer.string)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> ListGroupsResponse:
        return reader.ended(
            ListGroupsResponse(reader.i32(), reader.i16(), reader.array(_listed_group))
        )


def _listed_group(reader: Reader) -> ListedGroup:
    return reader.ended(
        ListedGroup(reader.string(), reader.string(), reader.string(), reader.string())
    )


@dataclass(frozen=True, slots=True)
class ListUntypedGroupsRequest:
    """ListGroups v4, for brokers before Kafka 3.8. The answer has no types of groups, so
    ``group_type`` is empty."""

    API_KEY: ClassVar[int] = ApiKey.LIST_GROUPS
    VERSION: ClassVar[int] = 4

    states_filter: tuple[str, ...] = ()

    def encode(self, writer: Writer) -> None:
        writer.array(self.states_filter, writer.string)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> ListGroupsResponse:
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
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedGroupMember, ...]


class DescribeGroupsResponse(NamedTuple):
    throttle_time_ms: int
    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    """Request the state and the members of groups."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_GROUPS
    VERSION: ClassVar[int] = 6

    groups: tuple[str, ...]

    def encode(self, writer: Writer) -> None:
        writer.array(self.groups, writer.string)
        writer.boolean(False)  # include_authorized_operations
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> DescribeGroupsResponse:
        return reader.ended(DescribeGroupsResponse(reader.i32(), reader.array(_described_group)))


def _described_group(reader: Reader) -> DescribedGroup:
    row = DescribedGroup(
        reader.i16(),
        reader.nullable_string(),
        reader.string(),
        reader.string(),
        reader.string(),
        reader.string(),
        reader.array(_described_member),
    )
    reader.i32()  # authorized_operations
    reader.skip_tags()
    return row


def _described_member(reader: Reader) -> DescribedGroupMember:
    return reader.ended(
        DescribedGroupMember(
            reader.string(),
            reader.nullable_string(),
            reader.string(),
            reader.string(),
            bytes(reader.view() or b""),
            bytes(reader.view() or b""),
        )
    )
