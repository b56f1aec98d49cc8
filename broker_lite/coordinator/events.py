"""The inputs of ``group.Group.step``.

The shell (``server/coordinators/group_coordinator.py``) creates the events on one thread. A token
identifies one request and is never reused. Each request gets exactly one ``effects.Reply``, at once
or later. ``instance_id`` is a static member's ``group.instance.id``, None for all other members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError


class GroupLimits(NamedTuple):
    """The broker's settings that a group uses."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    """Time in ms that an empty group waits for more members before its first rebalance."""
    size_max: int = 1_000
    member_bytes_max: int = 256 << 10
    """Maximum bytes of one member's metadata."""
    group_bytes_max: int = 16 << 20
    """Maximum bytes of the metadata of all members, which the leader receives in one answer; also
    the maximum bytes of all assignments. In Kafka, each of the two must fit into one record.
    """


class Protocol(NamedTuple):
    """An assignment strategy that a member supports, with its subscription in that format."""

    name: str
    metadata: bytes


class Former(NamedTuple):
    """Members of the generation that this coordinator took over, without their ids. They continue
    to consume until they contact this coordinator. A live member does so before ``until_ms``."""

    members: int
    until_ms: int


NO_FORMER = Former(0, 0)


class Join(NamedTuple):
    """JoinGroup.

    ``new_member_id``: an id that the shell generated for a member without one. ``must_ask_twice``:
    a member without an id only receives its id, and joins again with it (KIP-394).
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
    """Whether the request has version 9: the answer can then tell a returning static leader to skip
    the assignment.
    """
    partition_counts: Mapping[str, int] | None = None
    """The partition count of each of the group's topics, set if a static leader may return. A
    returned leader must assign the partitions that were added during its absence."""

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the member's metadata and protocol names."""
        return sum(len(row.name) + len(row.metadata) for row in self.protocols)


class SyncGroup(NamedTuple):
    """SyncGroup. Only the leader sends ``assignments`` (member id, bytes)."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    protocol_type: str | None = None
    protocol_name: str | None = None


class Heartbeat(NamedTuple):
    """A member's heartbeat."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int


class Leaver(NamedTuple):
    """A member that leaves. An operator removes a static member by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class Leave(NamedTuple):
    """LeaveGroup."""

    token: int
    members: tuple[Leaver, ...]


class Commit(NamedTuple):
    """A request to commit offsets.

    A client without a member (empty id, generation -1) may commit only while the group is empty,
    except in a transaction: older versions of TxnOffsetCommit name no member (KIP-447).
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
    """A timer event, due when ``Group.deadline_ms`` is reached."""


class Resigned(NamedTuple):
    """This broker is no longer the group's coordinator: answer all waiting requests
    with ``error``.
    """

    error: LogbusError


Event = Join | SyncGroup | Heartbeat | Leave | Commit | GenerationWritten | GroupTick | Resigned
