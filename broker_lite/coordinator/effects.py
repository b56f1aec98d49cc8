"""The outputs of ``group.Group.step``, in the order in which to carry them out.

A generation is in ZooKeeper before any reply names it. A coordinator that takes the group over
therefore never uses a generation number twice.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError


class WriteGeneration(NamedTuple):
    """Write the generation to the group's coordinator znode, after all commits that were allowed
    before it. Answer with GenerationWritten.

    ``is_empty`` says whether the generation has no members. ``members`` is their number and
    ``session_timeout_ms`` the longest of their session timeouts. From both, a coordinator that
    takes the group over knows how long members of this generation may still consume.
    """

    generation: int
    is_empty: bool
    members: int = 0
    session_timeout_ms: int = 0


class MemberRow(NamedTuple):
    """A member in the JoinGroup answer of the group's leader, which assigns partitions."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to JoinGroup. Only the leader's answer has ``members``."""

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
    """The answer to Commit: the error of a refused commit. None allows the shell to write the
    offsets."""

    error: LogbusError | None = None


Result = JoinResult | SyncResult | HeartbeatResult | LeaveResult | CommitResult


class GroupReply(NamedTuple):
    """Answer the request that ``token`` identifies with ``result``."""

    token: int
    result: Result


Effect = WriteGeneration | GroupReply
