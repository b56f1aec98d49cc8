"""Tests of the APIs for elections, reassignments and broker removal in every version."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.handler_world import World, context_of, run, struct, versions

from broker_lite.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    NotControllerError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import PartitionView, ReplicaId, StateChange
from broker_lite.server.handlers import unregister_broker
from broker_lite.server.network.access import broker_client_id
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.replicas import UnregisterBrokerRequest

ELECT, ALTER, LIST = "ElectLeaders", "AlterPartitionReassignments", "ListPartitionReassignments"


async def make(world: World, name: str, *rows: list[int]) -> None:
    """Create topic t; each of ``rows`` lists the replicas of one partition."""
    assignments = [
        struct(
            "CreateTopics",
            "CreatableTopic.CreatableReplicaAssignment",
            partition_index=index,
            broker_ids=row,
        )
        for index, row in enumerate(rows)
    ]
    topic = struct(
        "CreateTopics",
        "CreatableTopic",
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=assignments,
        configs=[],
    )
    answer = await world.ask("CreateTopics", 7, topics=[topic], timeout_ms=5000)
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message


def view_of(world: World, name: str, partition: int = 0) -> PartitionView:
    view = world.brokers[1].registry.snapshot.partition(name, partition)
    assert view is not None
    return view


async def isr_becomes(world: World, name: str, *broker_ids: int) -> None:
    """Set the ISR of partition 0, as the partition's leader would."""
    registry = world.brokers[1].registry
    topic = registry.snapshot.topics[name]
    state = topic.partitions[0].state
    isr = tuple(
        ReplicaId(number, registry.snapshot.brokers[number].directory_id) for number in broker_ids
    )
    changed = dataclasses.replace(state, isr=isr)
    [outcome] = await registry.write_states([StateChange(name, 0, changed, topic.topic_id)])
    assert outcome is not None
    await registry.wait_visible(lambda now: now.partition(name, 0).state.version >= outcome.version)  # type: ignore[union-attr]


def named(**partitions: list[int]) -> list[Any]:
    return [
        struct(ELECT, "TopicPartitions", topic=name, partitions=row)
        for name, row in partitions.items()
    ]


def moves(name: str, **targets: list[int] | None) -> list[Any]:
    """Return a reassignment of a topic; ``p0=[1, 2]`` are the target replicas of partition 0."""
    rows = [
        struct(
            ALTER,
            "ReassignableTopic.ReassignablePartition",
            partition_index=int(word[1:]),
            replicas=row,
        )
        for word, row in targets.items()
    ]
    return [struct(ALTER, "ReassignableTopic", name=name, partitions=rows)]


def elected(answer: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, row.partition_id): row.error_code
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }


def altered(answer: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, row.partition_index): row.error_code
        for topic in answer.responses
        for row in topic.partitions
    }


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
def test_elect_leaders_elects_preferred_leaders(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(2)
        await make(world, "t", [1, 2], [2, 1])
        await world.ask(ALTER, 1, topics=moves("t", p0=[2, 1]))
        assert view_of(world, "t").state.leader == 1
        wanted = named(t=[0, 1, 7], u=[0])
        answer = await world.ask(ELECT, version, topic_partitions=wanted, timeout_ms=5000)
        assert elected(answer) == {
            ("t", 0): 0,
            ("t", 1): ElectionNotNeededError.code,
            ("t", 7): UnknownTopicOrPartitionError.code,
            ("u", 0): UnknownTopicOrPartitionError.code,
        }
        assert view_of(world, "t").state.leader == 2
        # The response to a request for all partitions lists only attempted elections.
        await world.ask(ALTER, 1, topics=moves("t", p1=[1, 2]))
        answer = await world.ask(ELECT, version, topic_partitions=None, timeout_ms=5000)
        assert elected(answer) == {("t", 1): 0}

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
def test_elect_leaders_request_to_a_broker_that_is_not_the_controller_gets_not_controller(
    version: int,
) -> None:
    async def body(world: World) -> None:
        await world.start(2)
        await make(world, "t", [1])
        wanted = named(t=[0])
        answer = await world.ask(ELECT, version, broker=2, topic_partitions=wanted, timeout_ms=1)
        if version == 0:
            assert elected(answer) == {("t", 0): NotControllerError.code}
        else:
            assert answer.error_code == NotControllerError.code
            assert elected(answer) == {}

    run(body)


def test_elect_leaders_with_an_unknown_election_type_is_refused() -> None:
    async def body(world: World) -> None:
        await world.start()
        answer = await world.ask(ELECT, 2, election_type=7, topic_partitions=None, timeout_ms=1)
        assert answer.error_code == InvalidRequestError.code

    run(body)


def test_unclean_election_needs_a_partition_without_a_leader() -> None:
    async def body(world: World) -> None:
        await world.start(3)
        await make(world, "t", [2, 3])
        asked: dict[str, Any] = {"election_type": 1, "topic_partitions": named(t=[0])}
        answer = await world.ask(ELECT, 2, **asked, timeout_ms=5000)
        assert elected(answer) == {("t", 0): ElectionNotNeededError.code}
        await isr_becomes(world, "t", 2)
        await world.brokers[2].registry.close()
        registry = world.brokers[1].registry
        await registry.wait_visible(lambda now: now.partition("t", 0).state.leader == -1)  # type: ignore[union-attr]
        answer = await world.ask(ELECT, 2, **asked, timeout_ms=5000)
        assert elected(answer) == {("t", 0): 0}
        view = view_of(world, "t")
        assert view.state.leader == 3
        assert [replica.broker_id for replica in view.state.isr] == [3]
        await world.brokers[3].registry.close()
        await registry.wait_visible(lambda now: now.partition("t", 0).state.leader == -1)  # type: ignore[union-attr]
        answer = await world.ask(ELECT, 2, **asked, timeout_ms=5000)
        assert elected(answer) == {("t", 0): EligibleLeadersNotAvailableError.code}

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
def test_reassignments_are_begun_and_listed(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(3)
        await make(world, "t", [1, 2], [1, 2])
        await make(world, "u", [3])
        answer = await world.ask(
            ALTER, version, topics=moves("t", p0=[2, 3], p1=[9, 1], p7=[1, 2]), timeout_ms=5000
        )
        assert answer.error_code == 0
        assert altered(answer) == {
            ("t", 0): 0,
            ("t", 1): InvalidReplicaAssignmentError.code,
            ("t", 7): UnknownTopicOrPartitionError.code,
        }
        listed = await world.ask(LIST, 0, broker=2, topics=None, timeout_ms=5000)
        [topic] = listed.topics
        [row] = topic.partitions
        assert (topic.name, row.partition_index) == ("t", 0)
        found = (row.replicas, row.adding_replicas, row.removing_replicas)
        assert found == ([2, 3, 1], [3], [1])
        some = struct(
            LIST, "ListPartitionReassignmentsTopics", name="t", partition_indexes=[1, 0, 99]
        )
        none = struct(LIST, "ListPartitionReassignmentsTopics", name="x", partition_indexes=[0])
        listed = await world.ask(LIST, 0, topics=[some, none], timeout_ms=5000)
        assert [row.partition_index for row in listed.topics[0].partitions] == [0]
        await isr_becomes(world, "t", 1, 2, 3)
        registry = world.brokers[1].registry
        await registry.wait_visible(lambda now: now.partition("t", 0).replicas == (2, 3))  # type: ignore[union-attr]
        listed = await world.ask(LIST, 0, topics=None, timeout_ms=5000)
        assert listed.topics == []

    run(body)


def test_reassignment_can_be_cancelled() -> None:
    async def body(world: World) -> None:
        await world.start(3)
        await make(world, "t", [1, 2])
        answer = await world.ask(ALTER, 1, topics=moves("t", p0=None))
        assert altered(answer) == {("t", 0): NoReassignmentInProgressError.code}
        await world.ask(ALTER, 1, topics=moves("t", p0=[3]))
        answer = await world.ask(ALTER, 1, topics=moves("t", p0=None))
        assert altered(answer) == {("t", 0): 0}
        assert view_of(world, "t").replicas == (1, 2)

    run(body)


def test_reassignment_may_not_change_the_replication_factor_if_the_request_forbids_it() -> None:
    async def body(world: World) -> None:
        await world.start(3)
        await make(world, "t", [1, 2])
        asked: dict[str, Any] = {"allow_replication_factor_change": False}
        answer = await world.ask(ALTER, 1, topics=moves("t", p0=[1, 2, 3]), **asked)
        assert altered(answer) == {("t", 0): InvalidReplicationFactorError.code}
        assert not answer.allow_replication_factor_change
        answer = await world.ask(ALTER, 1, topics=moves("t", p0=[1, 3]), **asked)
        assert altered(answer) == {("t", 0): 0}

    run(body)


def test_reassignment_request_to_a_broker_that_is_not_the_controller_gets_not_controller() -> None:
    async def body(world: World) -> None:
        await world.start(2)
        await make(world, "t", [1])
        answer = await world.ask(ALTER, 1, broker=2, topics=moves("t", p0=[2]), timeout_ms=1)
        assert answer.error_code == NotControllerError.code
        assert altered(answer) == {}
        twice = moves("t", p0=[2]) + moves("t", p0=[1])
        answer = await world.ask(ALTER, 1, topics=twice)
        assert altered(answer) == {("t", 0): InvalidRequestError.code}

    run(body)


def test_only_a_stopped_broker_without_replicas_can_be_unregistered() -> None:
    async def body(world: World) -> None:
        await world.start(2)
        await make(world, "t", [1, 2])

        async def retire(broker_id: int) -> tuple[int, str | None]:
            header = context_of(ApiKey.UNREGISTER_BROKER, 0, "c")
            request = UnregisterBrokerRequest(broker_id)
            answer = await unregister_broker.handle(world.brokers[1], header, request)
            return answer.error_code, answer.error_message

        code, text = await retire(2)
        assert code == InvalidRequestError.code and "running" in str(text)
        await world.brokers[2].registry.close()
        registry = world.brokers[1].registry
        await registry.wait_visible(lambda now: 2 not in now.brokers)
        code, text = await retire(2)
        assert code == InvalidRequestError.code and "t-0" in str(text)
        await world.ask(ALTER, 1, topics=moves("t", p0=[1]))
        assert await retire(2) == (0, None)
        code, _ = await retire(2)
        assert code == 102

    run(body)


def test_request_that_another_broker_forwarded_is_not_forwarded_again() -> None:
    async def body(world: World) -> None:
        await world.start(2)
        header = context_of(ApiKey.UNREGISTER_BROKER, 0, broker_client_id(1))
        answer = await unregister_broker.handle(
            world.brokers[2], header, UnregisterBrokerRequest(1)
        )
        assert answer.error_code == NotControllerError.code

    run(body)
