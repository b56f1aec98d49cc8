"""Tests that clients bind positions, commits and lookups to topic ids, not to topic names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.client_world import ONE, OTHER_ID, TOPIC_ID, Asked, World, view

from broker_lite.client.consuming.fetch_collector import FetchCollector
from broker_lite.client.consuming.starting import Starts, starting_offsets
from broker_lite.client.fetch.fetch_engine import FetchEngine
from broker_lite.client.operations import group_requests, offset_requests
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.transport.steps import spawn
from broker_lite.config import ConsumerConfig
from broker_lite.errors import LogbusError, UnknownTopicIdError, UnknownTopicOrPartitionError
from broker_lite.model import NULL_TOPIC_ID, CommittedOffset, ListedOffset, TopicPartition
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls import cluster as cluster_calls
from broker_lite.wire.calls import groups
from broker_lite.wire.calls.offsets import (
    BytesAnswer,
    ListedPartition,
    ListedTopic,
    ListOffsetsResponse,
    OffsetsForBytesResponse,
    RecordTimesResponse,
    TimeAnswer,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
U0 = TopicPartition("u", 0)


class Group:
    """A broker with the offsets of one group; ``codes`` are the error codes of the next commits."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.codes: list[int] = []
        self.commits: list[Any] = []
        self.rows: tuple[groups.FetchedOffset, ...] = ()
        world.automatic[ApiKey.FIND_COORDINATOR] = self._reply(self._coordinator)
        world.automatic[ApiKey.OFFSET_COMMIT] = self._reply(self._commit)
        world.automatic[ApiKey.OFFSET_FETCH] = self._reply(self._fetch)

    def _reply(self, make: Callable[[Any], Any]) -> Callable[[Asked], None]:
        def reply(asked: Asked) -> None:
            self.world.asked.remove(asked)
            answer = make(asked.message)
            self.world.call_soon(lambda: asked.on_answer(answer))

        return reply

    def _coordinator(self, _: Any) -> Any:
        row = groups.FoundCoordinator("g", 1, "one", 1, 0, None)
        return groups.FindCoordinatorResponse(0, (row,))

    def _commit(self, request: groups.OffsetCommitRequest) -> Any:
        self.commits.append(request)
        code = self.codes.pop(0) if self.codes else 0
        topics = [
            groups.CommittedTopic(
                topic.name,
                tuple(
                    groups.CommittedPartition(row.partition_index, code if topic.name == "t" else 0)
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        ]
        return groups.OffsetCommitResponse(0, tuple(topics))

    def _fetch(self, _: groups.OffsetFetchRequest) -> Any:
        topic = groups.FetchedOffsetsTopic("t", self.rows)
        return groups.OffsetFetchResponse(0, (groups.FetchedOffsetsGroup("g", (topic,), 0),))


def outcome(world: World, operation: Any) -> Any:
    found: list[Any] = []
    spawn(world, operation, found.append)
    world.run(10_000)
    (result,) = found
    return result


def intake_of(
    world: World, cluster: Cluster
) -> tuple[FetchEngine, FetchCollector, list[ClusterView]]:
    views: list[ClusterView] = []
    engine = FetchEngine(
        world, cluster, ConsumerConfig(), on_fetched=lambda: None, on_view=views.append
    )
    return engine, FetchCollector(engine, skips_corrupt=False), views


def test_positions_to_commit_keep_the_topic_id_with_which_the_reader_started() -> None:
    world = World()
    cluster = Cluster((ONE,), world.now_ms, view=view())
    engine, collector, _ = intake_of(world, cluster)
    collector.begin({T0: 4})
    cluster.learn(view(topic_id=OTHER_ID), everything=True)
    collector.begin({T0: 9, T1: 0})
    assert collector.commitable() == {
        T0: CommittedOffset(9, topic_id=TOPIC_ID),
        T1: CommittedOffset(0, topic_id=TOPIC_ID),
    }
    assert collector.settled() == collector.commitable()
    assert engine.topic_ids == {"t": TOPIC_ID}


def test_commit_adds_missing_topic_ids_to_the_given_offsets() -> None:
    world = World()
    _, collector, _ = intake_of(world, Cluster((ONE,), world.now_ms, view=view()))
    collector.begin({T0: 0})
    assert collector.stamped({T0: 5, T1: CommittedOffset(6, 2, "m"), U0: 7}) == {
        T0: CommittedOffset(5, topic_id=TOPIC_ID),
        T1: CommittedOffset(6, 2, "m", TOPIC_ID),
        U0: CommittedOffset(7, topic_id=NULL_TOPIC_ID),
    }
    named = {T0: CommittedOffset(5, topic_id=OTHER_ID)}
    assert collector.stamped(named) == named


def test_partitions_of_a_recreated_topic_are_not_discovered_as_new() -> None:
    world = World()
    cluster = Cluster((ONE,), world.now_ms, view=view())
    engine, collector, views = intake_of(world, cluster)
    collector.begin({T0: 0})
    world.run()
    engine._renewed(view(partitions=3))
    engine._renewed(view(partitions=3, topic_id=OTHER_ID))
    assert [len(found.partitions_of("t")) for found in views] == [3, 0]


def test_offset_commit_request_has_the_id_of_each_topic() -> None:
    world = World()
    group = Group(world)
    cluster = Cluster((ONE,), world.now_ms, view=view())
    rows = {
        T0: CommittedOffset(1, 5, "m", TOPIC_ID),
        U0: CommittedOffset(2),
        T1: CommittedOffset(3, topic_id=TOPIC_ID),
    }
    operation = group_requests.commit_offsets(cluster, "g", rows, world.now + 1000)
    assert outcome(world, operation) == dict.fromkeys(rows)
    (request,) = group.commits
    assert [(topic.name, topic.topic_id) for topic in request.topics] == [
        ("t", TOPIC_ID),
        ("u", NULL_TOPIC_ID),
    ]
    assert [row.committed_offset for row in request.topics[0].partitions] == [1, 3]


@pytest.mark.parametrize("code", [100, 3])
def test_offset_commit_is_retried_until_the_coordinator_knows_the_topic(code: int) -> None:
    world = World()
    group = Group(world)
    group.codes = [code, code]
    cluster = Cluster((ONE,), world.now_ms, view=view())
    rows = {T0: CommittedOffset(1, topic_id=TOPIC_ID), U0: CommittedOffset(2)}
    operation = group_requests.commit_offsets(cluster, "g", rows, world.now + 5000)
    assert outcome(world, operation) == dict.fromkeys(rows)
    asked = [[topic.name for topic in request.topics] for request in group.commits]
    assert asked == [["t", "u"], ["t"], ["t"]], "only refused offsets are sent again"


@pytest.mark.parametrize(
    ("code", "kind"), [(100, UnknownTopicIdError), (3, UnknownTopicOrPartitionError)]
)
def test_offset_commit_that_fails_for_one_topic_succeeds_for_other_topics(
    code: int, kind: type[LogbusError]
) -> None:
    world = World()
    group = Group(world)
    group.codes = [code] * 100
    cluster = Cluster((ONE,), world.now_ms, view=view())
    rows = {T0: CommittedOffset(41, topic_id=TOPIC_ID), U0: CommittedOffset(2)}
    operation = group_requests.commit_offsets(cluster, "g", rows, world.now + 5000)
    found = outcome(world, operation)
    assert found[U0] is None
    assert isinstance(found[T0], kind)
    assert len(group.commits) == group_requests.COMMIT_ATTEMPTS
    if code == 100:
        assert f"offset 41 of t-0 belongs to the deleted topic (id {TOPIC_ID})" in found[T0].message


def test_committed_offsets_have_topic_id_and_commit_time() -> None:
    world = World()
    group = Group(world)
    group.rows = (
        groups.FetchedOffset(0, 5, 2, "m", 0, TOPIC_ID, 1234),
        groups.FetchedOffset(1, 6, 2, None, 0),
    )
    cluster = Cluster((ONE,), world.now_ms, view=view())
    operation = group_requests.committed(cluster, "g", None, world.now + 1000)
    assert outcome(world, operation) == {
        T0: CommittedOffset(5, 2, "m", TOPIC_ID, 1234),
        T1: CommittedOffset(6, 2),
    }


def test_consumer_does_not_start_at_a_committed_offset_of_another_topic_id() -> None:
    world = World()
    group = Group(world)
    cluster = Cluster((ONE,), world.now_ms, view=view())
    config = ConsumerConfig(start="earliest")

    def begin() -> Any:
        return outcome(world, starting_offsets(cluster, "g", [T0], config, world.now + 5000))

    group.rows = (groups.FetchedOffset(0, 5, 2, "m", 0, TOPIC_ID, 1234),)
    assert begin() == Starts({T0: 5}, {T0: 2}), "the start has the committed leader epoch"
    group.rows = (groups.FetchedOffset(0, 5, 2, "m", 0, OTHER_ID, 1234),)
    found = begin()
    assert isinstance(found, UnknownTopicIdError)
    assert "recreated" in found.message


def test_consumer_raises_unknown_topic_id_if_its_topic_is_recreated_during_the_start() -> None:
    world = World()
    Group(world)
    cluster = Cluster((ONE,), world.now_ms, view=view())

    def listed(asked: Asked) -> None:
        world.asked.remove(asked)
        cluster.learn(view(topic_id=OTHER_ID), everything=True)
        topic = ListedTopic("t", (ListedPartition(0, 0, -1, 0, 5),))
        world.call_soon(lambda: asked.on_answer(ListOffsetsResponse(0, (topic,))))

    world.automatic[ApiKey.LIST_OFFSETS] = listed
    config = ConsumerConfig(start="earliest")
    found = outcome(world, starting_offsets(cluster, None, [T0], config, world.now + 5000))
    assert isinstance(found, UnknownTopicIdError)


class MadeAgain:
    """A broker of topic ``t``, which was deleted and recreated with the topic id ``OTHER_ID``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: list[str] = []
        """The topic ids that clients requested."""
        world.automatic[ApiKey.METADATA] = lambda asked: self._reply(asked, self._metadata())
        world.automatic[ApiKey.OFFSETS_FOR_BYTES] = lambda asked: self._reply(
            asked, OffsetsForBytesResponse((BytesAnswer(self._code(asked), 7, 70),))
        )
        world.automatic[ApiKey.RECORD_TIMES] = lambda asked: self._reply(
            asked, RecordTimesResponse((TimeAnswer(self._code(asked), 7, 70),))
        )

    def _reply(self, asked: Asked, answer: Any) -> None:
        self.world.asked.remove(asked)
        self.world.call_soon(lambda: asked.on_answer(answer))

    def _code(self, asked: Asked) -> int:
        (row,) = asked.message.partitions
        self.asked.append(row.topic_id)
        return 0 if row.topic_id == OTHER_ID else UnknownTopicIdError.code

    def _metadata(self) -> Any:
        row = cluster_calls.MetadataPartition(0, 0, 1, 0, (1,), (1,), ())
        return cluster_calls.MetadataResponse(
            0,
            (cluster_calls.MetadataBroker(1, ONE.host, ONE.port, None),),
            "cluster",
            1,
            (cluster_calls.MetadataTopic(0, "t", OTHER_ID, False, (row,)),),
        )


def test_lookup_of_offsets_and_timestamps_by_topic_name_finds_the_recreated_topic() -> None:
    """Regression: with metadata from before the deletion, a client sent the deleted topic's id
    in every retry."""
    for ask, found in (
        (lambda c, by: offset_requests.offsets_for_bytes(c, {T0: (0, 9)}, by), (7, 70)),
        (lambda c, by: offset_requests.record_times(c, {T0: 0}, by), ListedOffset(7, 70)),
    ):
        world = World()
        broker = MadeAgain(world)
        cluster = Cluster((ONE,), world.now_ms, view=view())
        assert outcome(world, ask(cluster, world.now + 5000)) == {T0: found}
        assert broker.asked == [TOPIC_ID, OTHER_ID]


def test_offset_lookup_with_the_id_of_a_deleted_topic_refuses_the_recreated_topic() -> None:
    world = World()
    broker = MadeAgain(world)
    cluster = Cluster((ONE,), world.now_ms, view=view())

    def ask(topic_id: str) -> Any:
        operation = offset_requests.offsets_for_bytes(
            cluster, {T0: (3, 9)}, world.now + 5000, {"t": topic_id}
        )
        return outcome(world, operation)[T0]

    assert isinstance(ask(TOPIC_ID), UnknownTopicIdError)
    assert set(broker.asked) == {TOPIC_ID}
    assert ask(OTHER_ID) == (7, 70)
    cluster.learn(view(), everything=True)
    assert ask(OTHER_ID) == (7, 70), "the given topic id overrides the cached metadata"
