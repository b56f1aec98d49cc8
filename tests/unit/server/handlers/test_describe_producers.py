"""Tests of DescribeProducers, which lists the idempotent producers of a replica's log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from support.handler_world import context_of
from support.marker_client import MarkerClient, write_history
from support.replica_world import World, run

from broker_lite.errors import UnknownTopicOrPartitionError
from broker_lite.server.handlers import describe_producers
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey


def test_describe_producers_is_answered_by_each_replica() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"no producer"])
        await leader.append([b"a", b"b"], producer_id=7, producer_epoch=3, base_sequence=0)
        follower = world.nodes[2]
        await world.until(lambda: follower.replica().high_watermark == 3)
        topic = SimpleNamespace(name="t", partition_indexes=[0, 9])
        for node in (leader, follower):
            parts = cast(Any, SimpleNamespace(replicas=node.manager, disk=node.disk))
            request = context_of(ApiKey.DESCRIBE_PRODUCERS, 0)
            response = await describe_producers.handle(
                parts, request, SimpleNamespace(topics=[topic])
            )
            octets = tables.encode(ApiKey.DESCRIBE_PRODUCERS, 0, 1, response)
            kind = tables.DescribeProducersResponse
            [answer] = kind.decode(octets, version=0, header=True, framed=True).topics
            found, unknown = answer.partitions
            assert (unknown.error_code, unknown.active_producers) == (
                UnknownTopicOrPartitionError.code, [],
            )  # fmt: skip
            assert found.error_code == 0
            [row] = found.active_producers
            assert (row.producer_id, row.producer_epoch, row.last_sequence) == (7, 3, 1)
            assert (row.coordinator_epoch, row.current_txn_start_offset) == (-1, -1)
            assert row.last_timestamp > 0

    run(body, brokers=2)


def test_describe_producers_shows_the_start_of_an_open_transaction() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        topic = SimpleNamespace(name="t", partition_indexes=[0])
        parts = MarkerClient(leader).parts
        message = SimpleNamespace(topics=[topic])
        answer = await describe_producers.handle(
            parts, context_of(ApiKey.DESCRIBE_PRODUCERS, 0), message
        )
        (found,) = answer.topics[0].partitions
        starts = {
            row.producer_id: (row.current_txn_start_offset, row.coordinator_epoch)
            for row in found.active_producers
        }
        assert starts == {1: (-1, 1), 2: (-1, 1), 3: (7, -1)}

    run(body, brokers=1)
