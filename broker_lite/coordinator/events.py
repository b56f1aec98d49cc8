"""The inputs of ``group.Group.step``.

The shell (``server/coordinators/group_coordinator.py``) creates the events on one thread. A token
identifies one request and is never reused. Each request gets exactly one ``GroupReply``, at once
or later. ``instance_id`` is a static member's ``group.instance.id``, None for all other members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError


class GroupLimits(NamedTuple):
    """The broker's settings that a group uses."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    """Time in ms that the first rebalance of an empty group waits for more members."""
    size_max: int = 1_000
    member_bytes_max: int = 256 << 10
    """Maximum bytes of one member's metadata."""
    group_bytes_max: int = 16 << 20
    """Maximum bytes of all members' metadata together, and of all assignments together. The leader
    receives all metadata in one answer and sends all assignments in one request.
    """


class Protocol(NamedTuple):
    """An assignment strategy that a member supports, and the member's subscription for it."""

    name: str
    metadata: bytes


def metadata_bytes(protocols: Iterable[Protocol]) -> int:
    """Return the bytes of a member's metadata and protocol names."""
    return sum(len(row.name) + len(row.metadata) for row in protocols)


class Former(NamedTuple):
    """The number of members in the generation that this coordinator took over.

    The coordinator does not know their ids. These members consume until they contact this
    coordinator, which every live member does before ``until_ms``.
    """

    members: int
    until_ms: int


NO_FORMER = Former(0, 0)


class Join(NamedTuple):
    """A JoinGroup request.

    ``new_member_id`` is an id that the shell generated for a member without an id. With
    ``must_ask_twice``, a member without an id receives only its id, and joins again (KIP-394).
    """

    token: int
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    new_member_id: str
    must_ask_twice: bool = True
    can_skip_assignment: bool = True
    """Whether the request has version 9 or later, so that the answer can tell a returned static
    leader to skip the assignment.
    """
    partition_counts: Mapping[str, int] | None = None
    """The partition count of each of the group's topics, if the request may come from a returning
    static leader. Such a leader must assign partitions that were added during its absence."""

    @property
    def metadata_bytes(self) -> int:
        return metadata_bytes(self.protocols)


class SyncGroup(NamedTuple):
    """A SyncGroup request. Only the leader sends ``assignments``: member ids and encoded
    assignments."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    protocol_type: str | None = None
    protocol_name: str | None = None


class Heartbeat(NamedTuple):
    """A Heartbeat request."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int


class Leaver(NamedTuple):
    """A member that leaves. An operator removes a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class Leave(NamedTuple):
    """A LeaveGroup request."""

    token: int
    members: tuple[Leaver, ...]


class Commit(NamedTuple):
    """A request to commit offsets.

    A client that is no member (empty id, generation -1) may commit only while the group is empty.
    A transaction is an exception: older versions of TxnOffsetCommit name no member (KIP-447).
    """

    token: int
    member_id: str
    instance_id: str | None
    generation: int
    is_transactional: bool = False


class GenerationWritten(NamedTuple):
    """``effects.WriteGeneration`` is complete."""

    generation: int


class GroupTick(NamedTuple):
    """A timer event. It is due at ``Group.deadline_ms``."""


class Resigned(NamedTuple):
    """This broker is no longer the group's coordinator. Answer all waiting requests with
    ``error``."""

    error: LogbusError


Event = Join | SyncGroup | Heartbeat | Leave | Commit | GenerationWritten | GroupTick | Resigned
