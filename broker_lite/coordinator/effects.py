"""The outputs of ``group.Group.step``, in the order in which to carry them out.

``WriteGeneration`` precedes every reply that names the generation. No client receives a generation
that is not in ZooKeeper, so no generation number is used twice.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError


class WriteGeneration(NamedTuple):
    """Write the generation to the group's coordinator znode, after all commits that were allowed
    before it. The shell then reports GenerationWritten. ``is_empty``: the generation has no
    members. ``members`` and ``session_timeout_ms`` (the longest of the members' session timeouts)
    serve a coordinator that takes the group over."""

    generation: int
    is_empty: bool
    members: int = 0
    session_timeout_ms: int = 0


class MemberRow(NamedTuple):
    """A member, as the leader receives it in its JoinGroup answer."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to JoinGroup; only the leader's answer has ``members``."""

    error: LogbusError | None = None
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[MemberRow, ...] = ()
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    """The answer to SyncGroup."""

    error: LogbusError | None = None
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class HeartbeatResult(NamedTuple):
    """The answer to Heartbeat."""

    error: LogbusError | None = None


class LeaveResult(NamedTuple):
    """The answer to LeaveGroup: an error or None for each member, in the request's order."""

    errors: tuple[LogbusError | None, ...] = ()


class CommitResult(NamedTuple):
    """The result of a commit's check: whether it may be written. The shell writes it."""

    error: LogbusError | None = None


Result = JoinResult | SyncResult | HeartbeatResult | LeaveResult | CommitResult


class GroupReply(NamedTuple):
    """Answer the request with this token."""

    token: int
    result: Result


Effect = WriteGeneration | GroupReply
