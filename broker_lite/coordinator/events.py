"""The events that ``group.Group.step`` accepts: requests, timer events and results of writes.

The caller, ``server/coordinators/group_coordinator.py``, does the I/O and creates the events on one
thread. A token identifies one request and is never reused. Each request gets exactly one
``GroupReply``, at once or later. ``instance_id`` is the ``group.instance.id`` of a static member,
and None for all other members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError


class GroupLimits(NamedTuple):
    """The broker's settings that limit consumer groups."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    """Milliseconds for which the first rebalance of an empty group waits for more members."""
    size_max: int = 1_000
    member_bytes_max: int = 256 << 10
    """Maximum bytes of one member's metadata."""
    group_bytes_max: int = 16 << 20
    """Maximum bytes of all members' metadata together, and of all assignments together: the
    JoinGroup answer to the group's leader contains all metadata, and the leader's SyncGroup request
    all assignments."""


class Protocol(NamedTuple):
    """An assignment strategy that a member supports, with the member's encoded subscription for
    it."""

    name: str
    metadata: bytes


def metadata_bytes(protocols: Iterable[Protocol]) -> int:
    """Return the number of bytes of a member's protocols: names and encoded subscriptions."""
    return sum(len(row.name) + len(row.metadata) for row in protocols)


class Former(NamedTuple):
    """The members of the generation that was current when this broker became the group's
    coordinator.

    ``members`` is their number; their ids are unknown. Each goes on consuming until it contacts
    this coordinator, which every live member does before ``until_ms``."""

    members: int
    until_ms: int


NO_FORMER = Former(0, 0)


class Join(NamedTuple):
    """A JoinGroup request.

    ``new_member_id`` is the id that the coordinator generated for a member without an id. With
    ``must_ask_twice``, this member receives only the new id and must join again with it
    (KIP-394)."""

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
    """Whether the request has version 9 or later. Earlier versions of the answer cannot tell the
    group's leader, a restarted static member, to skip the assignment of partitions."""
    partition_counts: Mapping[str, int] | None = None
    """The partition count of each of the group's topics, if the request has the instance id of the
    static member that leads the group and may have restarted; otherwise None. The counts show
    partitions that were added while the leader was away, and must still be assigned."""

    @property
    def metadata_bytes(self) -> int:
        return metadata_bytes(self.protocols)


class SyncGroup(NamedTuple):
    """A SyncGroup request. Only the group's leader sends ``assignments``: pairs of a member id and
    its encoded assignment."""

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
    """A member that a LeaveGroup request removes. An operator names a static member by its instance
    id alone."""

    member_id: str
    instance_id: str | None = None


class Leave(NamedTuple):
    """A LeaveGroup request."""

    token: int
    members: tuple[Leaver, ...]


class Commit(NamedTuple):
    """A request to commit offsets, without the offsets: the group only checks the sender.

    A client that is not a member (empty id, generation -1) may commit only while the group is
    empty. A transaction may always commit, because older versions of TxnOffsetCommit name no member
    (KIP-447)."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int
    is_transactional: bool = False


class GenerationWritten(NamedTuple):
    """The generation of ``effects.WriteGeneration`` has been written to ZooKeeper."""

    generation: int


class GroupTick(NamedTuple):
    """A timer event, sent at the time ``Group.deadline_ms``."""


class Resigned(NamedTuple):
    """This broker is no longer the group's coordinator: the group answers all waiting requests with
    ``error``."""

    error: LogbusError


Request = Join | SyncGroup | Heartbeat | Leave | Commit
Event = Request | GenerationWritten | GroupTick | Resigned
