"""Tests of WriteTxnMarkers, over replicas with logs in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.marker_client import BIG, MarkerClient, marker, write
from support.replica_world import World, run

from broker_lite.errors import (
    InvalidProducerEpochError,
    NotEnoughReplicasError,
    NotLeaderError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
)
from broker_lite.server.handlers import write_txn_markers
from broker_lite.wire.calls.broker_transactions import MarkedTopic


def test_marker_ends_its_transaction_only_once_the_high_watermark_has_passed_it() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write(leader)
        await world.until(lambda: leader.replica().high_watermark == 1)
        leader.cut_off()
        client = MarkerClient(leader)
        marking = asyncio.ensure_future(client.mark(marker(version=2, epoch=1)))
        await world.until(lambda: leader.replica().log.log_end_offset == 2)
        assert await client.read() == []
        # A repeated marker appends nothing, but its response waits for the commit of the first.
        again = asyncio.ensure_future(client.mark(marker(version=2, epoch=1)))
        await asyncio.sleep(0.02)
        assert not marking.done() and not again.done()
        leader.reached = True
        assert set((await marking).values()) == set((await again).values()) == {0}
        assert leader.replica().log.log_end_offset == 2
        assert await client.read() == [0]

    run(body, brokers=2)


def test_write_txn_markers_has_an_error_for_each_marker_and_partition() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        for producer in (1, 2, 3):
            await write(leader, producer)
        client = MarkerClient(leader)
        assert (await client.mark(marker(1, coordinator=5)))[1, "t", 0] == 0
        await write(leader, 1, sequence=1)
        topics = (MarkedTopic("t", (0, 9)), MarkedTopic("other", (0,)))
        codes = await client.mark(
            marker(1, coordinator=4),
            marker(2, version=2),
            marker(3, version=2, epoch=1, topics=topics),
            marker(4),
        )
        assert codes == {
            (1, "t", 0): TransactionCoordinatorFencedError.code,
            (2, "t", 0): InvalidProducerEpochError.code,
            (3, "t", 0): 0,
            (3, "t", 9): UnknownTopicOrPartitionError.code,
            (3, "other", 0): UnknownTopicOrPartitionError.code,
            (4, "t", 0): 0,
        }
        assert leader.replica().log.reader.last_stable_offset(BIG) == 1
        follower = MarkerClient(world.nodes[2])
        assert (await follower.mark(marker(2)))[2, "t", 0] == NotLeaderError.code

    run(body, brokers=2)


def test_marker_of_a_deposed_coordinator_is_refused() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        for producer in (1, 2, 3):
            await write(leader, producer)
        client = MarkerClient(leader)
        codes = await client.mark(
            marker(1, coordinator=6, state_partition=2),
            marker(2, coordinator=5, state_partition=2),
            marker(3, coordinator=5, state_partition=1),
        )
        assert list(codes.values()) == [0, TransactionCoordinatorFencedError.code, 0]
        assert leader.replica().log.reader.last_stable_offset(BIG) == 1

    run(body, brokers=1)


def test_late_marker_of_a_transaction_does_not_end_the_next_one() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write(leader)
        participant = leader.replica().participant
        asked = participant.admit(7, 0)
        assert asked is not None and participant.verify(asked, number=5)
        client = MarkerClient(leader)
        assert (await client.mark(marker(number=4)))[7, "t", 0] == 0
        assert leader.replica().log.log_end_offset == 1
        assert participant.admit(7, 0) is None
        assert (await client.mark(marker(number=5)))[7, "t", 0] == 0
        assert leader.replica().log.log_end_offset == 2
        assert participant.admit(7, 0) is not None

    run(body, brokers=1)


def test_transaction_markers_are_refused_while_too_few_replicas_are_in_sync() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write(leader)
        world.config["min.insync.replicas"] = "2"
        world.take_out(2)
        codes = await MarkerClient(leader).mark(marker())
        assert codes[7, "t", 0] == NotEnoughReplicasError.code

    run(body, brokers=2)


def test_markers_of_many_partitions_are_appended_over_several_event_loop_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 20
    monkeypatch.setattr(write_txn_markers, "PARTITIONS_PER_TURN", count)

    async def body(world: World) -> None:
        leader = await world.serves(1)
        begun: list[int] = []
        manager, append = leader.manager, leader.manager.append_markers

        async def counted(*args: Any) -> Any:
            begun.append(turn)
            return await append(*args)

        manager.append_markers = counted  # type: ignore[method-assign]
        turn, is_done = 0, False

        async def count_turns() -> None:
            nonlocal turn
            while not is_done:
                turn += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count_turns())
        partitions = tuple(range(3 * count))
        codes = await MarkerClient(leader).mark(marker(topics=(MarkedTopic("t", partitions),)))
        is_done = True
        await counting
        assert set(codes.values()) == {0}
        assert max(begun.count(one) for one in set(begun)) <= count

    run(body, partitions=3 * count, brokers=1)
