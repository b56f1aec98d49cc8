"""Tests of WriteTxnMarkers and of read_committed fetches, over replicas with logs in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.handler_world import context_of, received
from support.replica_world import TOPIC_ID, Node, World, part_bytes, run

from broker_lite.config import BrokerConfig
from broker_lite.errors import (
    InvalidProducerEpochError,
    NotEnoughReplicasError,
    NotLeaderError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
)
from broker_lite.record import format as fmt
from broker_lite.record.walker import BatchWalker, WalkPolicy
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.handlers import (
    describe_producers,
    fetch,
    list_offsets,
    record_times,
    write_txn_markers,
)
from broker_lite.server.metrics import Histogram
from broker_lite.server.partitions.crc_cache import CrcCache
from broker_lite.storage import lookups
from broker_lite.wire import fetch as wire
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, write_request_header
from broker_lite.wire.calls.broker_transactions import (
    MarkedTopic,
    TransactionMarker,
    WriteTxnMarkersRequest,
)
from broker_lite.wire.primitives import Reader, Writer

BIG = 1 << 30


class Client:
    """A client of one broker, which passes encoded requests to the broker's handlers."""

    is_open = True

    def __init__(self, node: Node) -> None:
        self.node = node
        self.frames: list[bytes] = []
        self.parts = cast(
            BrokerContext,
            SimpleNamespace(
                config=BrokerConfig(broker_id=node.id.broker_id),
                clock=node.clock,
                registry=SimpleNamespace(snapshot=node.snapshot),
                replicas=node.manager,
                disk=node.disk,
                metrics=node.metrics,
                coordinator_epochs=CoordinatorEpochs(lambda: node.snapshot),
                fetch_waits=Histogram(),
            ),
        )

    def build(self, size: int, start: Callable[[], None]) -> None:
        start()

    def answer(self, parts: Sequence[Any]) -> None:
        self.frames.append(b"".join(part_bytes(part) for part in parts))

    async def fetch(
        self, offset: int, *, committed: bool = True, size: int = BIG, flags: int = 0
    ) -> wire.FetchedPartition:
        wanted = wire.FetchPartition(0, offset, size)
        request = wire.FetchRequest(
            (wire.FetchTopic("", TOPIC_ID, (wanted,)),), 0, isolation_level=int(committed),
            replica_id=wire.ANY_REPLICA, columns_body_version=1, flags=flags,
        )  # fmt: skip
        sent = wire.encode_request(request, correlation_id=1, client_id="c", version=13)
        frame = memoryview(sent)[4:]
        fetch.handle(self.parts, received(frame, self.parts.clock), frame, cast(Any, self))
        await self.node.world.until(lambda: bool(self.frames))
        answer = wire.decode_response(memoryview(self.frames.pop())[4:], 13)
        return answer.topics[0].partitions[0]

    async def read(self, offset: int = 0, size: int = BIG) -> list[int]:
        """Return the offsets of the records that a read_committed reader gets from ``offset``
        on."""
        rows: list[int] = []
        while True:
            got = await self.fetch(offset, size=size)
            assert got.error_code == 0
            if not got.records:
                assert offset == got.last_stable_offset
                return rows
            walker = BatchWalker(WalkPolicy(aborted=got.aborted_transactions or ()), offset)
            for batch in walker.walk(got.records):
                first, end = batch.header.base_offset, batch.header.next_offset
                rows += [] if batch.is_void else range(max(first, offset), end)
            offset = walker.offset

    async def mark(self, *markers: TransactionMarker) -> dict[tuple[int, str, int], int]:
        writer = Writer()
        write_request_header(writer, ApiKey.WRITE_TXN_MARKERS, 2, 1, "coordinator")
        WriteTxnMarkersRequest(markers).encode(writer)
        frame = memoryview(writer.buffer)
        request = received(frame, self.parts.clock)
        message = tables.decode(ApiKey.WRITE_TXN_MARKERS, 2, frame, request.body_at)
        response = await write_txn_markers.handle(self.parts, request, message)
        data = tables.encode(ApiKey.WRITE_TXN_MARKERS, 2, 1, response)
        body = Reader(memoryview(data)[4:])
        body.i32()
        body.skip_tags()
        rows = WriteTxnMarkersRequest.decode(body).rows
        return {(row.producer_id, row.name, row.partition): row.error_code for row in rows}

    async def listed(self, timestamp: int, *, committed: bool = True) -> int:
        row = SimpleNamespace(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
        message = SimpleNamespace(
            topics=[SimpleNamespace(name="t", partitions=[row])], isolation_level=int(committed)
        )
        request = context_of(ApiKey.LIST_OFFSETS, 7)
        answer = await list_offsets.handle(self.parts, request, message)
        (found,) = answer.topics[0].partitions
        assert found.error_code == 0
        return cast(int, found.offset)


def marker(
    producer: int = 7, *, commit: bool = True, epoch: int = 0, coordinator: int = 1,
    version: int = 1, topics: tuple[MarkedTopic, ...] = (MarkedTopic("t", (0,)),),
    state_partition: int = -1, number: int = -1,
) -> TransactionMarker:  # fmt: skip
    return TransactionMarker(
        producer, epoch, commit, topics, coordinator, version, number, state_partition
    )


async def write(node: Node, producer: int = 7, sequence: int = 0, rows: int = 1) -> int:
    """Append a transactional batch of ``rows`` records; return its base offset."""
    appended = await node.append(
        [b"v"] * rows, attributes=fmt.ATTRIBUTE_TRANSACTIONAL, producer_id=producer,
        producer_epoch=0, base_sequence=sequence,
    )  # fmt: skip
    return appended.base_offset


async def write_history(node: Node) -> None:
    """Append plain records at offsets 0, 6 and 8, and transactions.

    One transaction is aborted (offsets 1 and 2), one committed (3) and one open (7). Markers are at
    offsets 4 and 5.
    """
    client = Client(node)
    await node.append([b"plain"])
    await write(node, 1, rows=2)
    await write(node, 2)
    assert set((await client.mark(marker(1, commit=False), marker(2))).values()) == {0}
    await node.append([b"plain"])
    await write(node, 3)
    await node.append([b"plain"])


def test_read_committed_stops_at_the_last_stable_offset_and_skips_aborted_records() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        client = Client(leader)
        assert await client.read() == [0, 3, 6]
        got = await client.fetch(0)
        assert (got.high_watermark, got.last_stable_offset) == (9, 7)
        assert got.aborted_transactions == [(1, 1)]
        assert (await client.fetch(6)).aborted_transactions == []
        every = await client.fetch(7, committed=False)
        assert len(every.records) > 0 and every.aborted_transactions is None
        assert (await client.mark(marker(3)))[3, "t", 0] == 0
        assert await client.read() == [0, 3, 6, 7, 8]

    run(body, brokers=2)


@pytest.mark.parametrize("cold", [False, True])
def test_read_committed_returns_the_same_records_with_and_without_a_crc_check(cold: bool) -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        replica = leader.replica()
        if cold:
            replica.crc_cache = CrcCache(replica.log.log_end_offset)
        for size in (1, 100, 200, BIG):
            assert await Client(leader).read(size=size) == [0, 3, 6]

    run(body, brokers=1)


def test_new_leader_knows_the_transactions_that_it_copied_as_a_follower() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        await world.agree()
        follower = world.nodes[2]
        world.elect(2)
        await world.serves(2)
        client = Client(follower)
        assert await client.read() == [0, 3, 6]
        assert (await client.mark(marker(3, commit=False)))[3, "t", 0] == 0
        assert await client.read() == [0, 3, 6, 8]

    run(body, brokers=2)


def test_marker_lost_in_an_unclean_election_leaves_the_transaction_open() -> None:
    """The former leader truncates the marker.

    A later marker then ends the transaction on both replicas.
    """

    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write(leader)
        await leader.append([b"plain"])
        await world.agree()
        leader.cut_off()
        world.config["min.insync.replicas"] = "1"
        world.take_out(2)
        assert (await Client(leader).mark(marker()))[7, "t", 0] == 0
        assert await Client(leader).read() == [0, 1]
        world.elect(2, isr=[2])
        client = Client(await world.serves(2))
        assert await client.read() == []
        leader.reached = True
        await world.agree()
        assert leader.replica().log.reader.last_stable_offset(BIG) == 0
        # `logbus transactions abort` sends this marker.
        assert (await client.mark(marker(commit=False, coordinator=0)))[7, "t", 0] == 0
        assert await client.read() == [1]
        await world.agree()
        world.elect(1)
        assert await Client(await world.serves(1)).read() == [1]

    run(body, brokers=2)


def test_restarted_replica_serves_the_same_committed_records() -> None:
    async def body(world: World) -> None:
        await write_history(await world.serves(1))
        await world.agree()
        world.elect(2)
        await world.serves(2)
        world.restart(1)
        await world.agree()
        world.elect(1)
        leader = await world.serves(1)
        assert await Client(leader).read() == [0, 3, 6]

    run(body, brokers=2)


def test_marker_ends_its_transaction_only_once_the_high_watermark_has_passed_it() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write(leader)
        await world.until(lambda: leader.replica().high_watermark == 1)
        leader.cut_off()
        client = Client(leader)
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
        client = Client(leader)
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
        follower = Client(world.nodes[2])
        assert (await follower.mark(marker(2)))[2, "t", 0] == NotLeaderError.code

    run(body, brokers=2)


def test_marker_of_a_deposed_coordinator_is_refused() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        for producer in (1, 2, 3):
            await write(leader, producer)
        client = Client(leader)
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
        client = Client(leader)
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
        codes = await Client(leader).mark(marker())
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
        codes = await Client(leader).mark(marker(topics=(MarkedTopic("t", partitions),)))
        is_done = True
        await counting
        assert set(codes.values()) == {0}
        assert max(begun.count(one) for one in set(begun)) <= count

    run(body, partitions=3 * count, brokers=1)


def test_list_offsets_with_read_committed_ends_at_the_last_stable_offset() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        client = Client(leader)
        assert [await client.listed(-1, committed=c) for c in (True, False)] == [7, 9]
        assert [await client.listed(-3, committed=c) for c in (True, False)] == [2, 2]
        assert await client.listed(1001) == 2
        assert await client.listed(1 << 40) == -1

    run(body, brokers=1)


async def times_at(node: Node, *offsets: int) -> list[int]:
    """Send RecordTimes (an API of logbus) for these offsets. Return, for each of them, the offset
    of the first record at or after it, as the response names it.
    """
    rows = [SimpleNamespace(topic_id=TOPIC_ID, partition=0, offset=at) for at in offsets]
    message = SimpleNamespace(partitions=rows)
    answer = await record_times.handle(
        Client(node).parts, context_of(ApiKey.RECORD_TIMES, 0), message
    )
    return [row.offset for row in answer.answers]


def test_lookup_of_record_timestamps_skips_markers_and_aborted_records() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        # Offsets 1 and 2 are aborted, 4 and 5 are markers, and 7 is in an open transaction.
        assert await times_at(leader, *range(9)) == [0, 3, 3, 3, 6, 6, 6, -1, -1]
        await Client(leader).mark(marker(3, commit=False))
        assert await times_at(leader, 7, 8, 9) == [8, 8, -1]

    run(body, brokers=1)


def test_lookup_of_many_record_timestamps_is_split_into_several_disk_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        monkeypatch.setattr(record_times, "JOB_MS", 0)
        assert await times_at(leader, 7, *range(7)) == [-1, 0, 3, 3, 3, 6, 6, 6]

    run(body, brokers=1)


def test_lookup_of_a_record_timestamp_stops_after_many_aborted_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        for sequence in range(4):
            await write(leader, sequence=sequence)
        await Client(leader).mark(marker(commit=False))
        assert await times_at(leader, 0) == [-1]
        monkeypatch.setattr(lookups, "SKIPPED_BATCHES_MAX", 3)
        assert await times_at(leader, 0) == [3]

    run(body, brokers=1)


def test_describe_producers_shows_the_start_of_an_open_transaction() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        topic = SimpleNamespace(name="t", partition_indexes=[0])
        parts = Client(leader).parts
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


def test_fetch_of_end_offsets_returns_the_offset_of_the_first_transactional_batch() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"plain"])
        client, ends = Client(leader), wire.FLAG_ENDS_ONLY
        assert (await client.fetch(0, flags=ends)).transactions_from == -1
        await write(leader)
        got = await client.fetch(0, flags=ends)
        assert (got.last_stable_offset, got.transactions_from) == (1, 1)
        assert (await client.fetch(0)).transactions_from == -1

    run(body, brokers=1)
