"""The client's requests JoinGroup v9, SyncGroup v5, Heartbeat v4 and LeaveGroup v5, which a
consumer sends as a member of a consumer group to the group's coordinator, a broker.

In a rebalance, all members send JoinGroup. The coordinator chooses one member as the group's
leader. The leader decides which partitions each member reads (its assignment), and every member
receives its own with SyncGroup. Field names are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer, uvarint_bytes

NO_GENERATION = -1
CONSUMER = "consumer"
"""The protocol type of consumers."""


class JoinProtocol(NamedTuple):
    """An assignment strategy (an algorithm for the leader) that the member supports, and the
    member's subscription as this strategy needs it."""

    name: str
    metadata: bytes


class JoinedMember(NamedTuple):
    """A member of the group, as JoinGroup reports it to the group leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResponse(NamedTuple):
    """The answer to JoinGroup. ``leader`` is the member id of the group's leader, which alone
    receives ``members``."""

    throttle_time_ms: int
    error_code: int
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    """Join a group. The coordinator answers when all members have sent this request, or after the
    rebalance timeout."""

    API_KEY: ClassVar[int] = ApiKey.JOIN_GROUP
    VERSION: ClassVar[int] = 9

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: str | None
    protocols: tuple[JoinProtocol, ...]
    reason: str | None = None

    def encode(self, writer: Writer) -> None:
        def put_protocol(row: JoinProtocol) -> None:
            writer.string(row.name)
            _put_bytes(writer, row.metadata)
            writer.tag_end()

        writer.string(self.group_id)
        writer.i32(self.session_timeout_ms)
        writer.i32(self.rebalance_timeout_ms)
        writer.string(self.member_id)
        writer.nullable_string(self.group_instance_id)
        writer.string(CONSUMER)
        writer.array(self.protocols, put_protocol)
        writer.nullable_string(self.reason)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> JoinGroupResponse:
        return reader.ended(
            JoinGroupResponse(
                reader.i32(),
                reader.i16(),
                reader.i32(),
                reader.nullable_string(),
                reader.nullable_string(),
                reader.string(),
                reader.boolean(),
                reader.string(),
                reader.array(_joined_member),
            )
        )


def _joined_member(reader: Reader) -> JoinedMember:
    return reader.ended(
        JoinedMember(reader.string(), reader.nullable_string(), bytes(reader.view() or b""))
    )


class Assigned(NamedTuple):
    """The assignment that the leader gives to one member."""

    member_id: str
    assignment: bytes


class SyncGroupResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    """Request the assignment of this member. The group's leader also sends the ``assignments`` of
    all members; no member gets an answer before that."""

    API_KEY: ClassVar[int] = ApiKey.SYNC_GROUP
    VERSION: ClassVar[int] = 5

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_name: str | None
    assignments: tuple[Assigned, ...] = ()

    def encode(self, writer: Writer) -> None:
        def put_assigned(row: Assigned) -> None:
            writer.string(row.member_id)
            _put_bytes(writer, row.assignment)
            writer.tag_end()

        writer.string(self.group_id)
        writer.i32(self.generation_id)
        writer.string(self.member_id)
        writer.nullable_string(self.group_instance_id)
        writer.nullable_string(CONSUMER)
        writer.nullable_string(self.protocol_name)
        writer.array(self.assignments, put_assigned)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> SyncGroupResponse:
        return reader.ended(
            SyncGroupResponse(
                reader.i32(),
                reader.i16(),
                reader.nullable_string(),
                reader.nullable_string(),
                bytes(reader.view() or b""),
            )
        )


class HeartbeatResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """Tell the coordinator that the member is alive. The answer's error code tells the member if it
    must join again."""

    API_KEY: ClassVar[int] = ApiKey.HEARTBEAT
    VERSION: ClassVar[int] = 4

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None

    def encode(self, writer: Writer) -> None:
        writer.string(self.group_id)
        writer.i32(self.generation_id)
        writer.string(self.member_id)
        writer.nullable_string(self.group_instance_id)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> HeartbeatResponse:
        return reader.ended(HeartbeatResponse(reader.i32(), reader.i16()))


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error_code: int


class LeaveGroupResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    members: tuple[LeftMember, ...]


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    """Remove one member from the group. The group then rebalances at once."""

    API_KEY: ClassVar[int] = ApiKey.LEAVE_GROUP
    VERSION: ClassVar[int] = 5

    group_id: str
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None

    def encode(self, writer: Writer) -> None:
        def put_member(member_id: str) -> None:
            writer.string(member_id)
            writer.nullable_string(self.group_instance_id)
            writer.nullable_string(self.reason)
            writer.tag_end()

        writer.string(self.group_id)
        writer.array((self.member_id,), put_member)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> LeaveGroupResponse:
        return reader.ended(
            LeaveGroupResponse(reader.i32(), reader.i16(), reader.array(_left_member))
        )


def _left_member(reader: Reader) -> LeftMember:
    return reader.ended(LeftMember(reader.string(), reader.nullable_string(), reader.i16()))


def _put_bytes(writer: Writer, value: bytes) -> None:
    writer.buffer += uvarint_bytes(len(value) + 1)
    writer.buffer += value
