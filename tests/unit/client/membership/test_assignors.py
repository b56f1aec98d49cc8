"""Who reads what: every partition once, evenly, and with little moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_lite.client.membership.assignors import (
    ASSIGNORS,
    COOPERATIVE_STICKY,
    RANGE,
    STICKY,
    Candidate,
    Shares,
    assign,
    candidate,
    metadata,
)
from broker_lite.errors import ProtocolError
from broker_lite.model import TopicPartition
from broker_lite.wire.calls.members import JoinedMember
from broker_lite.wire.consumer_protocol import Subscription, encode_member

TOPICS = ("t", "u", "v")


def parts(topic: str, *numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


def owners(shares: Shares) -> dict[TopicPartition, str]:
    found = [(where, member) for member, share in shares.items() for where in share]
    assert len(dict(found)) == len(found), "nothing has two owners"
    return dict(found)


def test_ranges_topic_by_topic_static_members_first() -> None:
    members = [
        Candidate("b", None, ("t", "u")),
        Candidate("a", None, ("t",)),
        Candidate("z", "first", ("t",)),
    ]
    shares = assign(RANGE, members, {"t": 5, "u": 1, "unread": 3})
    assert shares == {
        "z": [*parts("t", 0, 1)],
        "a": [*parts("t", 2, 3)],
        "b": [*parts("t", 4), *parts("u", 0)],
    }


def test_a_sticky_newcomer_gets_its_part_and_no_more_is_moved() -> None:
    old = [
        Candidate("a", None, ("t",), parts("t", 0, 2, 4), 3),
        Candidate("b", None, ("t",), parts("t", 1, 3, 5), 3),
    ]
    before = owners(assign(STICKY, old, {"t": 6}))
    assert before == {where: row.member_id for row in old for where in row.owned}
    after = owners(assign(STICKY, [*old, Candidate("c", None, ("t",))], {"t": 6}))
    assert Counter(after.values()) == {"a": 2, "b": 2, "c": 2}
    assert sum(before[where] != after[where] for where in before) == 2


def test_cooperative_moves_take_two_rounds() -> None:
    counts = {"t": 4}
    a, b = Candidate("a", None, ("t",), parts("t", 0, 1, 2, 3), 1), Candidate("b", None, ("t",))
    first = assign(COOPERATIVE_STICKY, [a, b], counts)
    assert len(first["a"]) == 2 and first["b"] == []
    a = a._replace(owned=tuple(first["a"]), generation=2)
    b = b._replace(generation=2)
    second = assign(COOPERATIVE_STICKY, [a, b], counts)
    assert second["a"] == first["a"]
    assert owners(second).keys() == set(parts("t", 0, 1, 2, 3))


def test_of_two_who_claim_a_partition_the_later_generation_is_believed() -> None:
    a = Candidate("a", None, ("t",), parts("t", 0), 4)
    b = Candidate("b", None, ("t",), parts("t", 0, 1), 5)
    shares = assign(COOPERATIVE_STICKY, [a, b], {"t": 2})
    assert shares["a"] == [], "it lets go of what it thinks it has, before anybody is given it"
    assert shares["b"] == [*parts("t", 1)]
    assert owners(assign(STICKY, [a, b], {"t": 1})) == {parts("t", 0)[0]: "b"}


def test_whoever_may_have_little_is_served_first() -> None:
    members = [Candidate("a", None, ("t", "u")), Candidate("b", None, ("u",))]
    shares = assign(STICKY, members, {"t": 2, "u": 2})
    assert {member: len(share) for member, share in shares.items()} == {"a": 2, "b": 2}
    assert {where.topic for where in shares["b"]} == {"u"}


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Candidate], dict[str, int]]:
    counts = {topic: draw(st.integers(0, 6)) for topic in TOPICS}
    every = [where for topic, count in counts.items() for where in parts(topic, *range(count + 1))]
    members = []
    for number in range(draw(st.integers(1, 6))):
        topics = tuple(sorted(draw(st.sets(st.sampled_from(TOPICS)))))
        owned = tuple(draw(st.sets(st.sampled_from(every), max_size=5))) if every else ()
        instance = draw(st.sampled_from((None, f"i{number}")))
        generation = draw(st.integers(-1, 3))
        members.append(Candidate(f"m{number}", instance, topics, owned, generation))
    return members, counts


def wanted(members: Iterable[Candidate], counts: dict[str, int]) -> set[TopicPartition]:
    asked = {topic for each in members for topic in each.topics}
    return {where for topic in asked for where in parts(topic, *range(counts[topic]))}


@settings(deadline=None, max_examples=60)
@given(groups(), st.sampled_from([RANGE, STICKY]))
def test_every_partition_has_one_owner_who_asked_for_it(
    group: tuple[list[Candidate], dict[str, int]], name: str
) -> None:
    members, counts = group
    topics = {each.member_id: each.topics for each in members}
    found = owners(assign(name, members, counts))
    assert found.keys() == wanted(members, counts)
    assert all(where.topic in topics[member] for where, member in found.items())


@settings(deadline=None, max_examples=60)
@given(groups())
def test_no_single_move_would_make_it_more_even(
    group: tuple[list[Candidate], dict[str, int]],
) -> None:
    members, counts = group
    shares = assign(STICKY, members, counts)
    for row in members:
        for other in members:
            moveable = [w for w in shares[row.member_id] if w.topic in other.topics]
            fewer = len(shares[other.member_id]) + 1 < len(shares[row.member_id])
            assert not (moveable and fewer)


@settings(deadline=None, max_examples=60)
@given(groups())
def test_what_is_as_it_should_be_stays(group: tuple[list[Candidate], dict[str, int]]) -> None:
    members, counts = group
    shares = assign(STICKY, members, counts)
    settled = [row._replace(owned=tuple(shares[row.member_id]), generation=9) for row in members]
    again = assign(STICKY, settled, counts)
    assert owners(again) == owners(shares)
    assert owners(assign(COOPERATIVE_STICKY, settled, counts)) == owners(shares)


@settings(deadline=None, max_examples=60)
@given(groups())
def test_cooperative_members_agree_after_a_few_rounds_and_never_share_one(
    group: tuple[list[Candidate], dict[str, int]],
) -> None:
    members, counts = group
    # Nobody has what another has: so much the coordinator's generations see to.
    seen: set[TopicPartition] = set()
    for index, row in enumerate(members):
        owned = tuple(where for where in row.owned if where not in seen)
        seen.update(owned)
        members[index] = row._replace(owned=owned)
    for generation in range(10, 14):
        shares = assign(COOPERATIVE_STICKY, members, counts)
        for row in members:
            for where in shares[row.member_id]:
                assert all(where not in other.owned for other in members if other is not row)
        members = [
            row._replace(owned=tuple(shares[row.member_id]), generation=generation)
            for row in members
        ]
    assert owners(shares).keys() == wanted(members, counts)


@pytest.mark.parametrize("name", ASSIGNORS)
def test_what_a_member_says_is_what_its_leader_hears(name: str) -> None:
    owned = parts("t", 0, 3)
    said = JoinedMember("m", "i", metadata(name, ("t", "u"), owned, 5))
    heard = candidate(name, said)
    assert heard[:3] == ("m", "i", ("t", "u"))
    if name != RANGE:
        assert (heard.owned, heard.generation) == (owned, 5)


def test_members_of_other_clients_say_it_in_their_ways() -> None:
    owned = parts("t", 1)
    older = encode_member(Subscription(("t",), b"\0\0\0\7", owned), 1)
    heard = candidate(COOPERATIVE_STICKY, JoinedMember("m", None, older))
    assert (heard.owned, heard.generation) == (owned, 7), "the generation is the assignor's data"
    unsaid = encode_member(Subscription(("t",), b"", owned), 1)
    assert candidate(COOPERATIVE_STICKY, JoinedMember("m", None, unsaid)).generation == -1
    with pytest.raises(ProtocolError):
        candidate(RANGE, JoinedMember("m", None, b"\0\1\0\0\0\5"))
