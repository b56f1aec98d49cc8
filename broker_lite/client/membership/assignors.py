"""The assignment algorithms of a group leader: ``range``, ``sticky``, ``cooperative-sticky``.

Names and subscription metadata are Kafka's, so the members of a group may use any Kafka client.
Both sticky assignors move a partition only to balance the members' shares (KIP-54). With
``cooperative-sticky``, a partition that moves is first assigned to no member; its owner releases
it, and a second rebalance assigns it to the new owner (KIP-429)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from broker_lite.errors import ProtocolError
from broker_lite.model import TopicPartition
from broker_lite.wire.calls.members import JoinedMember
from broker_lite.wire.consumer_protocol import (
    NO_GENERATION,
    SUBSCRIPTION_VERSION_MAX,
    Subscription,
    decode_member,
    decode_sticky,
    encode_member,
    encode_sticky,
)
from broker_lite.wire.primitives import I32

RANGE, STICKY, COOPERATIVE_STICKY = "range", "sticky", "cooperative-sticky"
ASSIGNORS = (RANGE, STICKY, COOPERATIVE_STICKY)
COOPERATIVE = (COOPERATIVE_STICKY,)

EAGER_VERSION = 1
"""Version of the subscription metadata for the assignors range and sticky.

Every client can read this version. It has no field for owned partitions."""

Shares = dict[str, list[TopicPartition]]


class Candidate(NamedTuple):
    """A group member as an assignor sees it, with the topics of its subscription.

    ``owned`` has the partitions that the member reports as owned in ``generation``."""

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION

    @property
    def place(self) -> tuple[bool, str]:
        """The key by which members are sorted before the assignment.

        Static members come first, by instance id, so that a restart does not change their order."""
        return self.instance_id is None, self.instance_id or self.member_id


def metadata(
    name: str, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int
) -> bytes:
    """Return the subscription metadata that a member sends in JoinGroup for the assignor
    ``name``."""
    rows, names = tuple(sorted(owned)), tuple(topics)
    if name == COOPERATIVE_STICKY:
        data = I32.pack(generation)
        return encode_member(Subscription(names, data, rows, generation), SUBSCRIPTION_VERSION_MAX)
    data = encode_sticky(rows, generation) if name == STICKY else b""
    return encode_member(Subscription(names, data), EAGER_VERSION)


def candidate(name: str, row: JoinedMember) -> Candidate:
    """Decode a member's subscription metadata for the assignor ``name``. Raises ProtocolError if it
    is malformed."""
    said = decode_member(row.metadata)
    owned, generation = said.owned, said.generation
    if name == STICKY:
        owned, generation = decode_sticky(said.user_data)
    elif generation == NO_GENERATION and len(said.user_data) == I32.size:
        generation = int(I32.unpack(said.user_data)[0])
    return Candidate(row.member_id, row.group_instance_id, said.topics, owned, generation)


def candidates(
    name: str, rows: Iterable[JoinedMember]
) -> tuple[list[Candidate], dict[str, ProtocolError]]:
    """Decode the subscription metadata of all members. Return the members to which the assignor may
    give partitions, and the decoding errors by member id.

    A member with unreadable metadata counts as a member without topics. If the error
    made the group leader fail, it would also make each next leader fail."""
    decoded, unread = [], {}
    for row in rows:
        try:
            decoded.append(candidate(name, row))
        except ProtocolError as error:
            decoded.append(Candidate(row.member_id, row.group_instance_id, ()))
            unread[row.member_id] = error
    return decoded, unread


def assign(name: str, candidates: Iterable[Candidate], counts: Mapping[str, int]) -> Shares:
    """Run the assignor ``name``. Return each member's partitions, by member id.

    ``counts`` has the number of partitions of each existing topic."""
    ordered = sorted(candidates, key=lambda each: each.place)
    if name == RANGE:
        return by_range(ordered, counts)
    shares = by_stickiness(ordered, counts)
    if name in COOPERATIVE:
        hold_back(ordered, shares)
    return {member: sorted(share) for member, share in shares.items()}


def by_range(ordered: Sequence[Candidate], counts: Mapping[str, int]) -> Shares:
    """Assign each topic's partitions to its subscribers in consecutive ranges of equal size.

    If they do not divide evenly, the first subscribers get one more."""
    shares: Shares = {each.member_id: [] for each in ordered}
    for topic, subscribers in _subscribers(ordered, counts).items():
        if not subscribers:
            continue
        size, rest = divmod(counts[topic], len(subscribers))
        partition = 0
        for position, member in enumerate(subscribers):
            for _ in range(size + (position < rest)):
                shares[member].append(TopicPartition(topic, partition))
                partition += 1
    return shares


def by_stickiness(ordered: Sequence[Candidate], counts: Mapping[str, int]) -> Shares:
    """Assign all partitions as evenly as subscriptions allow, and move as few as possible."""
    eligible = _subscribers(ordered, counts)
    loads = _Loads([each.member_id for each in ordered], eligible.values())
    owner = _retained_owners(ordered, counts)
    for member in owner.values():
        loads.add(member, 1)
    free = [
        TopicPartition(topic, partition)
        for topic, members in eligible.items()
        for partition in range(counts[topic])
        if members and TopicPartition(topic, partition) not in owner
    ]
    # Assign first the partitions of topics to which few members subscribe. Otherwise these members
    # could already have too many partitions of other topics.
    for tp in sorted(free, key=lambda each: (len(eligible[each.topic]), each)):
        owner[tp] = loads.least(eligible[tp.topic])
        loads.add(owner[tp], 1)
    _balance(owner, eligible, loads)
    shares: Shares = {each.member_id: [] for each in ordered}
    for tp, member in owner.items():
        shares[member].append(tp)
    return shares


def _subscribers(
    ordered: Sequence[Candidate], counts: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Return for each existing topic the members that subscribe to it, in the order of
    ``ordered``."""
    subscribers: dict[str, list[str]] = {topic: [] for topic in sorted(counts)}
    for each in ordered:
        for topic in subscribers.keys() & set(each.topics):
            subscribers[topic].append(each.member_id)
    return {topic: tuple(members) for topic, members in subscribers.items()}


def _retained_owners(
    ordered: Sequence[Candidate], counts: Mapping[str, int]
) -> dict[TopicPartition, str]:
    """Return the member that owns each partition now.

    Partitions that do not exist, or whose owner no longer subscribes, are left out. If two members
    claim a partition, the one with the later generation counts; with equal generations, neither."""
    owner: dict[TopicPartition, tuple[int, str]] = {}
    for each in ordered:
        topics = frozenset(each.topics)
        for tp in each.owned:
            if tp.topic not in topics or tp.partition >= counts.get(tp.topic, 0):
                continue
            known = owner.get(tp)
            if known is None or known[0] < each.generation:
                owner[tp] = (each.generation, each.member_id)
            elif known[0] == each.generation:
                owner[tp] = (each.generation, "")
    return {tp: member for tp, (_, member) in owner.items() if member}


def _balance(
    owner: dict[TopicPartition, str], eligible: Mapping[str, tuple[str, ...]], loads: _Loads
) -> None:
    """Move partitions until the owner of each has at most one partition more than any other member
    that may own this partition."""
    moved = True
    while moved:
        moved = False
        for tp in sorted(owner, key=lambda each: (-loads.of[owner[each]], each)):
            target = loads.least(eligible[tp.topic])
            if loads.of[target] + 1 < loads.of[owner[tp]]:
                loads.add(owner[tp], -1)
                loads.add(target, 1)
                owner[tp] = target
                moved = True


class _Loads:
    """Counts each member's partitions, to find which of a topic's subscribers has the fewest."""

    def __init__(self, members: Sequence[str], sets: Iterable[tuple[str, ...]]) -> None:
        self.of = dict.fromkeys(members, 0)
        self._place = {member: place for place, member in enumerate(members)}
        self._heaps: dict[tuple[str, ...], list[tuple[int, int, str]]] = {}
        self._sets: dict[str, list[tuple[str, ...]]] = {member: [] for member in members}
        for each in set(sets):
            self._heaps[each] = [(0, self._place[member], member) for member in each]
            for member in each:
                self._sets[member].append(each)

    def add(self, member: str, count: int) -> None:
        self.of[member] += count
        for each in self._sets[member]:
            heapq.heappush(self._heaps[each], (self.of[member], self._place[member], member))

    def least(self, members: tuple[str, ...]) -> str:
        heap = self._heaps[members]
        while heap[0][0] != self.of[heap[0][2]]:
            heapq.heappop(heap)
        return heap[0][2]


def hold_back(ordered: Sequence[Candidate], shares: Shares) -> None:
    """Remove from each member's share the partitions that another member still owns.

    No member's share then has these partitions, so their owners release them and join again. The
    rebalance that follows assigns them."""
    owners: dict[TopicPartition, set[str]] = {}
    for each in ordered:
        for tp in each.owned:
            owners.setdefault(tp, set()).add(each.member_id)
    for member, share in shares.items():
        share[:] = [tp for tp in share if owners.get(tp, {member}) == {member}]
