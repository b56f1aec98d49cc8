"""The operations (effects) that ``group.Group.step`` returns, in the order in which the group
coordinator carries them out.

A generation is written to ZooKeeper before any reply names it. The group's next coordinator
therefore never reuses a generation number that members have received."""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError


class WriteGeneration(NamedTuple):
    """Write the generation to the group's coordinator znode, after all offset commits that the
    group accepted earlier. The event GenerationWritten reports the result.

    ``members`` (a count) and ``session_timeout_ms`` (the longest of the members) tell the group's
    next coordinator how many members of this generation may still consume, and for how long."""

    generation: int
    is_empty: bool
    members: int = 0
    session_timeout_ms: int = 0


class MemberRow(NamedTuple):
    """A member in the JoinGroup answer to the group's leader, which assigns the partitions."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to a JoinGroup request. ``members`` is empty except for the group's leader."""

    error: LogbusError | None = None
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[MemberRow, ...] = ()
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    """The answer to a SyncGroup request: the member's assignment, or an error."""

    error: LogbusError | None = None
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class HeartbeatResult(NamedTuple):
    """The answer to a Heartbeat request."""

    error: LogbusError | None = None


class LeaveResult(NamedTuple):
    """The answer to a LeaveGroup request: an error or None for each member, in the request's
    order."""

    errors: tuple[LogbusError | None, ...] = ()


class CommitResult(NamedTuple):
    """Whether the group accepts an offset commit: ``error`` is None if the coordinator may write
    the offsets."""

    error: LogbusError | None = None


Result = JoinResult | SyncResult | HeartbeatResult | LeaveResult | CommitResult


class GroupReply(NamedTuple):
    """Send ``result`` as the answer to the request that has this ``token``."""

    token: int
    result: Result


Effect = WriteGeneration | GroupReply
