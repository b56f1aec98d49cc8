"""Tests of the disk threads: shared flushes, order of results, errors, and their stop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.data_calls import rows_batch
from support.memory_files import MemFiles

from broker_lite.model import PartitionKey
from broker_lite.record.batch import read_header
from broker_lite.replication.events import Appended, Event, Synced
from broker_lite.server.clock import Clock
from broker_lite.server.partitions import disk as disk_module
from broker_lite.server.partitions.disk import AppendBatch, AppendJob, Disk, SyncJob
from broker_lite.storage.log import Log
from broker_lite.storage.manager import LogManager

TOPIC = "abcdefghijklmnopqrstuQ"


class Recorder:
    """Stands for the partition that gave the disk its append and flush jobs: it records their
    result events, and counts the flushes of its log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.has_followers = False
        self.events: list[Event] = []
        self.flush_count = 0
        self._flush = log.flush
        log.flush = self._count  # type: ignore[method-assign]
        self.start_count = 0
        self._start = log.start_flush
        log.start_flush = self._count_start  # type: ignore[method-assign]

    def _count_start(self) -> None:
        assert self.flush_count == self.start_count, (
            "a flush is started before the thread waits for it"
        )
        self.start_count += 1
        self._start()

    def _count(self) -> int:
        self.flush_count += 1
        return self._flush()

    def deliver(self, event: Event) -> None:
        self.events.append(event)


def job(target: Recorder, token: int) -> AppendJob:
    buffer = memoryview(bytearray(rows_batch([b"%d" % token])))
    return AppendJob(target, token, AppendBatch(buffer, read_header(buffer), 1 << 20), 0)


def logs() -> LogManager:
    manager = LogManager(MemFiles(), "/data")
    manager.data.start()
    manager.open_all(1)
    return manager


def test_queued_appends_share_one_flush_per_log() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = Disk(loop, append_threads=1, read_threads=1, clock=Clock())
        manager = logs()
        keys = [PartitionKey(TOPIC, p) for p in range(2)]
        targets = [Recorder(manager.create(key, None, 1)) for key in keys]
        posts = 0
        post = disk.post

        def count(results: Any) -> None:
            nonlocal posts
            posts += 1
            post(results)

        disk.post = count  # type: ignore[method-assign]
        gate, done = threading.Event(), loop.create_future()
        disk.call(keys[0], gate.wait, lambda *_: None)
        for token in range(50):
            target = targets[token % 2]
            disk.worker_of(target.log.key).put(job(target, token))
            disk.worker_of(target.log.key).put(SyncJob(target))
        disk.call(keys[0], lambda: "last", lambda value, error: done.set_result(value))
        gate.set()
        assert await asyncio.wait_for(done, 20) == "last"
        for target in targets:
            *appended, synced = target.events
            assert [e.base_offset for e in appended if isinstance(e, Appended)] == list(range(25))
            assert synced == Synced(25)
            assert (target.start_count, target.flush_count) == (1, 1)
        assert posts <= 2, "one group with the gate job, and one with all other jobs"
        disk.stop()

    asyncio.run(main())


class StoppedClock(Clock):
    """A clock that shows 0 at its first reading and ``first_us`` at all later ones."""

    def __init__(self, first_us: int) -> None:
        self._first_us = first_us
        self._looks = 0

    def monotonic_us(self) -> int:
        self._looks += 1
        return self._first_us if self._looks > 1 else 0


def test_flush_is_delayed_for_more_batches_by_at_most_one_flush_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_module, "COALESCE_US_MAX", 10_000_000)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = Disk(loop, append_threads=1, read_threads=1, clock=StoppedClock(5_000_000))
        manager = logs()
        first, second = (Recorder(manager.create(PartitionKey(TOPIC, p), None, 1)) for p in (0, 1))
        posts: list[list[object]] = []
        post = disk.post

        def keep(results: Any) -> None:
            posts.append([event for _, event, _ in results])
            post(results)

        disk.post = keep  # type: ignore[method-assign]

        def produce(target: Recorder, token: int) -> None:
            disk.worker_of(target.log.key).put(job(target, token))
            disk.worker_of(target.log.key).put(SyncJob(target))

        async def flushed(target: Recorder, end: int) -> None:
            while Synced(end) not in target.events:
                await asyncio.sleep(0.001)

        async def both() -> None:
            produce(first, 1)
            produce(second, 2)
            await asyncio.gather(flushed(first, 1), flushed(second, 1))
            produce(first, 3)
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert first.flush_count == 1, "the next flush waits for the other producer"
            produce(second, 4)
            await asyncio.gather(flushed(first, 2), flushed(second, 2))
            assert [len(events) for events in posts] == [4, 4]
            # The second flush took no time, so the third flush does not wait.
            produce(first, 5)
            await flushed(first, 3)
            assert [len(events) for events in posts] == [4, 4, 2]

        await asyncio.wait_for(both(), 20)
        disk.stop()

    asyncio.run(main())


def test_flush_of_replicated_partitions_starts_without_waiting_for_more_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_module, "COALESCE_US_MAX", 60_000_000)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = Disk(loop, append_threads=1, read_threads=1, clock=StoppedClock(60_000_000))
        manager = logs()
        targets = [Recorder(manager.create(PartitionKey(TOPIC, p), None, 1)) for p in (0, 1)]
        for count in (2, 1):
            for target in targets[:count]:
                target.has_followers = True
                disk.worker_of(target.log.key).put(job(target, count))
                disk.worker_of(target.log.key).put(SyncJob(target))
            while Synced(3 - count) not in targets[0].events:
                await asyncio.sleep(0.001)
        disk.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_stop_of_the_disk_threads_finishes_queued_jobs() -> None:
    async def main() -> None:
        disk = Disk(asyncio.get_running_loop(), append_threads=2, read_threads=1, clock=Clock())
        manager = logs()
        target = Recorder(manager.create(PartitionKey(TOPIC, 0), None, 1))
        queue = disk.worker_of(target.log.key)
        for token in range(100):
            queue.put(job(target, token))
        queue.put(SyncJob(target))
        await asyncio.get_running_loop().run_in_executor(None, disk.stop)
        assert (target.log.log_end_offset, target.log.flushed_end) == (100, 100)

    asyncio.run(main())


def test_error_on_a_disk_thread_reaches_the_caller() -> None:
    async def main() -> None:
        disk = Disk(asyncio.get_running_loop(), append_threads=1, read_threads=2, clock=Clock())

        def fail() -> None:
            raise ValueError("no")

        key = PartitionKey(TOPIC, 0)
        for coroutine in (disk.run_on(key, fail), disk.run_keeper(fail), disk.run_read(fail)):
            with pytest.raises(ValueError, match="no"):
                await coroutine
        assert await disk.run_read(lambda: 5) == 5
        disk.stop()

    asyncio.run(main())


def test_callback_that_raises_does_not_drop_the_results_of_other_jobs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        disk = Disk(asyncio.get_running_loop(), append_threads=1, read_threads=1, clock=Clock())
        key = PartitionKey(TOPIC, 0)
        gate = threading.Event()

        def bad(*_: object) -> None:
            raise RuntimeError("an error in the test's callback")

        disk.call(key, gate.wait, lambda *_: None)
        disk.call(key, lambda: 1, bad)
        good = asyncio.ensure_future(disk.run_on(key, lambda: 2))
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.wait_for(good, 20) == 2
        disk.stop()

    asyncio.run(main())
    assert "an error in the test's callback" in caplog.text


def test_all_appends_to_a_partition_use_the_same_thread() -> None:
    async def main() -> None:
        disk = Disk(asyncio.get_running_loop(), append_threads=3, read_threads=1, clock=Clock())
        queues = {id(disk.worker_of(PartitionKey(TOPIC, p))) for p in range(30)}
        assert len(queues) == 3
        again = disk.worker_of(PartitionKey(TOPIC, 4))
        assert again is disk.worker_of(PartitionKey(TOPIC, 4))
        disk.stop()

    asyncio.run(main())


def test_disk_call_soon_runs_callbacks_before_the_next_event_loop_turn() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = Disk(loop, append_threads=1, read_threads=1, clock=Clock())
        key, gate, order = PartitionKey(TOPIC, 0), threading.Event(), list[str]()
        last = loop.create_future()

        def first(*_: object) -> None:
            loop.call_soon(order.append, "next turn")
            disk.call_soon(soon)
            order.append("first result")

        def soon() -> None:
            order.append("soon")
            disk.call_soon(lambda: order.append("sooner than the next turn"))

        disk.call(key, gate.wait, first)
        disk.call(key, lambda: None, lambda *_: order.append("second result"))
        await asyncio.sleep(0)
        gate.set()
        disk.call(key, lambda: None, lambda *_: loop.call_soon(last.set_result, None))
        await asyncio.wait_for(last, 20)
        results = ["first result", "second result"]
        assert order == [*results, "soon", "sooner than the next turn", "next turn"]
        disk.stop()

    asyncio.run(main())


def test_call_soon_callback_that_raises_does_not_drop_other_callbacks() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = Disk(loop, append_threads=1, read_threads=1, clock=Clock())
        reported: list[object] = []
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        error, done = RuntimeError("an error in the test's callback"), loop.create_future()

        def bad() -> None:
            raise error

        disk.call_soon(bad)
        disk.call_soon(lambda: done.set_result(None))
        await asyncio.wait_for(done, 20)
        assert reported == [error]
        disk.stop()

    asyncio.run(main())
