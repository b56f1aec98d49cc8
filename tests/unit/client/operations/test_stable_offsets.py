"""Tests of KIP-447: a reader starts only at stable offsets.

An offset is unstable while an open transaction is about to commit another offset of the group.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.client_world import ONE, TOPIC_ID, Asked, World, view

from broker_lite.client.consuming.starting import Starts, starting_offsets
from broker_lite.client.membership.beginning import JoinSnapshot, beginnings
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import spawn
from broker_lite.config import ConsumerConfig
from broker_lite.errors import UnstableOffsetCommitError
from broker_lite.model import TopicPartition
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls import groups

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STABLE = (
    groups.FetchedOffset(0, 7, -1, "", 0, TOPIC_ID, 1),
    groups.FetchedOffset(1, 8, -1, "", 0, TOPIC_ID, 1),
)
UNSTABLE = (STABLE[0], groups.FetchedOffset(1, -1, -1, "", UnstableOffsetCommitError.code))


class Group:
    """A group coordinator with an open transaction that ends after ``unstable`` OffsetFetch
    requests."""

    def __init__(self, world: World, unstable: int) -> None:
        self.world = world
        self.unstable = unstable
        self.requests: list[Any] = []
        world.automatic[ApiKey.FIND_COORDINATOR] = self.find
        world.automatic[ApiKey.OFFSET_FETCH] = self.fetch

    def find(self, asked: Asked) -> None:
        row = groups.FoundCoordinator("g", 1, "one", 1, 0, None)
        self._answer(asked, groups.FindCoordinatorResponse(0, (row,)))

    def fetch(self, asked: Asked) -> None:
        self.requests.append(asked.message)
        rows = STABLE
        if asked.message.require_stable and len(self.requests) <= self.unstable:
            rows = UNSTABLE
        topic = groups.FetchedOffsetsTopic("t", rows)
        self._answer(
            asked,
            groups.OffsetFetchResponse(0, (groups.FetchedOffsetsGroup("g", (topic,), 0),)),
        )

    def _answer(self, asked: Asked, response: Any) -> None:
        self.world.asked.remove(asked)
        self.world.call_soon(lambda: asked.on_answer(response))


def outcome(world: World, operation: Any) -> Any:
    found: list[Any] = []
    spawn(world, operation, found.append)
    world.run(60_000)
    (result,) = found
    return result


def member(unstable: int, isolation: str = "read_committed") -> tuple[Any, Group]:
    world = World()
    group = Group(world, unstable)
    cluster = Cluster((ONE,), world.now_ms, view=view())
    config = ConsumerConfig(isolation_level=isolation, start="earliest")
    snapshot = JoinSnapshot({"t": 2}, {}, {"t": TOPIC_ID})
    operation = beginnings(
        cluster,
        "g",
        [T0, T1],
        snapshot=snapshot,
        config=config,
        deadline_ms=world.now_ms() + 30_000,
    )
    return outcome(world, operation), group


def test_group_member_waits_until_the_transaction_with_a_pending_offset_has_ended() -> None:
    begun, group = member(unstable=3)
    assert begun.starts.offsets == {T0: 7, T1: 8}
    assert len(group.requests) == 4


def test_group_member_reads_its_other_partitions_while_a_transaction_stays_open() -> None:
    begun, _ = member(unstable=1000)
    assert begun.starts.offsets == {T0: 7}


def test_read_uncommitted_reader_does_not_wait_for_stable_offsets() -> None:
    begun, group = member(unstable=1000, isolation="read_uncommitted")
    assert begun.starts.offsets == {T0: 7, T1: 8}
    assert [row.require_stable for row in group.requests] == [False]


@pytest.mark.parametrize("unstable", [3, 1000])
def test_consumer_without_membership_waits_for_stable_offsets_until_its_deadline(
    unstable: int,
) -> None:
    world = World()
    Group(world, unstable)
    cluster = Cluster((ONE,), world.now_ms, view=view())
    deadline_ms = world.now_ms() + 5000
    started = outcome(
        world, starting_offsets(cluster, "g", [T0, T1], ConsumerConfig(), deadline_ms)
    )
    if unstable == 3:
        assert started == Starts({T0: 7, T1: 8}, {})
    else:
        assert isinstance(started, UnstableOffsetCommitError)
        assert "t-1" in started.message
