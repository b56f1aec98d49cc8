"""The client's requests JoinGroup v9, SyncGroup v5, Heartbeat v4 and LeaveGroup v5, which a
consumer sends as a member of a consumer group to the group's coordinator, a broker.

In a rebalance, all members send JoinGroup. The coordinator chooses one member as the group's
leader. The leader decides which partitions each member reads (its assignment), and every member
receives its own with SyncGroup. Field names are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int16, Int32
from broker_lite.wire.primitives import Writer

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

    throttle_time_ms: Int32
    error_code: Int16
    generation_id: Int32
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinGroupRequest(DeclaredCall[JoinGroupResponse]):
    """Join a group. The coordinator answers when all members have sent this request, or after the
    rebalance timeout."""

    API_KEY: ClassVar[int] = ApiKey.JOIN_GROUP
    VERSION: ClassVar[int] = 9

    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: str
    group_instance_id: str | None
    protocol_type: str = field(default=CONSUMER, kw_only=True)
    protocols: tuple[JoinProtocol, ...]
    reason: str | None = None


class Assigned(NamedTuple):
    """The assignment that the leader gives to one member."""

    member_id: str
    assignment: bytes


class SyncGroupResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupRequest(DeclaredCall[SyncGroupResponse]):
    """Request the assignment of this member. The group's leader also sends the ``assignments`` of
    all members; no member gets an answer before that."""

    API_KEY: ClassVar[int] = ApiKey.SYNC_GROUP
    VERSION: ClassVar[int] = 5

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None = field(default=CONSUMER, kw_only=True)
    protocol_name: str | None
    assignments: tuple[Assigned, ...] = ()


class HeartbeatResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(DeclaredCall[HeartbeatResponse]):
    """Tell the coordinator that the member is alive. The answer's error code tells the member if it
    must join again."""

    API_KEY: ClassVar[int] = ApiKey.HEARTBEAT
    VERSION: ClassVar[int] = 4

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error_code: Int16


class LeaveGroupResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    members: tuple[LeftMember, ...]


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest(DeclaredCall[LeaveGroupResponse]):
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
