"""Tests of Metadata requests that wait for an election, after a broker lost a leader's
connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.handler_world import World, run, struct

from broker_lite.server.cluster.registry import ELECTION_S, Registry
from broker_lite.server.handlers.metadata import NOTICE_S


async def start(world: World) -> tuple[Registry, int]:
    """Start brokers 1 to 3 and topic "t", with broker 3 as leader and broker 2 as follower.

    Return the registry of broker 2, which holds its metadata, and the broker epoch of broker 3.
    """
    await world.start(3)
    assigned = struct(
        "CreateTopics", "CreatableTopic.CreatableReplicaAssignment", partition_index=0,
        broker_ids=[3, 2],
    )  # fmt: skip
    row = struct(
        "CreateTopics", "CreatableTopic", name="t", num_partitions=-1, replication_factor=-1,
        assignments=[assigned], configs=[],
    )  # fmt: skip
    await world.ask("CreateTopics", 7, topics=[row], timeout_ms=5000)
    registry = world.brokers[2].registry
    while "t" not in registry.snapshot.topics:
        await asyncio.sleep(0.01)
    return registry, registry.snapshot.brokers[3].broker_epoch


async def leader(world: World) -> int:
    """Return the leader of t-0 in broker 2's answer to a request for all topics."""
    (topic,) = (await world.ask("Metadata", 12, broker=2, topics=None)).topics
    found: int = topic.partitions[0].leader_id
    return found


def by_name(topic_id: Any) -> list[Any]:
    return [struct("Metadata", "MetadataRequestTopic", topic_id=None, name="t")]


def by_id(topic_id: Any) -> list[Any]:
    return [struct("Metadata", "MetadataRequestTopic", topic_id=topic_id, name=None)]


def everything(topic_id: Any) -> None:
    return None


@pytest.mark.parametrize("wanted", [by_name, by_id, everything])
def test_metadata_request_waits_for_the_next_leader_after_the_connection_to_a_leader_broke(
    wanted: Callable[[Any], Any],
) -> None:
    async def body(world: World) -> None:
        registry, epoch = await start(world)
        (topic,) = (await world.ask("Metadata", 12, broker=2, topics=by_name(None))).topics
        registry.lost(3, epoch)
        asking = asyncio.ensure_future(
            world.ask("Metadata", 12, broker=2, topics=wanted(topic.topic_id))
        )
        await asyncio.sleep(0.1)
        assert not asking.done()
        # Brokers 1 (the controller) and 2 find the port of broker 3 closed.
        for number in (1, 2):
            world.brokers[number].registry.suspect(3, epoch)
        (topic,) = (await asking).topics
        assert (topic.partitions[0].error_code, topic.partitions[0].leader_id) == (0, 2)

    run(body)


def test_metadata_request_waits_for_an_election_if_the_client_detects_the_dead_leader_first() -> (
    None
):
    async def body(world: World) -> None:
        registry, epoch = await start(world)
        asking = asyncio.ensure_future(
            world.ask("Metadata", 12, broker=2, topics=None, software="kgo v1")
        )
        await asyncio.sleep(NOTICE_S / 2)
        registry.lost(3, epoch)
        for number in (1, 2):
            world.brokers[number].registry.suspect(3, epoch)
        (topic,) = (await asking).topics
        assert topic.partitions[0].leader_id == 2

    run(body)


def test_metadata_request_waits_for_a_new_leader_after_a_leader_has_failed() -> None:
    async def body(world: World) -> None:
        registry, _ = await start(world)
        world.stores[3].kill()
        while 3 in registry.snapshot.brokers:
            await asyncio.sleep(0.001)
        assert await leader(world) == 2

    run(body)


def test_waiting_metadata_request_is_answered_once_the_leader_is_reachable_again() -> None:
    async def body(world: World) -> None:
        registry, epoch = await start(world)
        registry.lost(3, epoch)
        asking = asyncio.ensure_future(leader(world))
        await asyncio.sleep(0.1)
        assert not asking.done()
        registry.trust(3, epoch)
        async with asyncio.timeout(0.1):
            assert await asking == 3

    run(body)


def test_metadata_request_waits_for_an_election_only_once_and_for_a_limited_time() -> None:
    async def body(world: World) -> None:
        registry, epoch = await start(world)
        registry.lost(3, epoch)
        async with asyncio.timeout(ELECTION_S + 0.1):
            assert await leader(world) == 3
        async with asyncio.timeout(0.1):
            assert await leader(world) == 3

    run(body)


def test_metadata_request_does_not_wait_for_an_election_while_zookeeper_is_down() -> None:
    async def body(world: World) -> None:
        registry, epoch = await start(world)
        registry.lost(3, epoch)
        asking = asyncio.ensure_future(leader(world))
        await asyncio.sleep(0.1)
        assert not asking.done()
        world.service.stop()
        while registry.connected:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(0.1):
            assert await asking == 3

    run(body)


def test_metadata_request_for_topics_with_live_leaders_does_not_wait() -> None:
    async def body(world: World) -> None:
        registry, _ = await start(world)
        registry.lost(1, registry.snapshot.brokers[1].broker_epoch)
        async with asyncio.timeout(0.1):
            assert await leader(world) == 3

    run(body)
