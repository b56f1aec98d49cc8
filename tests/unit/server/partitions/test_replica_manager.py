"""Tests of the replica manager with real disk threads and a file system in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from support.data_calls import rows_batch
from support.memory_files import MemFiles
from support.stored import append

from broker_lite import errors
from broker_lite.config import BrokerConfig, TopicConfig
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import (
    BrokerView,
    LeaderAndIsr,
    PartitionKey,
    PartitionView,
    ReplicaId,
    StateChange,
    TopicView,
)
from broker_lite.record.batch import read_header
from broker_lite.replication.events import Appended
from broker_lite.replication.leader import Leader
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions import full_disk, replica_manager
from broker_lite.server.partitions.disk import AppendBatch, Disk
from broker_lite.server.partitions.replica import Replica
from broker_lite.server.partitions.replica_fetcher import Answered
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.server.partitions.ticks import TICK_MS
from broker_lite.storage.manager import LogManager
from broker_lite.wire.fetch import FetchRequest

EPOCH = 7
"""Broker epoch of the only registration."""


class Alone:
    """A cluster of one broker, whose metadata writes always succeed."""

    snapshot = MetadataSnapshot()
    broker_epoch = EPOCH
    broker_epochs = frozenset({EPOCH})

    async def write_states(self, changes: Sequence[StateChange]) -> list[LeaderAndIsr | None]:
        raise AssertionError(changes)

    def __init__(self) -> None:
        self.told_full: list[bool] = []
        self.full_writes_to_fail = 0
        """Number of next ``set_full`` calls that take effect and then lose the answer."""

    async def drain(self) -> None:
        """Return at once, because there is no other broker that could lead."""

    async def set_full(self, is_full: bool) -> None:
        self.told_full.append(is_full)
        if self.full_writes_to_fail:
            self.full_writes_to_fail -= 1
            raise errors.CoordinationUnavailableError("the answer was lost")

    def fetch(self, leader: BrokerView, request: FetchRequest, answered: Answered) -> None:
        raise AssertionError(request)


class Shell:
    """A replica manager and its disk threads; the test sets the metadata."""

    def __init__(self, files: MemFiles | None = None) -> None:
        self.files = files or MemFiles()
        self.loop = asyncio.get_running_loop()
        self.clock = Clock()
        self.logs = LogManager(
            self.files, "/data", default_config=TopicConfig(file_delete_delay_ms=0)
        )
        self.logs.data.start()
        self.logs.open_all(1)
        self.disk = Disk(self.loop, append_threads=2, read_threads=1, clock=self.clock)
        self.metrics = Metrics()
        self.cluster = Alone()
        self.manager = ReplicaManager(
            self.loop,
            BrokerConfig(broker_id=1),
            clock=self.clock,
            disk=self.disk,
            logs=self.logs,
            metrics=self.metrics,
            cluster=self.cluster,
            net=self.cluster,
        )
        self.local = ReplicaId(1, self.logs.data.directory_id)

    def topic(
        self,
        name: str = "t",
        topic_id: str = "abcdefghijklmnopqrstuQ",
        *,
        leader: int = 1,
        leader_epoch: int = 0,
        partitions: int = 1,
        version: int = 0,
        config: dict[str, str] | None = None,
    ) -> TopicView:
        state = LeaderAndIsr(
            leader, leader_epoch, (self.local,), 1, version, leader_broker_epoch=EPOCH
        )
        views = tuple(PartitionView(p, (1,), state) for p in range(partitions))
        return TopicView(name, topic_id, views, config or {})

    def apply(self, *topics: TopicView) -> None:
        self.manager.apply(
            MetadataSnapshot(
                topics={view.name: view for view in topics},
                topics_by_id={view.topic_id: view for view in topics},
            )
        )

    def gauge(self, name: str) -> float:
        """Return the value of a gauge without labels."""
        [found] = [one.values for one in self.metrics.samples() if one.metric.name == name]
        [value] = found.values()
        return value

    async def leader(self, name: str = "t", partition: int = 0) -> Replica:
        """Wait until the replica leads with its leader epoch on disk; return the replica."""
        while True:
            try:
                replica = self.manager.find(name, partition)
                replica.role.latest_offset()
                role = replica.role.role
                if isinstance(role, Leader) and role.epoch_start_offset is not None:
                    return replica
            except errors.RetriableError:
                pass
            await asyncio.sleep(0.001)

    async def append(self, replica: Replica, acks: int = -1, **fields: int) -> Appended:
        return await self.begin(replica, acks, **fields)

    def begin(
        self,
        replica: Replica,
        acks: int = -1,
        wait_ms: int = 30_000,
        *,
        data: bytes | None = None,
        **fields: int,
    ) -> asyncio.Future[Appended]:
        done: asyncio.Future[Appended] = self.loop.create_future()

        def decided(appended: Appended | None, error: errors.LogbusError | None) -> None:
            if error is not None:
                done.set_exception(error)
            else:
                assert appended is not None
                done.set_result(appended)

        buffer = memoryview(bytearray(data or rows_batch([b"a", b"b"], **fields)))
        batch = AppendBatch(buffer, read_header(buffer), 1 << 20)
        self.manager.append(replica, acks, batch, self.clock.monotonic_ms() + wait_ms, decided)
        return done

    def close(self) -> None:
        self.manager.close(errors.ClosedError("the test is over"))
        self.disk.stop()


async def told(shell: Shell, *states: bool) -> None:
    """Wait until the broker has reported, in this order, whether its disk is full."""
    async with asyncio.timeout(10):
        while shell.cluster.told_full != list(states):
            await asyncio.sleep(0.001)


def run(test: Callable[[Shell], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        shell = Shell(**options)
        try:
            await asyncio.wait_for(test(shell), 20)
        finally:
            shell.close()

    asyncio.run(main())


def test_broker_leads_and_appends_to_a_partition_that_was_assigned_to_it() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        replica = await shell.leader()
        first, second = shell.begin(replica), shell.begin(replica, acks=1)
        assert ((await first).base_offset, (await second).base_offset) == (0, 2)
        await shell.append(replica, acks=0)
        assert replica.high_watermark == 6
        assert replica.log.flushed_end == 6
        assert replica.log.leader_epochs.latest == 0
        assert [(one.topic, one.partition) for one in shell.manager.replicas] == [("t", 0)]

    run(test)


def test_log_of_a_replica_that_is_reassigned_during_creation_is_deleted() -> None:
    """Otherwise the log would stay until the next metadata change."""

    async def test(shell: Shell) -> None:
        here = shell.topic()
        (view,) = here.partitions
        others = dataclasses.replace(
            view.state, leader=2, isr=(ReplicaId(2, "another"),), version=1
        )
        moved = dataclasses.replace(view, replicas=(2,), state=others)
        shell.apply(here)
        shell.apply(dataclasses.replace(here, partitions=(moved,)))
        key = PartitionKey(here.topic_id, 0)
        for _ in ("made", "deleted"):
            await shell.disk.run_keeper(lambda: None)
        assert (shell.manager.replicas, key in shell.logs.logs) == ([], False)

    run(test)


def test_find_replica_raises_unknown_topic_unknown_topic_id_or_not_leader() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic(partitions=2), shell.topic("u", "uuuuuuuuuuuuuuuuuuuuuA", leader=2))
        await shell.leader()
        find, find_by_id = shell.manager.find, shell.manager.find_by_id
        assert find_by_id("abcdefghijklmnopqrstuQ", 0) is find("t", 0)
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            find("v", 0)
        for partition in (2, -1):
            with pytest.raises(errors.UnknownTopicOrPartitionError):
                find("t", partition)
        with pytest.raises(errors.UnknownTopicIdError):
            find_by_id("vvvvvvvvvvvvvvvvvvvvvA", 0)
        while True:
            try:
                other = find("u", 0)
                break
            except errors.NotLeaderError:
                await asyncio.sleep(0.001)
        with pytest.raises(errors.NotLeaderError):
            other.check_leader()

    run(test)


def test_leader_epoch_is_on_disk_before_the_leader_serves() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        replica = await shell.leader()
        await shell.append(replica)
        shell.apply(shell.topic(leader_epoch=4, version=1))
        await shell.leader()
        appended = await shell.append(replica)
        assert replica.log.reader.epoch_at(appended.base_offset) == 4
        assert replica.log.reader.epoch_at(0) == 0
        with pytest.raises(errors.FencedLeaderEpochError):
            replica.check_leader(0)

    run(test)


def test_deposed_leader_fails_waiting_produce_requests() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic(config={"flush.messages": "1000", "flush.ms": "60000"}))
        replica = await shell.leader()
        waiting = shell.begin(replica)
        while replica.role.log_end_offset == 0:
            await asyncio.sleep(0.001)
        woken: list[bool] = []
        replica.waiters.add(lambda: woken.append(True))
        shell.apply(shell.topic(leader=2, leader_epoch=1, version=1))
        with pytest.raises(errors.NotLeaderError):
            await waiting
        with pytest.raises(errors.NotLeaderError):
            await shell.append(replica)
        assert woken

    run(test)


def test_produce_whose_records_are_not_flushed_in_time_fails_with_request_timed_out() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic(config={"flush.messages": "1000", "flush.ms": "60000"}))
        replica = await shell.leader()
        with pytest.raises(errors.RequestTimedOutError):
            await shell.begin(replica, wait_ms=1)
        assert shell.manager.in_flight_count == 0

    run(test)


def test_records_are_flushed_soon_after_flush_messages_is_lowered() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic(config={"flush.messages": "1000", "flush.ms": "3600000"}))
        replica = await shell.leader()
        waiting = shell.begin(replica)
        shell.apply(shell.topic(config={"flush.messages": "1", "flush.ms": "3600000"}))
        assert (await waiting).base_offset == 0

    run(test)


def test_append_delayed_by_a_slow_disk_is_still_flushed_after_flush_ms() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic(config={"flush.messages": "1000", "flush.ms": "300"}))
        replica = await shell.leader()
        stalled = threading.Event()
        shell.disk.call(replica.key, stalled.wait, lambda _, __: None)
        waiting = shell.begin(replica)
        # The event loop delivers the first flush tick before this callback.
        shell.loop.call_later(2 * TICK_MS / 1000, stalled.set)
        assert (await waiting).base_offset == 0

    run(test)


def test_recreated_topic_gets_a_new_log() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        first = await shell.leader()
        await shell.append(first)
        shell.apply(shell.topic(topic_id="bbbbbbbbbbbbbbbbbbbbbA"))
        assert first.closed
        second = await shell.leader()
        assert second.key.topic_id == "bbbbbbbbbbbbbbbbbbbbbA"
        assert second.log.log_end_offset == 0
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            await shell.append(first)
        while shell.logs.get(PartitionKey("abcdefghijklmnopqrstuQ", 0)) is not None:
            await asyncio.sleep(0.001)

    run(test)


def test_log_of_an_unknown_topic_is_kept_and_restored_once_the_topic_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If older ZooKeeper data is restored, topics may be missing there. Their logs must survive."""

    async def test(shell: Shell) -> None:
        key = PartitionKey("ccccccccccccccccccccuA", 0)
        append(shell.logs.create(key, None, 1))
        shell.logs.get(key).flush()
        shell.apply(shell.topic())
        await shell.leader()
        while shell.logs.get(key) is not None or not shell.logs.stray_count:
            await asyncio.sleep(0.001)
        assert "logbus storage strays /data --delete" in caplog.text
        assert shell.gauge("stray_partitions") == 1
        shell.apply(shell.topic(), shell.topic("late", key.topic_id))
        replica = await shell.leader("late")
        assert replica.log.log_end_offset == 1
        assert shell.logs.stray_count == 0

    run(test)


def test_crc_cache_includes_an_arrow_batch_before_consumers_can_fetch_it() -> None:
    async def test(shell: Shell) -> None:
        from support.data_calls import columns_batch

        shell.apply(shell.topic())
        replica = await shell.leader()
        seen: list[tuple[int, int]] = []
        replica.waiters.add(
            lambda: seen.append((replica.high_watermark, replica.crc_cache.rows_from))
        )
        buffer = memoryview(bytearray(columns_batch([b"a", b"b", b"c"])))
        batch = AppendBatch(buffer, read_header(buffer), 1 << 20)
        done: asyncio.Future[None] = shell.loop.create_future()
        shell.manager.append(
            replica,
            -1,
            batch,
            shell.clock.monotonic_ms() + 30_000,
            lambda appended, error: done.set_result(None),
        )
        await done
        while not seen:
            await asyncio.sleep(0)
        assert seen == [(3, 3)]
        await shell.append(replica)
        assert replica.crc_cache.rows_from == 3

    run(test)


@pytest.mark.parametrize("starts_at", [0, 2])
def test_disk_full_error_of_a_batch_also_fails_the_producers_later_batches_in_flight(
    starts_at: int,
) -> None:
    """With OUT_OF_ORDER_SEQUENCE instead, librdkafka would bump its epoch and resend old records.

    Without an error, a new producer's second batch could be appended first: a log with deleted
    records accepts any sequence of an unknown producer.
    """

    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        replica = await shell.leader()
        await shell.append(replica)
        await shell.disk.run_on(replica.key, lambda: replica.log.delete_records_before(starts_at))
        shell.files.fail_next("write", errno.ENOSPC, path=".log")

        def pipeline() -> list[asyncio.Future[Appended]]:
            return [
                shell.begin(replica, producer_id=5, producer_epoch=0, base_sequence=2 * n)
                for n in range(4)
            ]

        refused = await asyncio.gather(*pipeline(), return_exceptions=True)
        assert [type(error) for error in refused] == [errors.StorageError] * 4
        again = await asyncio.gather(*pipeline())
        assert [appended.base_offset for appended in again] == [2, 4, 6, 8]
        ahead = shell.begin(replica, producer_id=5, producer_epoch=0, base_sequence=99)
        with pytest.raises(errors.OutOfOrderSequenceError):
            await ahead

    run(test)


@pytest.mark.parametrize("operation", ["datasync", "write"])
def test_disk_error_takes_the_data_directory_offline_and_is_logged(
    operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic(partitions=3))
        replicas = [await shell.leader(partition=p) for p in range(3)]
        await shell.append(replicas[0])
        woken: list[int] = []
        for replica in replicas:
            replica.waiters.add(lambda p=replica.partition: woken.append(p))
        shell.files.fail_next(operation, errno.EIO)
        with pytest.raises(errors.StorageError):
            await shell.append(replicas[1])
        for replica in replicas:
            with pytest.raises(errors.StorageError):
                await shell.append(replica)
            with pytest.raises(errors.StorageError):
                replica.check_leader()
        assert sorted(set(woken)) == [0, 1, 2]
        assert shell.gauge("disk_failed") == 1
        # A stopped data directory accepts no new partitions either.
        shell.apply(shell.topic(partitions=4, version=1))
        with pytest.raises(errors.StorageError):
            shell.manager.find("t", 3)

    run(test)
    assert "repair or replace the disk" in caplog.text


def test_batch_refused_by_a_full_disk_does_not_stop_later_batches() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        replica = await shell.leader()
        shell.files.fail_next("write", errno.ENOSPC, after_bytes=20)
        with pytest.raises(errors.StorageError, match="full"):
            await shell.append(replica)
        assert (await shell.append(replica)).base_offset == 0
        assert shell.gauge("disk_failed") == 0

    run(test)


def test_deleted_replica_is_freed_without_garbage_collection() -> None:
    """The replica's files must be closed at once. An idle broker may run no garbage collection for
    hours."""

    async def test(shell: Shell) -> None:
        gc.collect()
        gc.disable()
        try:
            shell.apply(shell.topic())
            replica = await shell.leader()
            await shell.append(replica)
            log = weakref.ref(replica.log)
            del replica
            shell.apply()
            async with asyncio.timeout(10):
                while log() is not None:
                    await asyncio.sleep(0.001)
        finally:
            gc.enable()

    run(test)


def test_broker_registration_reports_a_full_disk_until_space_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The registration is written only twice: when the disk is full, and when enough space is
    free again."""
    monkeypatch.setattr(full_disk, "CHECK_S", 0.005)

    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        replica = await shell.leader()
        await shell.append(replica)
        total, usable = shell.files.space("/data")
        shell.files.capacity_bytes = total - usable
        for _ in range(2):
            with pytest.raises(errors.StorageError, match="full"):
                await shell.append(replica)
        await told(shell, True)
        assert shell.gauge("disk_full") == 1
        # A little free space is not enough, because the disk would soon be full again.
        shell.files.capacity_bytes += 4096
        with pytest.raises(errors.StorageError, match="full"):
            await shell.append(replica)
        shell.files.capacity_bytes = None
        await told(shell, True, False)
        assert (await shell.append(replica)).base_offset == 2
        assert shell.gauge("disk_full") == 0

    run(test)


def test_refused_arrow_batch_makes_the_broker_register_its_disk_as_full() -> None:
    """Regression: the broker registered the full disk only if it refused a batch in Kafka's
    format."""

    async def test(shell: Shell) -> None:
        from support.data_calls import columns_batch

        shell.apply(shell.topic())
        replica = await shell.leader()
        total, usable = shell.files.space("/data")
        shell.files.capacity_bytes = total - usable
        with pytest.raises(errors.StorageError, match="full"):
            await shell.begin(replica, data=columns_batch([b"a", b"b"]))
        await told(shell, True)

    run(test)


@pytest.mark.parametrize("has_room_soon", [False, True])
def test_report_of_a_full_disk_is_retried_when_zookeepers_answer_is_lost(
    has_room_soon: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper may have applied the write. Without a retry, the cluster could treat the broker as
    full for ever."""
    monkeypatch.setattr(full_disk, "CHECK_S", 0.005)

    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        replica = await shell.leader()
        total, usable = shell.files.space("/data")
        shell.files.capacity_bytes = total - usable
        shell.cluster.full_writes_to_fail = 1
        with pytest.raises(errors.StorageError, match="full"):
            await shell.append(replica)
        await told(shell, True)
        if not has_room_soon:
            await told(shell, True, True)
            shell.cluster.full_writes_to_fail = 1
        shell.files.capacity_bytes = None
        await told(shell, *((True, False) if has_room_soon else (True, True, False, False)))

    run(test)


@pytest.mark.parametrize("operation", ["make_dir", "create", "rename"])
def test_leader_retries_the_creation_of_its_log_while_the_disk_is_full(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full disk prevents writing the directory, the first segment, or the leader epoch file."""
    monkeypatch.setattr(replica_manager, "RETRY_S", 0.05)

    async def test(shell: Shell) -> None:
        shell.files.fail_next(operation, errno.ENOSPC)
        shell.apply(shell.topic())
        replica = await shell.leader()
        assert (await shell.append(replica)).base_offset == 0
        assert shell.gauge("disk_failed") == 0

    run(test)


def test_broker_creates_a_followers_log_once_its_full_disk_has_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker retries the creation even though the topic's metadata do not change."""
    monkeypatch.setattr(replica_manager, "RETRY_S", 0.05)

    async def test(shell: Shell) -> None:
        shell.files.fail_next("make_dir", errno.ENOSPC)
        shell.apply(shell.topic(leader=2))
        async with asyncio.timeout(10):
            while not shell.manager.replicas:
                await asyncio.sleep(0.001)
        assert not shell.manager.find("t", 0).role.is_leader

    run(test)


def test_corrupt_batch_is_refused_and_the_next_batch_is_appended() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        replica = await shell.leader()
        buffer = memoryview(bytearray(rows_batch([b"a"])))
        buffer[-1] ^= 1
        done: asyncio.Future[Any] = shell.loop.create_future()
        shell.manager.append(
            replica,
            -1,
            AppendBatch(buffer, read_header(buffer), 1 << 20),
            shell.clock.monotonic_ms() + 30_000,
            lambda appended, error: done.set_result(error),
        )
        good = shell.begin(replica)
        assert isinstance(await done, errors.CorruptMessageError)
        assert (await good).base_offset == 0

    run(test)


def test_delete_records_accepts_offsets_up_to_the_high_watermark() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        replica = await shell.leader()
        for _ in range(3):
            await shell.append(replica)
        delete = shell.manager.delete_records
        assert await delete("t", 0, 2) == 2
        assert await delete("t", 0, -1) == 6
        for offset in (7, -2):
            with pytest.raises(errors.OffsetOutOfRangeError):
                await delete("t", 0, offset)
        assert replica.log.log_start_offset == 6

    run(test)


def test_segment_that_retention_deletes_is_counted_by_its_reason() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic(config={"segment.ms": "1", "retention.ms": "1"}))
        replica = await shell.leader()
        await shell.append(replica)
        while replica.log.log_start_offset == 0:
            shell.manager.apply_retention()
            await asyncio.sleep(0.001)
        while not shell.metrics.total("segments_deleted"):
            await asyncio.sleep(0.001)
        assert shell.metrics.value("segments_deleted", "time") == 1

    run(test)


def test_changed_topic_settings_apply_to_the_log() -> None:
    async def test(shell: Shell) -> None:
        shell.apply(shell.topic())
        replica = await shell.leader()
        shell.apply(shell.topic(config={"max.message.bytes": "4096"}))
        assert replica.log.config.max_message_bytes == 4096

    run(test)


@pytest.mark.parametrize(
    "wrong", [{"max.message.bytes": "many"}, {"of.a.later.version": "1"}, {"retention.ms": "x"}]
)
def test_unreadable_topic_settings_disable_retention(
    wrong: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: one unreadable setting reset all to the defaults, so old records were deleted."""

    async def test(shell: Shell) -> None:
        kept = {"retention.ms": "-1", "segment.bytes": "67108864"}
        shell.apply(shell.topic(config=kept | wrong))
        config = (await shell.leader()).log.config
        assert (config.retention_ms, config.retention_bytes) == (-1, -1)
        assert config.segment_bytes == 67108864
        assert caplog.text.count("retention is disabled") == 1
        shell.apply(shell.topic(config={"retention.ms": "1000"}))
        assert (await shell.leader()).log.config.retention_ms == 1000

    run(test)
