"""What a Kafka group wants done: the outputs of ``group.Group.step``, in the order to do it.

``WriteGeneration`` comes before every reply that names the generation: nobody learns of one that
ZooKeeper does not hold, so none is ever given twice.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError


class WriteGeneration(NamedTuple):
    """Write it to the group's coordinator znode, after all commits that were allowed before; answer
    with GenerationWritten. ``is_empty``: nobody is in the group from now on. ``members`` and the
    longest of their session timeouts are for the coordinator that may take the group over."""

    generation: int
    is_empty: bool
    members: int = 0
    session_timeout_ms: int = 0


class JoinedMember(NamedTuple):
    """What the leader is told of a member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """``members`` are for the leader alone."""

    error: LogbusError | None = None
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    error: LogbusError | None = None
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class HeartbeatResult(NamedTuple):
    error: LogbusError | None = None


class LeaveResult(NamedTuple):
    """An error or None for each, in the request's order."""

    errors: tuple[LogbusError | None, ...] = ()


class CommitResult(NamedTuple):
    error: LogbusError | None = None


Result = JoinResult | SyncResult | HeartbeatResult | LeaveResult | CommitResult


class Reply(NamedTuple):
    token: int
    result: Result


Effect = WriteGeneration | Reply
