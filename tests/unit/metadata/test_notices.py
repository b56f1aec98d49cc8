"""Tests of the change notices in the znode /changes: their encoding, merging and limits.

Each metadata change appends a numbered notice that names the changed topics. A broker reads all
notices after the last one that it has seen, and merges them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker_lite.metadata import notices as n
from broker_lite.metadata.notices import Notice, NoticeContent, Notices, merge, states_changed
from broker_lite.model import LeaderAndIsr, ReplicaId, StateChange

ONE, TWO = ReplicaId(1, "D"), ReplicaId(2, "E")
STATE = LeaderAndIsr(2, 5, (TWO, ONE), 3, 7, 99)


def state(version: int) -> LeaderAndIsr:
    return dataclasses.replace(STATE, version=version)


def changes(topic: str, *versions: int) -> list[StateChange]:
    """Return one state change for each of ``versions``, for the partitions 0, 1, … of the topic."""
    return [StateChange(topic, at, state(version), "T") for at, version in enumerate(versions)]


def after(*news: NoticeContent) -> Notices:
    """Return the notices that a broker reads from the znode /changes after ``news`` was added."""
    notices = Notices(0, ())
    for each in news:
        notices = n.announce(notices, each).after
    data = n.encode_notices(notices.notices)
    return Notices(notices.sequence, n.decode_notices(data))


def test_change_notifications_are_encoded_to_their_recorded_bytes() -> None:
    states = states_changed([StateChange("b", 4, STATE, "T"), *changes("a", 1)])
    made = (
        Notice(3, NoticeContent({"t": None, "a": (0, 1)})),
        Notice(4, states),
        Notice(5, NoticeContent({})),
    )
    assert n.encode_notices(made) == (
        b'{"version":1,"changes":['
        b'{"sequence":3,"topics":{"a":[0,1],"t":null}},'
        b'{"sequence":4,"topics":{"a":[0],"b":[4]},"states":{"replicas":[[2,"E"],[1,"D"]],'
        b'"topics":{"a":[[1,2,5,99,3,0,1]],"b":[[7,2,5,99,3,0,1]]}}},'
        b'{"sequence":5,"topics":{}}]}'
    )


def test_merge_of_change_notifications_ignores_those_up_to_the_given_sequence_number() -> None:
    notices = after(
        n.topic_changed("old"),
        NoticeContent({"t": [0], "u": [1]}),
        NoticeContent({"t": [2], "u": None}),
        NoticeContent({"u": [3]}),
    )
    assert merge(notices, 1) == ({"t": {0: None, 2: None}, "u": None}, False, frozenset())
    assert merge(notices, 3) == ({"u": {3: None}}, False, frozenset())
    assert merge(notices, 4) == ({}, False, frozenset())


def test_merge_of_change_notifications_uses_the_last_one_of_each_partition() -> None:
    names_only = NoticeContent({"t": [1]})
    notices = after(states_changed(changes("t", 4, 9)), states_changed(changes("t", 5)), names_only)
    assert merge(notices, 0) == ({"t": {0: state(5), 1: None}}, False, frozenset())
    assert merge(notices, 2) == ({"t": {1: None}}, False, frozenset())
    again = after(names_only, states_changed(changes("t", 4, 9)))
    assert merge(again, 0) == ({"t": {0: state(4), 1: state(9)}}, False, frozenset())


def test_merged_change_notifications_omit_earlier_partition_states_of_a_recreated_topic() -> None:
    notices = after(
        states_changed(changes("t", 40)), n.topic_changed("t"), states_changed(changes("t", 1))
    )
    assert merge(notices, 0) == ({"t": None}, False, frozenset())
    assert merge(notices, 2) == ({"t": {0: state(1)}}, False, frozenset())


def test_merge_accepts_change_notifications_without_partition_states() -> None:
    """An older broker that rewrites /changes drops the partition states, so brokers read the states
    from their znodes.
    """
    notices = after(states_changed(changes("t", 4, 9)))
    rows = json.loads(n.encode_notices(notices.notices))["changes"]
    bare = [{key: row[key] for key in ("sequence", "topics")} for row in rows]
    data = json.dumps({"version": 1, "changes": bare}).encode()
    assert merge(Notices(1, n.decode_notices(data)), 0) == (
        {"t": {0: None, 1: None}},
        False,
        frozenset(),
    )


def test_change_notifications_are_not_merged_if_one_of_them_is_missing() -> None:
    four, five = Notice(4, n.topic_changed("t")), Notice(5, n.topic_changed("t"))
    assert merge(Notices(5, (four, five)), 2) is None
    assert merge(Notices(5, (Notice(3, NoticeContent({})), five)), 2) is None


def test_change_notifications_older_than_the_last_applied_one_are_not_merged() -> None:
    assert merge(after(n.topic_changed("t")), 2) is None


def test_change_notification_without_a_topic_means_a_change_of_brokers_or_settings() -> None:
    assert merge(after(n.CLUSTER_CHANGED), 0) == ({}, True, frozenset())


def kept_of(*news: NoticeContent) -> tuple[Notice, ...]:
    return after(*news).notices


def have_states(notices: Sequence[Notice]) -> list[bool]:
    return [notice.content.states is not None for notice in notices]


def test_oldest_change_notifications_are_dropped_beyond_the_limits_of_number_and_size() -> None:
    many = kept_of(*[n.topic_changed("t")] * 100)
    assert [notice.sequence for notice in many] == list(range(101 - n.KEPT_MAX, 101))
    large = [NoticeContent({"t" * 249: list(range(4000))})] * 5
    kept = kept_of(*large)
    assert [notice.sequence for notice in kept] == [3, 4, 5]
    assert len(n.encode_notices(kept)) < n.KEPT_BYTES_MAX
    huge = NoticeContent({f"{number:0200}": [1] for number in range(500)})
    assert kept_of(*large, huge) == (Notice(6, huge),)


def test_only_the_newest_change_notifications_include_partition_states() -> None:
    small = kept_of(*[states_changed(changes("t", 1))] * 20)
    assert have_states(small) == [False] * 12 + [True] * 8
    # A controller writes at most 500 states together. Large numbers make these states long.
    write = states_changed(
        StateChange(f"topic-{number // 100}", number % 100, large_state(number), "T")
        for number in range(500)
    )
    kept = kept_of(*[write] * 4)
    assert have_states(kept) == [False, False, True, True]
    assert len(n.encode_notices(kept)) < n.KEPT_BYTES_MAX
    # If the states of a single notice exceed the limit, the notice is kept without them.
    names = [StateChange(f"{number:0100}", 0, STATE, "T") for number in range(500)]
    assert have_states(kept_of(states_changed(names))) == [False]


def large_state(number: int) -> LeaderAndIsr:
    brokers = [1000 + (number + k) % 100 for k in range(3)]
    isr = tuple(ReplicaId(broker, f"{broker:022}") for broker in brokers)
    return LeaderAndIsr(brokers[0], 2_000, isr, 1_000, 5_000, 1 << 36)


REPLICAS = st.builds(ReplicaId, st.integers(0, 3), st.sampled_from(["D", "E", "F"]))
NUMBERS = st.integers(-1, 1 << 40)
STATES = st.builds(
    LeaderAndIsr, NUMBERS, NUMBERS, st.lists(REPLICAS, max_size=4).map(tuple), NUMBERS, NUMBERS
)


@given(st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), STATES, min_size=1))
def test_partition_states_in_change_notifications_survive_encoding_and_merge(
    states: dict[tuple[str, int], LeaderAndIsr],
) -> None:
    news = states_changed(StateChange(*tp, state, "T") for tp, state in states.items())
    found = merge(after(news), 0)
    assert found is not None
    assert {
        (topic, partition): state
        for topic, row in found.topics.items()
        for partition, state in (row or {}).items()
    } == states
