"""The members of a Kafka consumer group, in the order in which they joined, and the choice of a
protocol that all of them support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_lite.coordinator.events import Former, Join, Protocol, metadata_bytes
from broker_lite.errors import (
    FencedInstanceIdError,
    LogbusError,
    ProtocolError,
    UnknownMemberIdError,
)
from broker_lite.wire.consumer_protocol import decode_assignment, decode_member
from broker_lite.wire.primitives import Reader

CONSUMER = "consumer"
"""The protocol type of consumers, the only type whose metadata and assignments this module
decodes."""


@dataclass(slots=True)
class Member:
    """One member of a consumer group.

    ``join_token`` and ``sync_token`` identify the member's JoinGroup and SyncGroup requests that
    wait for an answer; None if none waits. ``is_new`` is True until the member's first JoinGroup is
    answered. A member is removed at ``session_deadline_ms``, unless one of its requests waits for
    an answer. A new member is removed even while its JoinGroup waits, because its client may have
    gone."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    session_deadline_ms: int
    assignment: bytes = b""
    join_token: int | None = None
    sync_token: int | None = None
    is_new: bool = True
    has_synced: bool = False

    @property
    def is_waiting(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    @property
    def metadata_bytes(self) -> int:
        return metadata_bytes(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's encoded subscription for a protocol; empty if the member does not
        support the protocol."""
        return next((row.metadata for row in self.protocols if row.name == protocol), b"")


class MemberView(NamedTuple):
    """A member in the answer to DescribeGroups."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Roster:
    """The members of a group, with a count of the members that support each protocol. With the
    counts, the check of a joining member's protocols is as fast in a large group as in a small
    one."""

    def __init__(self, former: Former) -> None:
        self.former = former if former.members else None
        """The members of the previous coordinator's generation that may still consume. None once
        the next generation has started."""
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """The member id of each static member, by instance id."""
        self.pending: dict[str, int] = {}
        """The member ids that were assigned but have not joined yet, each with the time in ms until
        which the member may join (KIP-394)."""
        self.protocol_type = ""
        self.leader: str | None = None
        self.metadata_bytes = 0
        """Bytes of all members' metadata."""
        self.assigned_bytes = 0
        """Bytes of the leader's last assignments, including those for members that have left
        since."""
        self._known: Counter[str] = Counter()

    @property
    def size(self) -> int:
        """Number of members and of member ids that were assigned but have not joined yet
        (KIP-394)."""
        return len(self.members) + len(self.pending)

    @property
    def have_former_returned(self) -> bool:
        """Whether as many members have joined as the previous coordinator's generation had. If so,
        the first rebalance waits for no further members."""
        return self.former is not None and self.former.members <= len(self.members)

    def note_leaver(self, error: LogbusError) -> None:
        """If a LeaveGroup failed with UnknownMemberIdError, count one member less in the previous
        coordinator's generation: its members may leave, but this broker does not know their ids."""
        if self.former is not None and isinstance(error, UnknownMemberIdError):
            self.former = self.former._replace(members=max(self.former.members - 1, 0))

    def find(self, member_id: str, instance_id: str | None) -> Member | None:
        """Return the member that sent a JoinGroup request, found by member id, or by instance id if
        the member id is empty. Return None for a new member."""
        if not member_id and instance_id is not None:
            member_id = self.static.get(instance_id, "")
        return self.members.get(member_id)

    def why_not(self, group: str, member_id: str, instance_id: str | None) -> LogbusError | None:
        """Return the error with which to refuse a request of an unknown or fenced member; None for
        a current member. ``group`` is named in the error."""
        if instance_id is not None and instance_id in self.static:
            if self.static[instance_id] != member_id:
                return FencedInstanceIdError(
                    f"another process with group.instance.id {instance_id!r} has joined group "
                    f"{group!r}; give each process its own group.instance.id"
                )
            return None
        if instance_id is not None or member_id not in self.members:
            return UnknownMemberIdError(f"group {group!r} has no member {member_id!r}; join again")
        return None

    def fits(self, protocol_type: str, protocols: Sequence[Protocol], own: Member | None) -> bool:
        """Return whether one of a joining member's ``protocols`` is supported by all other members.
        ``own`` is the joining member if the group has it already, else None."""
        if not protocol_type or not protocols:
            return False
        others = len(self.members) - (own is not None)
        if not others:
            return True
        mine = {row.name for row in own.protocols} if own is not None else frozenset()
        return protocol_type == self.protocol_type and any(
            self._known[row.name] - (row.name in mine) == others for row in protocols
        )

    def known(self) -> list[str]:
        """Return the names of all protocols that at least one member supports, sorted."""
        return sorted(self._known)

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member. The first member becomes the leader and sets the group's protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._note(member)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member. If it was the leader, the first remaining member becomes the leader."""
        del self.members[member.member_id]
        self._forget(member)
        if not self.members:
            self.assigned_bytes = 0
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def update(self, member: Member, event: Join) -> None:
        """Replace the member's protocols, client and timeouts by those of its new JoinGroup
        request."""
        if len(self.members) == 1:
            self.protocol_type = event.protocol_type
        self._forget(member)
        member.protocols = event.protocols
        self._note(member)
        member.client_id, member.client_host = event.client_id, event.client_host
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms

    def assign(self, assignments: Iterable[tuple[str, bytes]]) -> None:
        """Set each member's assignment, by member id. A member that is not in ``assignments`` gets
        an empty one."""
        assigned = dict(assignments)
        self.assigned_bytes = 0
        for row in self.members.values():
            row.assignment = assigned.get(row.member_id, b"")
            self.assigned_bytes += len(row.assignment)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member a new member id. The member keeps its place in the order of
        joining."""
        assert member.instance_id is not None
        old = member.member_id
        self.members = {member_id if key == old else key: row for key, row in self.members.items()}
        self.static[member.instance_id] = member_id
        if self.leader == old:
            self.leader = member_id
        member.member_id = member_id

    def first_waiting(self) -> str | None:
        """Return the id of the first member whose JoinGroup waits for an answer; None without
        one."""
        return next((key for key, row in self.members.items() if row.join_token is not None), None)

    def rebalance_timeout_ms(self) -> int:
        """Return the members' longest rebalance timeout; 0 without members."""
        return max((row.rebalance_timeout_ms for row in self.members.values()), default=0)

    def subscribed(self, protocol: str | None) -> frozenset[str] | None:
        """Return the topics to which members are subscribed; None if they are unknown, for example
        because a member is not a consumer."""
        if self.former is not None or (self.members and self.protocol_type != CONSUMER):
            return None
        subscribed: set[str] = set()
        for row in self.members.values():
            topics = subscribed_topics(row.metadata(protocol) or row.protocols[0].metadata)
            if topics is None:
                return None
            subscribed |= topics
        return frozenset(subscribed)

    def leaves_unassigned(self, protocol: str | None, counts: Mapping[str, int]) -> bool:
        """Return whether a partition of the topics to which members are subscribed is assigned
        to no member. ``counts`` has the partition count of each topic."""
        topics = self.subscribed(protocol) if self.protocol_type == CONSUMER else None
        if not topics:
            return False
        try:
            assigned = {
                topic_partition
                for row in self.members.values()
                if row.assignment
                for topic_partition in decode_assignment(row.assignment)
            }
        except ProtocolError:
            return False
        return any(
            (topic, partition) not in assigned
            for topic in topics
            for partition in range(counts.get(topic, 0))
        )

    def _note(self, member: Member) -> None:
        self.metadata_bytes += member.metadata_bytes
        self._known.update({row.name for row in member.protocols})

    def _forget(self, member: Member) -> None:
        self.metadata_bytes -= member.metadata_bytes
        self._known.subtract({row.name for row in member.protocols})
        self._known += Counter()  # Adding an empty Counter drops the protocols whose count is 0.


def common_protocols(members: Iterable[Member]) -> list[str]:
    """Return the protocols that all members support, in the first member's order of preference."""
    rows = [[protocol.name for protocol in member.protocols] for member in members]
    if not rows:
        return []
    return [name for name in dict.fromkeys(rows[0]) if all(name in row for row in rows)]


def choose_protocol(members: Sequence[Member]) -> str:
    """Return the protocol with the most votes: each member votes for the first of its protocols
    that all members support. A tie goes to the protocol that the first member prefers.

    At least one protocol must be supported by all, as ``admission`` ensures."""
    candidates = common_protocols(members)
    votes = dict.fromkeys(candidates, 0)
    for member in members:
        votes[next(row.name for row in member.protocols if row.name in votes)] += 1
    return max(candidates, key=lambda name: votes[name])


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics in a consumer's encoded subscription; None if it cannot be decoded."""
    reader = Reader(metadata)
    try:
        reader.i16()
        return frozenset(reader.classic_string() for _ in range(reader.classic_count()))
    except ProtocolError:
        return None


def unreadable(protocol_type: str, protocols: Iterable[Protocol]) -> str | None:
    """Return why a consumer's encoded subscription cannot be decoded; None if it can, or if the
    protocol type is not that of consumers.

    A Java consumer that leads the group decodes all subscriptions. It would fail on a bad one, and
    so would each leader after it, until the group is empty."""
    for row in protocols if protocol_type == CONSUMER else ():
        try:
            decode_member(row.metadata)
        except ProtocolError as error:
            return f"under {row.name!r}: {error.message}"
    return None


def must_rejoin(protocol_type: str | None, metadata: bytes, assignment: bytes) -> bool:
    """Return whether a restarted static consumer still has to revoke partitions and join again: it
    owned partitions that its last assignment does not contain (KIP-429)."""
    if protocol_type != CONSUMER:
        return False
    try:
        return not set(decode_member(metadata).owned) <= set(decode_assignment(assignment))
    except ProtocolError:
        return False


def is_same_subscription(protocol_type: str | None, before: bytes, now: bytes) -> bool:
    """Return whether the leader would compute the same assignment from the subscription ``now`` as
    from ``before``.

    For consumers only the topics count. A restarted member reports fewer owned partitions than
    before, which must not cause a rebalance."""
    if before == now:
        return True
    if protocol_type != CONSUMER:
        return False
    topics = subscribed_topics(before)
    return topics is not None and topics == subscribed_topics(now)
