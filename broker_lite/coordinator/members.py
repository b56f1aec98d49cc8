"""The members of a Kafka group, and what they agree on. Pure; used by ``group`` and ``admission``.

Order is the order of joining, everywhere: whoever was first is asked first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_lite.coordinator.events import Former, Join, Protocol
from broker_lite.errors import (
    FencedInstanceIdError,
    LogbusError,
    ProtocolError,
    UnknownMemberIdError,
)
from broker_lite.wire.consumer_protocol import decode_assignment, decode_member
from broker_lite.wire.primitives import Reader

CONSUMER = "consumer"
"""The protocol type of consumers: what their metadata and assignments look like is known."""


@dataclass(slots=True)
class Member:
    """``join_token`` and ``sync_token`` are its requests that wait for an answer.

    ``session_deadline_ms`` counts only while none waits; ``is_new`` until its first join is
    answered, which may take as long as others need, but not for ever.
    """

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
    def said_bytes(self) -> int:
        """How much it said of itself."""
        return sum(len(row.metadata) + len(row.name) for row in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """What it said under that protocol; nothing if it does not know it."""
        return next((row.metadata for row in self.protocols if row.name == protocol), b"")


class MemberView(NamedTuple):
    """A member as others see it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Roster:
    """Who is in a group. ``known`` counts how many members know each protocol, so that whether a
    newcomer fits costs the same in a large group."""

    def __init__(self, former: Former) -> None:
        self.former = former if former.members else None
        """Of the generation that was taken over, until the next one is begun."""
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """Instance id to member id."""
        self.pending: dict[str, int] = {}
        """Ids that were given and not joined with yet, and until when they may be."""
        self.protocol_type = ""
        self.leader: str | None = None
        self.said_bytes = 0
        """How much all members said of themselves."""
        self.assigned_bytes = 0
        """How much their leader said in return, for those too that have left since."""
        self._known: Counter[str] = Counter()

    @property
    def size(self) -> int:
        """Members, and those that were told an id to join with."""
        return len(self.members) + len(self.pending)

    @property
    def are_former_back(self) -> bool:
        """Whether as many are here as the generation had that was taken over, and whose members
        are waited for: nobody reads any more what it was given in that one."""
        return self.former is not None and self.former.members <= len(self.members)

    def note_leaver(self, error: LogbusError) -> None:
        """Whoever leaves and is unknown may be of the generation that was taken over."""
        if self.former is not None and isinstance(error, UnknownMemberIdError):
            self.former = self.former._replace(members=max(self.former.members - 1, 0))

    def find(self, member_id: str, instance_id: str | None) -> Member | None:
        """Whose place a join would take: its own, or the one that its instance id had."""
        if not member_id and instance_id is not None:
            member_id = self.static.get(instance_id, "")
        return self.members.get(member_id)

    def why_not(self, member_id: str, instance_id: str | None) -> LogbusError | None:
        """None where that is a member."""
        if instance_id is not None and instance_id in self.static:
            if self.static[instance_id] != member_id:
                return FencedInstanceIdError(f"{instance_id!r} was started elsewhere")
            return None
        if instance_id is not None or member_id not in self.members:
            return UnknownMemberIdError(f"the group has no member {member_id!r}")
        return None

    def fits(self, protocol_type: str, protocols: Sequence[Protocol], own: Member | None) -> bool:
        """Whether all others know one of these protocols; ``own`` is the member that asks."""
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
        """The protocols that anybody knows."""
        return sorted(self._known)

    def add(self, member: Member, protocol_type: str) -> None:
        """The first one leads, and says of which type the group is."""
        if not self.members:
            self.protocol_type = protocol_type
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._note(member)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        """If it led, the first of the others leads."""
        del self.members[member.member_id]
        self._forget(member)
        if not self.members:
            self.assigned_bytes = 0
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def update(self, member: Member, event: Join) -> None:
        """It says of itself what its join says."""
        if len(self.members) == 1:
            self.protocol_type = event.protocol_type
        self._forget(member)
        member.protocols = event.protocols
        self._note(member)
        member.client_id, member.client_host = event.client_id, event.client_host
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms

    def assign(self, assignments: Iterable[tuple[str, bytes]]) -> None:
        """By member id; nothing to the others."""
        assigned = dict(assignments)
        self.assigned_bytes = 0
        for row in self.members.values():
            row.assignment = assigned.get(row.member_id, b"")
            self.assigned_bytes += len(row.assignment)

    def rename(self, member: Member, member_id: str) -> None:
        """A static member keeps its place in the order under another id."""
        assert member.instance_id is not None
        old = member.member_id
        self.members = {member_id if key == old else key: row for key, row in self.members.items()}
        self.static[member.instance_id] = member_id
        if self.leader == old:
            self.leader = member_id
        member.member_id = member_id

    def first_waiting(self) -> str | None:
        """The first member that waits for the answer to its join."""
        return next((key for key, row in self.members.items() if row.join_token is not None), None)

    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for."""
        return max((row.rebalance_timeout_ms for row in self.members.values()), default=0)

    def subscribed(self, protocol: str | None) -> frozenset[str] | None:
        """Topics that members are subscribed to; None where that cannot be told."""
        if self.former is not None or (self.members and self.protocol_type != CONSUMER):
            return None
        found: set[str] = set()
        for row in self.members.values():
            topics = subscribed_topics(row.metadata(protocol) or row.protocols[0].metadata)
            if topics is None:
                return None
            found |= topics
        return frozenset(found)

    def leaves_out(self, protocol: str | None, counts: Mapping[str, int]) -> bool:
        """Whether nobody was assigned some partition of the consumers' topics, of these so many."""
        topics = self.subscribed(protocol) if self.protocol_type == CONSUMER else None
        if not topics:
            return False
        try:
            assigned = {
                where
                for row in self.members.values()
                if row.assignment
                for where in decode_assignment(row.assignment)
            }
        except ProtocolError:
            return False
        return any(
            (topic, partition) not in assigned
            for topic in topics
            for partition in range(counts.get(topic, 0))
        )

    def _note(self, member: Member) -> None:
        self.said_bytes += member.said_bytes
        self._known.update({row.name for row in member.protocols})

    def _forget(self, member: Member) -> None:
        self.said_bytes -= member.said_bytes
        self._known.subtract({row.name for row in member.protocols})
        self._known += Counter()  # drops those that nobody knows


def common_protocols(members: Iterable[Member]) -> list[str]:
    """What all of them know, in the first one's order of preference."""
    rows = [[protocol.name for protocol in member.protocols] for member in members]
    if not rows:
        return []
    return [name for name in dict.fromkeys(rows[0]) if all(name in row for row in rows)]


def choose_protocol(members: Sequence[Member]) -> str:
    """Each member votes for the first on its list that all know; a tie goes to the first member's
    preference. There is one in common: a member that shared none was not let in."""
    candidates = common_protocols(members)
    votes = dict.fromkeys(candidates, 0)
    for member in members:
        votes[next(row.name for row in member.protocols if row.name in votes)] += 1
    return max(candidates, key=lambda name: votes[name])


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's subscription; None where it cannot be read."""
    reader = Reader(metadata)
    try:
        reader.i16()
        return frozenset(reader.classic_string() for _ in range(reader.classic_count()))
    except ProtocolError:
        return None


def unreadable(protocol_type: str, protocols: Iterable[Protocol]) -> str | None:
    """Why nobody can lead a consumer that says this of itself; None of other kinds of members. A
    leader that is a Java consumer ends by one, so does the next, until nobody is left."""
    for row in protocols if protocol_type == CONSUMER else ():
        try:
            decode_member(row.metadata)
        except ProtocolError as error:
            return f"under {row.name!r}: {error.message}"
    return None


def owes(protocol_type: str | None, metadata: bytes, assignment: bytes) -> bool:
    """Whether a consumer was told to give up what it said to have, and did not join since: it
    waits for that, so that others may have it (KIP-429)."""
    if protocol_type != CONSUMER:
        return False
    try:
        return not set(decode_member(metadata).owned) <= set(decode_assignment(assignment))
    except ProtocolError:
        return False


def is_same_subscription(protocol_type: str | None, before: bytes, now: bytes) -> bool:
    """Whether the leader would assign the same: of consumers the topics count, since a member
    that comes back owns less than it did and must not cause a rebalance by that."""
    if before == now:
        return True
    if protocol_type != CONSUMER:
        return False
    topics = subscribed_topics(before)
    return topics is not None and topics == subscribed_topics(now)
