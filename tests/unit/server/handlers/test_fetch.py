"""Tests of the handlers of Fetch and ListOffsets, over replicas with logs in memory."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import poison
from support.handler_world import context_of, received, versions
from support.memory_files import MemFile
from support.replica_world import TOPIC_ID, Node, World, broker_context, part_bytes, run

from broker_lite.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    LogbusError,
    NotLeaderError,
    OffsetNotAvailableError,
    StorageError,
    UnknownLeaderEpochError,
    UnsupportedVersionError,
)
from broker_lite.record.batch import read_header
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers import fetch, list_offsets, offsets_for_bytes, record_times
from broker_lite.server.partitions import ranges
from broker_lite.server.partitions.crc_cache import CrcCache
from broker_lite.server.partitions.disk import AppendBatch
from broker_lite.wire import fetch as wire
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.offsets import (
    BytesPartition,
    OffsetsForBytesRequest,
    RecordTimesRequest,
    TimePartition,
)


class Reader:
    """The client's side of a connection, which fetches from one broker and stores the responses."""

    is_open = True

    def __init__(self, node: Node) -> None:
        self.answers: list[wire.FetchResponse] = []
        self.parts = broker_context(node)

    def fetch(
        self,
        offset: int,
        leader_epoch: int,
        replica_id: int = -1,
        max_wait_ms: int = 0,
        flags: int = 0,
    ) -> None:
        wanted = wire.FetchPartition(0, offset, 1 << 20, current_leader_epoch=leader_epoch)
        topics = (wire.FetchTopic("", TOPIC_ID, (wanted,)),)
        request = wire.FetchRequest(topics, max_wait_ms, replica_id=replica_id, flags=flags)
        sent = wire.encode_request(request, correlation_id=1, client_id="c", version=18)
        frame = memoryview(sent)[4:]
        fetch.handle(self.parts, received(frame, self.parts.clock), frame, cast(Any, self))

    def build(self, size: int, start: Callable[[], None]) -> None:
        start()

    def answer(self, parts: Sequence[Any]) -> None:
        frame = b"".join(part_bytes(part) for part in parts)
        self.answers.append(wire.decode_response(memoryview(frame)[4:]))


@pytest.mark.parametrize(
    ("says_epoch", "expected"), [(True, FencedLeaderEpochError), (False, NotLeaderError)]
)
def test_fetch_from_a_deposed_leader_does_not_return_offset_out_of_range(
    says_epoch: bool, expected: type[LogbusError]
) -> None:
    """While the read of a fetch waits for a thread, an unclean election deposes the leader and
    truncates its log.

    OFFSET_OUT_OF_RANGE would make the client reset its offset, but only the new leader knows
    whether that is right.
    """

    async def body(world: World) -> None:
        old = await with_records(world)
        replica = old.replica()
        replica.crc_cache = CrcCache(replica.log.log_end_offset)
        waits = hold_up_reads(old)
        reader = Reader(old)
        reader.fetch(2, replica.leader_epoch if says_epoch else -1)
        await depose(world)
        waits.set()
        await world.until(lambda: bool(reader.answers))
        [row] = reader.answers[0].topics[0].partitions
        assert row.error_code == expected.code

    run(body, brokers=2)


@pytest.mark.parametrize("by_follower", [False, True])
def test_deposed_leader_does_not_report_a_truncated_batch_as_corrupt(
    by_follower: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: a read of a log that was truncated meanwhile was logged as a corrupt batch.

    The replica then treated its log as damaged from that offset on.
    """

    def prepare(requested: list[ranges.WantedRange], *_: int) -> list[ranges.Prepared]:
        error = CorruptMessageError("the bytes were cut off")
        return [ranges.Prepared(error=error, error_offset=one.offset) for one in requested]

    async def body(world: World) -> None:
        old = await with_records(world)
        replica, follower = old.replica(), world.nodes[2]
        replica.crc_cache = CrcCache(replica.log.log_end_offset)
        waits = hold_up_reads(old)
        answers: list[Any] = []
        monkeypatch.setattr(ranges, "prepare", prepare)
        if by_follower:
            wanted = wire.FetchPartition(0, 2, 1 << 20, current_leader_epoch=replica.leader_epoch)
            message = wire.FetchRequest(
                [wire.FetchTopic("", TOPIC_ID, [wanted])],
                0,
                replica_id=2,
                replica_epoch=follower.view.broker_epoch,
                flags=wire.FLAG_REPAIR,
            )
            old.manager.follower_fetches.begin(message, answers.append, lambda: True)
        else:
            reader = Reader(old)
            answers = reader.answers
            reader.fetch(2, replica.leader_epoch)
        await depose(world)
        waits.set()
        await world.until(lambda: bool(answers))
        assert replica.role.log.damaged_from is None

    run(body, brokers=2)
    assert "corrupt batch" not in caplog.text


def test_deposed_leader_does_not_answer_a_timestamp_lookup() -> None:
    """While the lookup waits for a thread, an unclean election truncates the log."""

    async def body(world: World) -> None:
        old = await with_records(world)
        waits = hold_up_reads(old)
        row = SimpleNamespace(partition_index=0, timestamp=1, current_leader_epoch=-1)
        message = SimpleNamespace(
            topics=[SimpleNamespace(name="t", partitions=[row])], isolation_level=0
        )
        request = context_of(ApiKey.LIST_OFFSETS, 7)
        asked = asyncio.ensure_future(list_offsets.handle(Reader(old).parts, request, message))
        await asyncio.sleep(0)
        await depose(world)
        waits.set()
        [found] = (await asked).topics[0].partitions
        assert (found.error_code, found.offset) == (NotLeaderError.code, -1)

    run(body, brokers=2)


def list_by_time(parts: BrokerContext, timestamp: int) -> Awaitable[Any]:
    row = SimpleNamespace(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    message = SimpleNamespace(
        topics=[SimpleNamespace(name="t", partitions=[row])], isolation_level=0
    )
    return list_offsets.handle(parts, context_of(ApiKey.LIST_OFFSETS, 7), message)


def reach(parts: BrokerContext) -> Awaitable[Any]:
    message = OffsetsForBytesRequest((BytesPartition(TOPIC_ID, 0, 1, 10),), 0)
    return offsets_for_bytes.handle(parts, context_of(ApiKey.OFFSETS_FOR_BYTES, 0), message)


def time_at(parts: BrokerContext) -> Awaitable[Any]:
    message = RecordTimesRequest((TimePartition(TOPIC_ID, 0, 1),))
    return record_times.handle(parts, context_of(ApiKey.RECORD_TIMES, 0), message)


@pytest.mark.parametrize(
    "look_up",
    [partial(list_by_time, timestamp=1), partial(list_by_time, timestamp=-3), reach, time_at],
)
def test_leader_gives_up_leadership_after_a_read_error_during_an_offset_lookup(
    monkeypatch: pytest.MonkeyPatch, look_up: Callable[[BrokerContext], Awaitable[Any]]
) -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        for value in (b"a", b"b", b"c"):
            await leader.append([value])
        pread = MemFile.pread

        def failing(file: MemFile, position: int, length: int) -> bytes:
            if file._files is leader.files and file.path.endswith(".log"):
                raise OSError(errno.EIO, "a bad sector")
            return pread(file, position, length)

        with monkeypatch.context() as patch:
            patch.setattr(MemFile, "pread", failing)
            answer = await look_up(Reader(leader).parts)
            is_listed = isinstance(look_up, partial)
            rows = answer.topics[0].partitions if is_listed else answer.answers
            assert [row.error_code for row in rows] == [StorageError.code]
            await world.until(lambda: world.states[0].leader == -1)

    run(body, brokers=2)


def test_follower_answers_fetches_only_from_kafkas_replica_verification_tool() -> None:
    """Kafka's ReplicaVerificationTool fetches from each replica, as the consumer with replica id
    -2 (debugging consumer)."""

    async def body(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])
        follower = world.nodes[2]
        await world.until(lambda: follower.replica().high_watermark == 1)
        reader = Reader(follower)
        reader.fetch(0, -1)
        reader.fetch(0, -1, wire.ANY_REPLICA)
        reader.fetch(0, leader.replica().leader_epoch + 1, wire.ANY_REPLICA)
        await world.until(lambda: len(reader.answers) == 3)
        refused, found, newer = (answer.topics[0].partitions[0] for answer in reader.answers)
        assert (refused.error_code, bytes(refused.records)) == (NotLeaderError.code, b"")
        assert (found.error_code, found.high_watermark) == (0, 1)
        assert b"a" in bytes(found.records)
        assert newer.error_code == UnknownLeaderEpochError.code

    run(body, brokers=2)


def test_fetch_with_another_leader_epoch_is_fenced() -> None:
    """A waiting fetch is fenced when the leader epoch changes.

    Leader epoch -1 disables the check.
    """

    async def body(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])
        world.elect(1)
        await world.serves(1)
        current = leader.replica().leader_epoch
        codes = {}
        for epoch in (-1, current - 1, current, current + 1):
            reader = Reader(leader)
            reader.fetch(0, epoch)
            await world.until(lambda found=reader.answers: bool(found))
            row = reader.answers[0].topics[0].partitions[0]
            codes[epoch] = row.error_code
            assert bool(len(row.records)) is not bool(row.error_code)
        assert codes == {
            -1: 0,
            current - 1: FencedLeaderEpochError.code,
            current: 0,
            current + 1: UnknownLeaderEpochError.code,
        }
        waiting = Reader(leader)
        waiting.fetch(1, current, max_wait_ms=15_000)
        assert not waiting.answers
        world.elect(1)
        await world.until(lambda: bool(waiting.answers))
        [row] = waiting.answers[0].topics[0].partitions
        assert row.error_code == FencedLeaderEpochError.code

    run(body, brokers=1)


def test_new_leader_does_not_return_a_stale_high_watermark_as_end_offset() -> None:
    """Regression: until the other replicas fetched from it, a new leader answered a fetch of end
    offsets with an old high watermark. A Spark query took the acknowledged records above it for
    lost: it failed, or with failOnDataLoss=false it read them twice."""

    async def body(world: World) -> None:
        await (await world.serves(1)).append([b"a"])
        new = world.nodes[2]
        assert new.replica().high_watermark == 0
        new.reached = False
        world.elect(2)
        await world.until(lambda: new.replica().role.role.epoch_start_offset == 1)
        reader = Reader(new)
        reader.fetch(1, -1, flags=wire.FLAG_ENDS_ONLY)
        new.reached = True
        await world.serves(2)
        reader.fetch(1, -1, flags=wire.FLAG_ENDS_ONLY)
        await world.until(lambda: len(reader.answers) == 2)
        early, known = (answer.topics[0].partitions[0] for answer in reader.answers)
        assert early.error_code == OffsetNotAvailableError.code
        assert (known.error_code, known.high_watermark) == (0, 1)

    run(body)


def test_fetch_of_an_undecodable_batch_does_not_depose_the_leader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The batch has a correct CRC. Clients that need rows get CORRUPT_MESSAGE at the batch and can
    continue after it.

    The follower has the same bytes, so an election would only repeat the error.
    """

    async def body(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])
        buffer = memoryview(bytearray(poison.backwards(3, "lz4")))
        stored = world.loop.create_future()
        batch = AppendBatch(buffer, read_header(buffer), 1 << 20)
        deadline_ms = leader.clock.monotonic_ms() + 30_000
        leader.manager.append(
            leader.replica(), -1, batch, deadline_ms, lambda *outcome: stored.set_result(outcome)
        )
        assert (await stored)[1] is None
        await leader.append([b"b"])
        reader = Reader(leader)
        codes = []
        for offset in (1, 1, 2, 4):
            reader.answers.clear()
            reader.fetch(offset, -1)
            await world.until(lambda: bool(reader.answers))
            codes.append(reader.answers[0].topics[0].partitions[0].error_code)
        assert codes == [CorruptMessageError.code] * 3 + [0]
        assert leader.metrics.value("corrupt_batches", "read") == 3
        await world.agree()
        assert (world.states[0].leader_epoch, world.isr()) == (0, {1, 2})

    run(body, brokers=2)
    said = {record.getMessage(): None for record in caplog.records}
    logged = [line for line in said if "undecodable batch" in line]
    assert len(logged) == 2 and logged[0].startswith("topic t partition 0 offset 1:")


@pytest.mark.parametrize(
    ("timestamp", "since", "expected"),
    [(-4, 8, (0, 0)), (-5, 9, (-1, -1)), (-6, 11, (-1, -1)), (-7, 12, (-1, -1))],
)
def test_list_offsets_accepts_tiered_storage_timestamps_only_in_versions_that_define_them(
    timestamp: int, since: int, expected: tuple[int, int]
) -> None:
    """logbus has no tiered storage, so the earliest local offset is the earliest offset."""

    async def body(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])
        row = SimpleNamespace(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
        message = SimpleNamespace(
            topics=[SimpleNamespace(name="t", partitions=[row])], isolation_level=0
        )
        for version in versions(ApiKey.LIST_OFFSETS):
            request = context_of(ApiKey.LIST_OFFSETS, version)
            answer = await list_offsets.handle(Reader(leader).parts, request, message)
            [found] = answer.topics[0].partitions
            if version < since:
                assert (found.error_code, found.offset) == (UnsupportedVersionError.code, -1)
            else:
                assert found.error_code == 0
                assert (found.offset, found.leader_epoch) == expected

    run(body)


async def with_records(world: World) -> Node:
    """Return the leader, broker 1, whose log has three records that broker 2 lacks."""
    world.config = {"min.insync.replicas": "1"}
    leader = await world.serves(1)
    leader.cut_off()
    world.take_out(2)
    for value in (b"a", b"b", b"c"):
        await leader.append([value])
    return leader


def hold_up_reads(node: Node) -> threading.Event:
    """Block the broker's read thread until the returned event is set."""
    waits = threading.Event()
    node.disk.read(lambda: waits.wait(10), lambda *_: None)
    return waits


async def depose(world: World) -> None:
    """Elect broker 2 as leader and truncate broker 1's log."""
    old = world.nodes[1]
    old.reached = True
    world.elect(2, isr=[2])
    await world.until(lambda: old.replica().log.log_end_offset == 0)
