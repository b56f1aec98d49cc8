"""Tests of the assignors of groups: one owner for each partition, balanced shares, few moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counted_names import CountedName

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
    found = [(tp, member) for member, share in shares.items() for tp in share]
    assert len(dict(found)) == len(found), "no partition has two owners"
    return dict(found)


def test_range_assignor_orders_static_members_first() -> None:
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


def test_sticky_assignor_moves_only_the_partitions_that_a_new_member_gets() -> None:
    old = [
        Candidate("a", None, ("t",), parts("t", 0, 2, 4), 3),
        Candidate("b", None, ("t",), parts("t", 1, 3, 5), 3),
    ]
    before = owners(assign(STICKY, old, {"t": 6}))
    assert before == {tp: row.member_id for row in old for tp in row.owned}
    after = owners(assign(STICKY, [*old, Candidate("c", None, ("t",))], {"t": 6}))
    assert Counter(after.values()) == {"a": 2, "b": 2, "c": 2}
    assert sum(before[tp] != after[tp] for tp in before) == 2


def test_cooperative_assignor_moves_a_partition_in_two_rebalances() -> None:
    counts = {"t": 4}
    a, b = Candidate("a", None, ("t",), parts("t", 0, 1, 2, 3), 1), Candidate("b", None, ("t",))
    first = assign(COOPERATIVE_STICKY, [a, b], counts)
    assert len(first["a"]) == 2 and first["b"] == []
    a = a._replace(owned=tuple(first["a"]), generation=2)
    b = b._replace(generation=2)
    second = assign(COOPERATIVE_STICKY, [a, b], counts)
    assert second["a"] == first["a"]
    assert owners(second).keys() == set(parts("t", 0, 1, 2, 3))


def test_partition_that_two_members_report_belongs_to_the_member_of_the_later_generation() -> None:
    a = Candidate("a", None, ("t",), parts("t", 0), 4)
    b = Candidate("b", None, ("t",), parts("t", 0, 1), 5)
    shares = assign(COOPERATIVE_STICKY, [a, b], {"t": 2})
    assert shares["a"] == [], (
        "a member releases the partitions that it reports before another member gets them"
    )
    assert shares["b"] == [*parts("t", 1)]
    assert owners(assign(STICKY, [a, b], {"t": 1})) == {parts("t", 0)[0]: "b"}


def test_topics_with_few_subscribers_are_assigned_first() -> None:
    members = [Candidate("a", None, ("t", "u")), Candidate("b", None, ("u",))]
    shares = assign(STICKY, members, {"t": 2, "u": 2})
    assert {member: len(share) for member, share in shares.items()} == {"a": 2, "b": 2}
    assert {tp.topic for tp in shares["b"]} == {"u"}


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Candidate], dict[str, int]]:
    counts = {topic: draw(st.integers(0, 6)) for topic in TOPICS}
    every = [tp for topic, count in counts.items() for tp in parts(topic, *range(count + 1))]
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
    return {tp for topic in asked for tp in parts(topic, *range(counts[topic]))}


@settings(deadline=None, max_examples=60)
@given(groups(), st.sampled_from([RANGE, STICKY]))
def test_every_partition_has_exactly_one_subscribed_owner(
    group: tuple[list[Candidate], dict[str, int]], name: str
) -> None:
    members, counts = group
    topics = {each.member_id: each.topics for each in members}
    found = owners(assign(name, members, counts))
    assert found.keys() == wanted(members, counts)
    assert all(tp.topic in topics[member] for tp, member in found.items())


@settings(deadline=None, max_examples=60)
@given(groups())
def test_balance_of_the_sticky_assignor_cannot_be_improved_by_moving_one_partition(
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
def test_sticky_assignor_keeps_an_assignment_that_it_made_before(
    group: tuple[list[Candidate], dict[str, int]],
) -> None:
    members, counts = group
    shares = assign(STICKY, members, counts)
    settled = [row._replace(owned=tuple(shares[row.member_id]), generation=9) for row in members]
    again = assign(STICKY, settled, counts)
    assert owners(again) == owners(shares)
    assert owners(assign(COOPERATIVE_STICKY, settled, counts)) == owners(shares)


@settings(deadline=None, max_examples=60)
@given(groups())
def test_repeated_cooperative_rebalances_end_with_one_owner_for_each_partition(
    group: tuple[list[Candidate], dict[str, int]],
) -> None:
    members, counts = group
    # Let no two members own the same partition, as the coordinator's generations guarantee.
    seen: set[TopicPartition] = set()
    for index, row in enumerate(members):
        owned = tuple(tp for tp in row.owned if tp not in seen)
        seen.update(owned)
        members[index] = row._replace(owned=owned)
    for generation in range(10, 14):
        shares = assign(COOPERATIVE_STICKY, members, counts)
        for row in members:
            for tp in shares[row.member_id]:
                assert all(tp not in other.owned for other in members if other is not row)
        members = [
            row._replace(owned=tuple(shares[row.member_id]), generation=generation)
            for row in members
        ]
    assert owners(shares).keys() == wanted(members, counts)


@pytest.mark.parametrize("name", ASSIGNORS)
def test_group_leader_decodes_the_metadata_of_logbus_members(name: str) -> None:
    owned = parts("t", 0, 3)
    said = JoinedMember("m", "i", metadata(name, ("t", "u"), owned, 5))
    heard = candidate(name, said)
    assert heard[:3] == ("m", "i", ("t", "u"))
    if name != RANGE:
        assert (heard.owned, heard.generation) == (owned, 5)


def test_group_leader_decodes_the_subscriptions_of_other_kafka_clients() -> None:
    owned = parts("t", 1)
    older = encode_member(Subscription(("t",), b"\0\0\0\7", owned), 1)
    heard = candidate(COOPERATIVE_STICKY, JoinedMember("m", None, older))
    assert (heard.owned, heard.generation) == (owned, 7), (
        "the user data of the assignor holds the generation"
    )
    unsaid = encode_member(Subscription(("t",), b"", owned), 1)
    assert candidate(COOPERATIVE_STICKY, JoinedMember("m", None, unsaid)).generation == -1
    with pytest.raises(ProtocolError):
        candidate(RANGE, JoinedMember("m", None, b"\0\1\0\0\0\5"))


@pytest.mark.parametrize("name", ASSIGNORS)
def test_assignment_needs_at_most_two_topic_comparisons_per_member_and_topic(name: str) -> None:
    """Regression: with 10,000 topics, the assignment took the leader longer than its session
    timeout, so that the group never became stable."""
    topics = tuple(CountedName(f"topic-{number}") for number in range(200))
    owned = [tuple(TopicPartition(topic, 0) for topic in topics[first::20]) for first in range(20)]
    members = [Candidate(str(at), None, topics, rows, 1) for at, rows in enumerate(owned)]
    CountedName.comparisons = 0
    assert len(owners(assign(name, members, dict.fromkeys(topics, 1)))) == len(topics)
    assert CountedName.comparisons < 2 * len(members) * len(topics)
