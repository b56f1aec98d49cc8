"""How a group's leader shares partitions out: ``range``, ``sticky``, ``cooperative-sticky``. Pure.

Names and metadata are Kafka's, so members of any client may be led. Both sticky ones leave with
its owner what balance does not need to move (KIP-54). The cooperative one gives a partition that
moves to nobody until its owner has let go of it: that takes a second round (KIP-429).
"""

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
"""Of the metadata of members that own nothing while they join: what every client reads."""

Shares = dict[str, list[TopicPartition]]


class Candidate(NamedTuple):
    """A member as its leader sees it. ``owned``: what it says that it has, since ``generation``."""

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION

    @property
    def place(self) -> tuple[bool, str]:
        """Static members first, by the names that outlast restarts."""
        return self.instance_id is None, self.instance_id or self.member_id


def metadata(
    name: str, topics: Sequence[str], owned: Iterable[TopicPartition], generation: int
) -> bytes:
    """What a member says of itself to the leader under one of these assignors."""
    rows, asked = tuple(sorted(owned)), tuple(topics)
    if name == COOPERATIVE_STICKY:
        data = I32.pack(generation)
        return encode_member(Subscription(asked, data, rows, generation), SUBSCRIPTION_VERSION_MAX)
    data = encode_sticky(rows, generation) if name == STICKY else b""
    return encode_member(Subscription(asked, data), EAGER_VERSION)


def candidate(name: str, row: JoinedMember) -> Candidate:
    """What a member said of itself; raises ProtocolError."""
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
    """All members, and why some of them cannot be read. Those count as subscribed to nothing: were
    their leader to end, so would the next one, until the group has no member left."""
    found, unread = [], {}
    for row in rows:
        try:
            found.append(candidate(name, row))
        except ProtocolError as error:
            found.append(Candidate(row.member_id, row.group_instance_id, ()))
            unread[row.member_id] = error
    return found, unread


def assign(name: str, candidates: Iterable[Candidate], counts: Mapping[str, int]) -> Shares:
    """What each member gets. ``counts``: the partitions of each topic that exists."""
    ordered = sorted(candidates, key=lambda each: each.place)
    if name == RANGE:
        return by_range(ordered, counts)
    shares = by_stickiness(ordered, counts)
    if name in COOPERATIVE:
        hold_back(ordered, shares)
    return {member: sorted(share) for member, share in shares.items()}


def by_range(ordered: Sequence[Candidate], counts: Mapping[str, int]) -> Shares:
    """Of each topic a range of partitions to each subscriber, the first ones longer by one."""
    shares: Shares = {each.member_id: [] for each in ordered}
    for topic in sorted(counts):
        subscribers = [each.member_id for each in ordered if topic in each.topics]
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
    """As even as subscriptions allow, and of all such shares one that moves little."""
    eligible = {
        topic: tuple(each.member_id for each in ordered if topic in each.topics)
        for topic in sorted(counts)
    }
    loads = _Loads([each.member_id for each in ordered], eligible.values())
    owner = _kept(ordered, counts)
    for member in owner.values():
        loads.add(member, 1)
    free = [
        TopicPartition(topic, partition)
        for topic, members in eligible.items()
        for partition in range(counts[topic])
        if members and TopicPartition(topic, partition) not in owner
    ]
    # Those that few may have come first, or they would find the few at work already.
    for where in sorted(free, key=lambda each: (len(eligible[each.topic]), each)):
        owner[where] = loads.least(eligible[where.topic])
        loads.add(owner[where], 1)
    _balance(owner, eligible, loads)
    shares: Shares = {each.member_id: [] for each in ordered}
    for where, member in owner.items():
        shares[member].append(where)
    return shares


def _kept(ordered: Sequence[Candidate], counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Who has what now, of what there is and is wanted. Of two who say so the later generation is
    right; of one generation neither is believed."""
    owner: dict[TopicPartition, tuple[int, str]] = {}
    for each in ordered:
        for where in each.owned:
            if where.topic not in each.topics or where.partition >= counts.get(where.topic, 0):
                continue
            known = owner.get(where)
            if known is None or known[0] < each.generation:
                owner[where] = (each.generation, each.member_id)
            elif known[0] == each.generation:
                owner[where] = (each.generation, "")
    return {where: member for where, (_, member) in owner.items() if member}


def _balance(
    owner: dict[TopicPartition, str], eligible: Mapping[str, tuple[str, ...]], loads: _Loads
) -> None:
    """Move partitions, one by one, to members that have at least two less."""
    moved = True
    while moved:
        moved = False
        for where in sorted(owner, key=lambda each: (-loads.of[owner[each]], each)):
            target = loads.least(eligible[where.topic])
            if loads.of[target] + 1 < loads.of[owner[where]]:
                loads.add(owner[where], -1)
                loads.add(target, 1)
                owner[where] = target
                moved = True


class _Loads:
    """How many partitions each member has, and who of a set of members has the fewest."""

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
    """Take out of the shares what somebody else still has: who has it sees that it is not in the
    own share any more, lets go of it and joins again."""
    owners: dict[TopicPartition, set[str]] = {}
    for each in ordered:
        for where in each.owned:
            owners.setdefault(where, set()).add(each.member_id)
    for member, share in shares.items():
        share[:] = [where for where in share if owners.get(where, {member}) == {member}]
