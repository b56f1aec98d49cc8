"""Tests of the range assignor of native groups, whose members coordinate through ZooKeeper, and of
the znode by which a consumer registers in its group. A consumer reads with one or more *streams*,
usually one for each thread.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counted_names import CountedName

from broker_lite.client.options import check_pattern
from broker_lite.config import ConsumerConfig
from broker_lite.errors import InvalidConfigError, InvalidGroupIdError
from broker_lite.metadata.znodes import NativeSubscription, OwnerZnode
from broker_lite.model import TopicPartition
from broker_lite.native.assignment import assign, covers
from broker_lite.native.session import consumer_name
from broker_lite.native.streams import NativeOptions, subscribe


def names(*topics: str, streams: int = 1) -> NativeSubscription:
    return NativeSubscription(topics, None, streams)


def counts(owners: dict[TopicPartition, OwnerZnode]) -> dict[str, int]:
    found: dict[str, int] = {}
    for owner in owners.values():
        found[owner.consumer] = found.get(owner.consumer, 0) + 1
    return found


def test_range_assignor_gives_one_partition_more_to_the_first_streams() -> None:
    owners = assign({"c": names("t"), "a": names("t"), "b": names("t")}, {"t": 4})
    assert [owners[TopicPartition("t", n)].consumer for n in range(4)] == ["a", "a", "b", "c"]


def test_range_assignor_divides_partitions_among_the_streams_of_all_consumers() -> None:
    owners = assign({"a": names("t", streams=2), "b": names("t")}, {"t": 5})
    assert [tuple(owners[TopicPartition("t", n)]) for n in range(5)] == [
        ("a", 0),
        ("a", 0),
        ("a", 1),
        ("a", 1),
        ("b", 0),
    ]


def test_partitions_of_a_topic_are_assigned_to_its_subscribers_only() -> None:
    members = {"a": names("t", "u"), "b": names("u"), "c": NativeSubscription((), "u.*", 1)}
    owners = assign(members, {"t": 2, "u": 3, "other": 9})
    assert counts(owners) == {"a": 3, "b": 1, "c": 1}
    assert all(tp.topic != "other" for tp in owners)


def test_message_streams_beyond_the_number_of_partitions_get_no_partition() -> None:
    assert counts(assign({name: names("t") for name in "abcd"}, {"t": 2})) == {"a": 1, "b": 1}
    assert assign({}, {"t": 2}) == {}


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 4), min_size=1),
    st.integers(0, 50),
)
def test_every_partition_has_one_owner_and_partition_counts_differ_by_at_most_one(
    streams: dict[str, int], partitions: int
) -> None:
    members = {name: names("t", streams=count) for name, count in streams.items()}
    owners = assign(members, {"t": partitions})
    assert sorted(owners) == [TopicPartition("t", n) for n in range(partitions)]
    shares = dict.fromkeys(((n, s) for n, c in streams.items() for s in range(c)), 0)
    for owner in owners.values():
        shares[tuple(owner)] += 1
    assert max(shares.values()) - min(shares.values()) <= 1
    assert assign(dict(reversed(members.items())), {"t": partitions}) == owners


def test_topics_are_matched_once_for_all_members_with_equal_subscriptions() -> None:
    """Regression: with 70 consumers of 5,000 topics, each change of the group blocked every
    consumer for 15 s, longer than its session timeout."""
    topics = tuple(CountedName(f"topic-{number}") for number in range(200))
    members = {str(number): names(*topics) for number in range(20)}
    CountedName.comparisons = 0
    assert len(assign(members, dict.fromkeys(topics, 1))) == len(topics)
    assert CountedName.comparisons < 2 * len(topics) ** 2


def test_pattern_subscriptions_match_topics() -> None:
    pattern = NativeSubscription((), "logs-.*|audit", 1)
    assert covers(pattern, "logs-a") and covers(pattern, "audit")
    assert not covers(pattern, "audit-2") and not covers(
        NativeSubscription((), ".*", 1), "__internal"
    )
    assert not covers(NativeSubscription((), "(", 1), "x")
    assert check_pattern("a+") == "a+"
    with pytest.raises(InvalidConfigError, match="not a regular expression"):
        check_pattern("a(")


def test_consumer_id_must_be_a_valid_znode_name() -> None:
    """Hyphens replace the characters that a znode's name may not have.

    With a character beyond U+FFFF, requests would fail as if ZooKeeper were unreachable.
    """
    for given_id, kept in {
        "my app/1": "my-app-1-host-",
        "ümlaut漢": "ümlaut漢-host-",
        "\U00020000a𝒳": "-a--host-",
        "\0\ud800": "---host-",
        "": "host-",
    }.items():
        name = consumer_name(given_id, "host")
        assert name.startswith(kept) and len(name) == len(kept) + 12, name
    assert consumer_name("a", "b") != consumer_name("a", "b")


def test_invalid_subscription_of_a_zk_based_group_is_refused_before_any_request() -> None:
    def registered(
        *topics: str, group: str = "g", pattern: str | None = None
    ) -> NativeSubscription:
        return subscribe(NativeOptions(topics, pattern, group, None, 6000, ConsumerConfig()))

    assert registered("𝒳" * 10, group="𝒳").topics == ("𝒳" * 10,)
    with pytest.raises(InvalidGroupIdError, match="surrogate"):
        registered("t", group="\udcff")
    with pytest.raises(InvalidConfigError, match="surrogate"):
        registered(pattern="\udcff.*")
    for wide in (registered(pattern="a" * 400_000), registered(*map(str, range(40_000)))):
        assert wide.streams == 1
    with pytest.raises(InvalidConfigError, match=r"600\d+ bytes, more than 524288"):
        registered(pattern="a" * 600_000)
    with pytest.raises(InvalidConfigError, match="90000 topics"):
        registered(*map(str, range(90_000)))
