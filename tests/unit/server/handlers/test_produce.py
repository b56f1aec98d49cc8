"""Tests of the handler of Produce, over replicas with logs in memory.

An idempotent producer has several batches in flight. If the broker refuses one, it must refuse all
later ones with the same error, so that the producer resends all in order.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.data_calls import Place, produce_request, rows_batch
from support.handler_world import received
from support.replica_world import TOPIC_ID, Node, World, broker_context, part_bytes, run

from broker_lite.errors import (
    CorruptMessageError,
    DuplicateSequenceError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
)
from broker_lite.server.handlers import produce
from broker_lite.wire import produce as wire


class Producer:
    """The client's side of an idempotent producer's connection; each batch has one record."""

    def __init__(self, node: Node, version: int = 13) -> None:
        self.version = version
        self.parts = broker_context(node)

    def send(self, sequence: int, *, broken: bool = False) -> asyncio.Future[int]:
        """Send a batch and return a future with the error code of the response."""
        batch = bytearray(
            rows_batch([b"x"], producer_id=7, producer_epoch=0, base_sequence=sequence)
        )
        batch[-1] ^= broken
        place = Place("t", TOPIC_ID, 1, "")
        sent = produce_request(place, bytes(batch), version=self.version)
        frame = memoryview(bytearray(sent))[4:]
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answer(parts: Any) -> None:
            octets = b"".join(part_bytes(part) for part in parts)
            response = wire.decode_response(memoryview(octets)[4:], self.version)
            done.set_result(response.topics[0].partitions[0].error_code)

        reply = cast(Any, SimpleNamespace(answer=answer))
        produce.handle(self.parts, received(frame, self.parts.clock), frame, reply)
        return done

    async def finds_its_pipeline_refused(self, code: int) -> None:
        """Check that batches 1 and 2, sent after the refused batch 0, fail with ``code``; then
        resend all three."""
        assert [await self.send(sequence) for sequence in (1, 2)] == [code] * 2
        assert [await self.send(sequence) for sequence in (0, 1, 2)] == [0] * 3
        assert await self.send(9) == OutOfOrderSequenceError.code


@pytest.mark.parametrize("version", [9, 13])
def test_batches_after_a_batch_refused_with_not_leader_get_the_same_error(
    version: int,
) -> None:
    async def body(world: World) -> None:
        world.assigned = {0: (1, 3)}
        world.publish()
        await world.until(lambda: not world.nodes[2].manager.replicas)
        producer = Producer(world.nodes[2], version)
        assert await producer.send(0) == NotLeaderError.code
        world.assigned.clear()
        world.publish()
        await world.until(lambda: bool(world.nodes[2].manager.replicas))
        world.elect(2, isr=[2, 1, 3])
        await world.serves(2)
        await producer.finds_its_pipeline_refused(NotLeaderError.code)

    run(body, brokers=3)


def test_batches_that_follow_a_batch_refused_by_a_follower_get_the_same_error() -> None:
    async def body(world: World) -> None:
        await world.serves(1)
        await world.until(lambda: bool(world.nodes[2].manager.replicas))
        producer = Producer(world.nodes[2])
        assert await producer.send(0) == NotLeaderError.code
        world.elect(2)
        await world.serves(2)
        await producer.finds_its_pipeline_refused(NotLeaderError.code)

    run(body, brokers=2)


def test_in_flight_batches_after_a_not_enough_replicas_error_get_the_same_error() -> None:
    async def body(world: World) -> None:
        world.config = {"min.insync.replicas": "2"}
        leader = world.nodes[1]
        leader.cut_off()  # The follower must not catch up and join the in-sync replicas yet.
        world.elect(1, isr=[1])
        await world.serves(1)
        producer = Producer(leader)
        assert await producer.send(0) == NotEnoughReplicasError.code
        leader.reached = True
        world.elect(1, isr=[1, 2])
        await world.serves(1)
        await producer.finds_its_pipeline_refused(NotEnoughReplicasError.code)

    run(body, brokers=2)


def test_batches_that_follow_a_batch_corrupted_in_transit_get_the_same_error() -> None:
    async def body(world: World) -> None:
        await world.serves(1)
        producer = Producer(world.nodes[1])
        assert await producer.send(0, broken=True) == CorruptMessageError.code
        await producer.finds_its_pipeline_refused(CorruptMessageError.code)

    run(body, brokers=1)


def test_retry_older_than_the_last_five_batches_gets_duplicate_sequence_number() -> None:
    async def body(world: World) -> None:
        await world.serves(1)
        producer = Producer(world.nodes[1])
        assert [await producer.send(sequence) for sequence in range(7)] == [0] * 7
        assert await producer.send(1) == DuplicateSequenceError.code
        assert await producer.send(2) == 0
        assert await producer.send(7) == 0

    run(body, brokers=1)


def test_acknowledgement_of_a_duplicate_waits_for_the_high_watermark() -> None:
    async def body(world: World) -> None:
        world.config = {"min.insync.replicas": "2"}
        leader = world.nodes[1]
        await world.serves(1)
        world.elect(1, isr=[1, 2])
        await world.serves(1)
        leader.cut_off()  # The follower must not fetch the batches yet.
        producer = Producer(leader)
        first = [producer.send(sequence) for sequence in range(7)]
        retried = producer.send(0)
        log = leader.manager.replicas[0].log
        await world.until(lambda: log.log_end_offset == 7)
        assert not retried.done()
        leader.reached = True
        assert await asyncio.gather(*first) == [0] * 7
        assert await retried == DuplicateSequenceError.code

    run(body, brokers=2)
