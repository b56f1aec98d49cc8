"""Tests of CreateTopics, CreatePartitions and DeleteTopics in every version."""

from __future__ import annotations

from typing import Any

import pytest
from support.handler_world import World, run, struct, versions

from broker_lite.errors import (
    CompactionNotBuiltError,
    CoordinationUnavailableError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    NotControllerError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    wire_code,
)
from broker_lite.replication.topics import partitions_max
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import uuid_bytes


def topic(name: str, partitions: int = 1, factor: int = 1, **fields: Any) -> Any:
    fields = {"assignments": [], "configs": [], **fields}
    return struct(
        "CreateTopics", "CreatableTopic", name=name, num_partitions=partitions,
        replication_factor=factor, **fields,
    )  # fmt: skip


def setting(name: str, value: str | None) -> Any:
    return struct("CreateTopics", "CreatableTopic.CreatableTopicConfig", name=name, value=value)


def assigned(index: int, *broker_ids: int) -> Any:
    return struct(
        "CreateTopics", "CreatableTopic.CreatableReplicaAssignment", partition_index=index,
        broker_ids=list(broker_ids),
    )  # fmt: skip


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_create_topics_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(2)
        row = topic("logs", 3, configs=[setting("retention.ms", "60000")])
        answer = await world.ask("CreateTopics", version, topics=[row], timeout_ms=5000)
        (made,) = answer.topics
        assert (made.name, made.error_code, made.error_message) == ("logs", 0, None)
        snapshot = world.brokers[1].registry.snapshot
        view = snapshot.topics["logs"]
        assert len(view.partitions) == 3
        assert {part.replicas[0] for part in view.partitions} == {1, 2}
        assert dict(view.config) == {"retention.ms": "60000"}
        if version >= 5:
            assert (made.num_partitions, made.replication_factor) == (3, 1)
            settings = {each.name: each for each in made.configs}
            assert settings["retention.ms"].value == "60000"
            assert settings["retention.ms"].config_source == 1
            assert settings["segment.bytes"].config_source == 5
        if version >= 7:
            assert made.topic_id.bytes == uuid_bytes(view.topic_id)

    run(body)


def test_create_topics_takes_default_partition_and_replica_counts_from_the_broker_settings() -> (
    None
):
    async def body(world: World) -> None:
        await world.start(1, num_partitions=4)  # type: ignore[arg-type]
        answer = await world.ask("CreateTopics", 7, topics=[topic("t", -1, -1)], timeout_ms=5000)
        assert (answer.topics[0].num_partitions, answer.topics[0].replication_factor) == (4, 1)

    run(body)


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (topic("no spaces"), InvalidTopicError, "letters"),
    (topic(""), InvalidTopicError, "letters"),
    (topic(".."), InvalidTopicError, "'..'"),
    (topic("x" * 250), InvalidTopicError, "249"),
    (topic("t", 0), InvalidPartitionsError, "at least 1"),
    (topic("t", -2), InvalidPartitionsError, "at least 1"),
    (topic("t", 1, 0), InvalidReplicationFactorError, "at least 1"),
    (topic("t", 1, 2), InvalidReplicationFactorError, ""),
    (topic("t", 1_000_000, 1), InvalidPartitionsError,
     f"topic 't': 1000000 partitions; give 1 to {partitions_max('t', 1)} with replication"),
    (topic("there"), TopicExistsError, "there"),
    (topic("t", configs=[setting("retention.msx", "1")]), InvalidConfigError, "'retention.ms'"),
    (topic("t", configs=[setting("retention.ms", None)]), InvalidConfigError, "no value"),
    (topic("t", configs=[setting("retention.ms", "x")]), InvalidConfigError, "whole number"),
    (topic("t", configs=[setting("segment.bytes", "1")]), InvalidConfigError, "at least"),
    (topic("t", configs=[setting("cleanup.policy", "compact")]), CompactionNotBuiltError,
     "cleanup.policy=delete"),
    (topic("t", configs=[setting("cleanup.policy", "compact,delete")]), CompactionNotBuiltError,
     "cleanup.policy=delete"),
    (topic("t", 1, 1, assignments=[assigned(0, 1)]), InvalidRequestError, "not both"),
    (topic("t", -1, -1, assignments=[assigned(1, 1)]), InvalidReplicaAssignmentError, "from 0"),
    (topic("t", -1, -1, assignments=[assigned(0, 1), assigned(0, 1)]),
     InvalidReplicaAssignmentError, "once"),
    (topic("t", -1, -1, assignments=[assigned(0)]), InvalidReplicaAssignmentError, "one or more"),
    (topic("t", -1, -1, assignments=[assigned(0, 1, 1)]), InvalidReplicaAssignmentError,
     "each once"),
    (topic("t", -1, -1, assignments=[assigned(0, 9)]), InvalidReplicaAssignmentError, "9"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "error", "words"), REFUSED)
def test_create_topics_refuses_an_invalid_topic_with_the_reason(
    row: Any, error: type[Exception], words: str
) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("there")
        rows = [row, topic("good")]
        answer = await world.ask("CreateTopics", 7, topics=rows, timeout_ms=5000)
        bad, good = answer.topics
        assert bad.error_code == error.code  # type: ignore[attr-defined]
        assert words in bad.error_message
        assert good.error_code == 0
        assert set(world.brokers[1].registry.snapshot.topics) == {"there", "good"}

    run(body)


def test_create_topics_uses_the_replica_assignment_of_the_request() -> None:
    async def body(world: World) -> None:
        await world.start(2)
        row = topic("t", -1, -1, assignments=[assigned(1, 2), assigned(0, 2), assigned(2, 1)])
        answer = await world.ask("CreateTopics", 7, topics=[row], timeout_ms=5000)
        assert answer.topics[0].error_code == 0
        view = world.brokers[1].registry.snapshot.topics["t"]
        assert [part.replicas for part in view.partitions] == [(2,), (2,), (1,)]

    run(body)


def test_topic_named_twice_in_a_request_is_refused_and_answered_once() -> None:
    async def body(world: World) -> None:
        await world.start()
        rows = [topic("t"), topic("t", 2), topic("u")]
        answer = await world.ask("CreateTopics", 7, topics=rows, timeout_ms=5000)
        assert [(row.name, row.error_code) for row in answer.topics] == [
            ("t", InvalidRequestError.code),
            ("u", 0),
        ]

    run(body)


def test_create_topics_with_validate_only_creates_no_topic() -> None:
    async def body(world: World) -> None:
        await world.start()
        rows = [topic("t", 2), topic("u", 0)]
        answer = await world.ask(
            "CreateTopics", 7, topics=rows, timeout_ms=5000, validate_only=True
        )
        assert [row.error_code for row in answer.topics] == [0, InvalidPartitionsError.code]
        assert not world.brokers[1].registry.snapshot.topics

    run(body)


def test_topic_changes_at_a_broker_that_is_not_the_controller_get_not_controller() -> None:
    async def body(world: World) -> None:
        await world.start(2)
        answer = await world.ask("CreateTopics", 7, broker=2, topics=[topic("t")], timeout_ms=1)
        assert answer.topics[0].error_code == NotControllerError.code
        answer = await world.ask("DeleteTopics", 5, broker=2, topic_names=["t"], timeout_ms=1)
        assert answer.responses[0].error_code == NotControllerError.code
        row = struct("CreatePartitions", "CreatePartitionsTopic", name="t", count=2)
        answer = await world.ask("CreatePartitions", 3, broker=2, topics=[row], timeout_ms=1)
        assert answer.results[0].error_code == NotControllerError.code

    run(body)


def test_create_topics_while_zookeeper_is_down_fails_with_a_retriable_error() -> None:
    async def body(world: World) -> None:
        await world.start()
        world.service.stop()
        answer = await world.ask("CreateTopics", 7, topics=[topic("t")], timeout_ms=5000)
        assert answer.topics[0].error_code == wire_code(CoordinationUnavailableError()) == 15
        assert "ZooKeeper" in answer.topics[0].error_message

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
def test_delete_topics_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        made = await world.make_topic("a")
        await world.make_topic("b")
        if version >= 6:
            by = [{"name": None, "topic_id": made.topic_id}, {"name": "b"}, {"name": "none"}]
            rows = [struct("DeleteTopics", "DeleteTopicState", **fields) for fields in by]
            answer = await world.ask("DeleteTopics", version, topics=rows, timeout_ms=5000)
            assert answer.responses[0].topic_id == made.topic_id
        else:
            names = ["a", "b", "none"]
            answer = await world.ask("DeleteTopics", version, topic_names=names, timeout_ms=5000)
        unknown = UnknownTopicOrPartitionError.code
        assert [(row.name, row.error_code) for row in answer.responses] == [
            ("a", 0),
            ("b", 0),
            ("none", unknown),
        ]
        assert not world.brokers[1].registry.snapshot.topics

    run(body)


def test_delete_topics_refuses_an_unknown_topic_id() -> None:
    async def body(world: World) -> None:
        await world.start()
        made = await world.make_topic("a")
        row = struct("DeleteTopics", "DeleteTopicState", name=None, topic_id=made.topic_id)
        await world.ask("DeleteTopics", 6, topics=[row], timeout_ms=5000)
        await world.make_topic("a")
        answer = await world.ask("DeleteTopics", 6, topics=[row], timeout_ms=5000)
        assert answer.responses[0].error_code == UnknownTopicIdError.code
        assert answer.responses[0].topic_id == made.topic_id
        assert "a" in world.brokers[1].registry.snapshot.topics
        both = struct("DeleteTopics", "DeleteTopicState", name="a", topic_id=made.topic_id)
        answer = await world.ask("DeleteTopics", 6, topics=[both], timeout_ms=5000)
        assert answer.responses[0].error_code == InvalidRequestError.code

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
def test_create_partitions_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(2)
        await world.make_topic("a")
        await world.make_topic("b")
        path = "CreatePartitionsTopic"
        chosen = [struct("CreatePartitions", f"{path}.CreatePartitionsAssignment", broker_ids=[2])]
        rows = [
            struct("CreatePartitions", path, name="a", count=3, assignments=None),
            struct("CreatePartitions", path, name="b", count=2, assignments=chosen),
            struct("CreatePartitions", path, name="none", count=2, assignments=None),
        ]
        answer = await world.ask("CreatePartitions", version, topics=rows, timeout_ms=5000)
        assert [row.error_code for row in answer.results] == [
            0,
            0,
            UnknownTopicOrPartitionError.code,
        ]
        topics = world.brokers[1].registry.snapshot.topics
        assert len(topics["a"].partitions) == 3
        assert topics["b"].partitions[1].replicas == (2,)
        answer = await world.ask("CreatePartitions", version, topics=rows[:1], timeout_ms=5000)
        assert answer.results[0].error_code == InvalidPartitionsError.code
        twice = [rows[0], rows[0]]
        answer = await world.ask("CreatePartitions", version, topics=twice, timeout_ms=5000)
        assert {row.error_code for row in answer.results} == {InvalidRequestError.code}

    run(body)


def test_controller_refreshes_its_broker_list_before_it_refuses_a_replication_factor() -> None:
    """Regression: a topic of three replicas was refused right after three brokers had started.

    Each broker had reported that it was ready, but the controller had not yet read the last
    broker's registration.
    """

    async def body(world: World) -> None:
        await world.start(1)
        controller = world.brokers[1].registry._controller
        controller.brokers_changed = lambda suspects: None  # type: ignore[method-assign]
        await world.add(2)
        answer = await world.ask("CreateTopics", 7, topics=[topic("d", 1, -1)], timeout_ms=5000)
        assert answer.topics[0].replication_factor == 2
        await world.add(3)
        answer = await world.ask("CreateTopics", 7, topics=[topic("t", 1, 3)], timeout_ms=5000)
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        answer = await world.ask("CreateTopics", 7, topics=[topic("u", 1, 4)], timeout_ms=5000)
        assert answer.topics[0].error_code == InvalidReplicationFactorError.code
        assert "3 brokers are live (ids 1, 2, 3)" in answer.topics[0].error_message

    run(body)
