"""Tests of requests to a leader that is still creating the log of a new partition."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from support.data_calls import rows_batch
from support.handler_world import context_of, received
from support.replica_world import TOPIC_ID, Node, World, broker_context, part_bytes, run

from broker_lite.server.handlers import fetch, list_offsets, produce
from broker_lite.wire import fetch as fetch_wire
from broker_lite.wire import produce as produce_wire
from broker_lite.wire.api import ApiKey


class Connection:
    """The client's side of a connection to one broker; ``frames`` holds the responses."""

    is_open = True

    def __init__(self, node: Node) -> None:
        self.frames: list[memoryview] = []
        self.parts = broker_context(node)

    def answer(self, parts: Sequence[Any]) -> None:
        self.frames.append(memoryview(b"".join(part_bytes(part) for part in parts))[4:])

    def produce(self, partition: int, value: bytes) -> None:
        records = produce_wire.PartitionRecords(partition, rows_batch([value]))
        topic = produce_wire.TopicRecords("", TOPIC_ID, [records])
        sent = produce_wire.encode_request(
            [topic], acks=-1, timeout_ms=5000, correlation_id=1, client_id="c"
        )
        frame = memoryview(bytearray(b"".join(bytes(part) for part in sent)))[4:]
        produce.handle(self.parts, received(frame, self.parts.clock), frame, cast(Any, self))

    def fetch(self, partition: int) -> None:
        topic = fetch_wire.FetchTopic("", TOPIC_ID, (fetch_wire.FetchPartition(partition, 0, 1),))
        request = fetch_wire.FetchRequest((topic,), 0)
        frame = memoryview(fetch_wire.encode_request(request, correlation_id=1, client_id="c"))[4:]
        fetch.handle(self.parts, received(frame, self.parts.clock), frame, cast(Any, self))


def new_partition(world: World) -> threading.Event:
    """Add partition 1, whose leader creates its log once the returned event is set."""
    may_go_on = threading.Event()
    node = world.nodes[1]
    node.disk.keep(lambda: may_go_on.wait(10), lambda *_: None)
    world.states[1] = world.states[0]
    world.publish()
    return may_go_on


def test_leader_delays_requests_until_its_new_log_exists() -> None:
    """If the leader refused the requests, a client would find the same leader in new metadata, and
    would have to retry.

    librdkafka does so after 100 ms, and idempotent producers of sarama 1.38 never do.
    """

    async def body(world: World) -> None:
        await world.serves(1)
        may_go_on = new_partition(world)
        producer, reader, other = (Connection(world.nodes[1]) for _ in range(3))
        producer.produce(1, b"first")
        producer.produce(1, b"second")
        reader.fetch(1)
        row = SimpleNamespace(partition_index=1, timestamp=-1, current_leader_epoch=-1)
        message = SimpleNamespace(
            topics=[SimpleNamespace(name="t", partitions=[row])], isolation_level=0
        )
        request = context_of(ApiKey.LIST_OFFSETS, 7)
        listed = asyncio.ensure_future(list_offsets.handle(other.parts, request, message))
        other.produce(0, b"another partition")
        await world.until(lambda: bool(other.frames))
        assert not producer.frames and not reader.frames and not listed.done()
        may_go_on.set()
        await world.until(lambda: len(producer.frames) == 2 and bool(reader.frames))
        answers = [produce_wire.decode_response(frame) for frame in producer.frames]
        rows = [answer.topics[0].partitions[0] for answer in answers]
        assert [(row.error_code, row.base_offset) for row in rows] == [(0, 0), (0, 1)]
        [found] = fetch_wire.decode_response(reader.frames[0]).topics[0].partitions
        assert found.error_code == 0
        [listing] = (await listed).topics[0].partitions
        assert (listing.error_code, listing.leader_epoch) == (0, 0)

    run(body, brokers=1)
