"""Tests of the client's cached metadata, and of its errors for partitions without a leader."""

from __future__ import annotations

import dataclasses

import pytest
from support.client_world import view

from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.operations.requests import view_of
from broker_lite.errors import InvalidTopicError, LeaderNotAvailableError
from broker_lite.model import NULL_TOPIC_ID, Endpoint, TopicPartition
from broker_lite.wire.calls.cluster import MetadataResponse, MetadataTopic

T0 = TopicPartition("t", 0)


def why(found: ClusterView) -> str:
    cluster = Cluster((Endpoint("one", 1),), lambda: 0.0)
    cluster.learn(found, everything=True)
    with pytest.raises(LeaderNotAvailableError) as caught:
        cluster.leader(TopicPartition("t", 0))
    return caught.value.message


def with_isr(*isr: int) -> ClusterView:
    found = view(leaders=(-1,))
    topic = found.topics["t"]
    rows = tuple(
        dataclasses.replace(row, isr=isr, error=LeaderNotAvailableError())
        for row in topic.partitions
    )
    return dataclasses.replace(found, topics={"t": dataclasses.replace(topic, partitions=rows)})


def test_leaderless_error_names_the_leader_that_is_down() -> None:
    assert why(view(leaders=(9,))) == (
        "t-0 has no leader: broker 9, which led it, is down (alive: 1, 2); "
        "start it, or wait until another in-sync replica is elected"
    )


def test_leaderless_error_names_the_in_sync_replica_to_start() -> None:
    message = why(with_isr(3))
    assert "every in-sync replica is down: broker 3 (alive: 1, 2); start it." in message
    assert "unclean.leader.election.enable=true" in message
    assert "[LOGBUS_LEADER_NOT_AVAILABLE] no in-sync replica of the partition" in message


def test_no_leader_error_advises_to_see_the_controller_log_if_a_replica_is_alive() -> None:
    assert "alive, but none was elected yet; if it stays so, see the log of the controller" in why(
        with_isr(1)
    )


def test_stale_metadata_does_not_restore_a_deposed_leader() -> None:
    cluster = Cluster((), lambda: 0.0, view=view(leaders=(2,), leader_epoch=6))
    cluster.learn(view(leaders=(1,), leader_epoch=5), everything=False)
    assert cluster.view.partition(T0) == view(leaders=(2,), leader_epoch=6).partition(T0)
    other = view(leaders=(1,), leader_epoch=0, topic_id="AAAAAAAAAAAAAAAAAAAAAg")
    assert cluster.learn(other, everything=True) == other


def test_request_after_a_failed_request_goes_to_another_broker() -> None:
    one, two = Endpoint("a", 1), Endpoint("b", 2)
    cluster = Cluster((one, two), lambda: 0.0)
    cluster.ask_another()
    assert cluster.candidates() == [two, one]


def test_stale_metadata_does_not_remove_added_partitions() -> None:
    cluster = Cluster((), lambda: 0.0, view=view())
    cluster.learn(view(partitions=1), everything=False)
    assert cluster.view.partitions_of("t") == (T0, TopicPartition("t", 1))
    other = view(partitions=1, topic_id="AAAAAAAAAAAAAAAAAAAAAg")
    assert cluster.learn(other, everything=True).partitions_of("t") == (T0,)


def test_error_for_an_invalid_topic_name_says_which_names_are_valid() -> None:
    """Regression: the error's whole text was "INVALID TOPIC EXCEPTION"."""
    topic = MetadataTopic(InvalidTopicError.code, "a b", NULL_TOPIC_ID, False, ())
    error = view_of(MetadataResponse(0, (), "c", 1, (topic,))).topics["a b"].error
    assert isinstance(error, InvalidTopicError)
    assert error.message.startswith("topic name 'a b': give 1 to 249 letters, digits,")
