"""Tests of the topics of a group member: when changed topics make it rejoin its group.

The group leader watches the topics of all members.
"""

from __future__ import annotations

from broker_lite.client.membership.events import TopicFacts
from broker_lite.client.membership.topics import SubscribedTopics
from broker_lite.model import TopicPartition

A, B = TopicFacts("id-a", 2), TopicFacts("id-b", 1)


def test_topic_pattern_matches_only_whole_names_and_no_internal_topics() -> None:
    topics = SubscribedTopics((), "a.*|__x")
    assert topics.are_unknown and topics.watched is None
    assert topics.learn({"ab": A, "a": A, "ba": B, "__x": B})
    assert topics.names == ("a", "ab") and not topics.are_unknown
    assert not topics.learn({"ab": B, "a": A}), "the matching names did not change"
    assert topics.learn({"a": A})


def test_group_leader_watches_the_topics_of_all_members() -> None:
    topics = SubscribedTopics(("b", "a", "a"), None)
    assert topics.watched == topics.names == ("a", "b")
    topics.lead(("a", "c"), {"a": A}, assigns=True)
    assert topics.watched == ("a", "b", "c") and topics.partition_counts == {"a": 2}
    assert not topics.would_assign_otherwise({"a": A, "other": B})
    assert topics.would_assign_otherwise({"a": A, "c": B}), "the topic was created"
    assert topics.would_assign_otherwise({"a": A, "b": B}), (
        "the leader alone subscribes to topic b, which was created"
    )
    topics.stop_leading()
    assert not topics.would_assign_otherwise({}) and topics.partition_counts == {}


def test_group_leader_that_reassigns_no_partitions_keeps_the_old_topic_metadata() -> None:
    topics = SubscribedTopics(("a",), None)
    topics.learn({"a": A})
    grown = TopicFacts("id-a", 5)
    topics.lead(("a",), {"a": grown}, assigns=False)
    assert topics.partition_counts == {"a": 2} and topics.would_assign_otherwise({"a": grown})
    tp = TopicPartition("a", 0)
    assert topics.ids([tp, TopicPartition("new", 0)]) == {tp: "id-a"}
