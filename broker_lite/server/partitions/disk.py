"""The threads that touch files: appends with group commit, and bounded cold reads.

Each partition belongs to one append thread (by hash of its key), so its jobs run in the order in
which the loop gave them; the loop wakes it once a turn. It takes everything that waits, appends it,
flushes each log that was asked to be flushed once, and posts all results to the loop with one call.
The next group is what arrived meanwhile and, if it is small, those who send again at once. Where
there are followers, what was appended is told before the flush, so that theirs runs beside ours.
Read threads warm, verify and transcode ranges. The keeper thread does what concerns the whole
directory. Results reach the loop as events or by callback; an error of the file system arrives as
StorageFailed, never as a thread's exception.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import zlib
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from broker_lite.errors import LogbusError, StorageError, UnknownServerError
from broker_lite.model import PartitionKey
from broker_lite.record.batch import BatchHeader, validate_for_append
from broker_lite.record.walker import BatchWalker, WalkPolicy
from broker_lite.replication.events import (
    Appended,
    AppendFailed,
    Event,
    FetchedAppended,
    FetchedAppendFailed,
    StorageFailed,
    Synced,
)
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.storage.log import Log

logger = logging.getLogger("logbus.disk")

GROUP_BYTES_MAX = 32 << 20
"""A group is flushed and answered after so many bytes, however much more is waiting."""
COMPANY_BYTES = 256 << 10
"""A flush takes about the same time up to so many bytes: a group that has them does not wait for
company."""
COMPANY_US_MAX = 1_000
"""How long a group waits at most for those that the one before it has just answered."""
STOP_TIMEOUT_S = 30.0

T = TypeVar("T")
Done = Callable[[T | None, BaseException | None], None]
"""Called on the loop with the result or the exception."""


class Batch(NamedTuple):
    """What a produce wants appended: the payload that replication passes through."""

    buffer: memoryview
    header: BatchHeader
    max_bytes: int


class Target(Protocol):
    """Whom an append's outcome is told, on the loop: a replica."""

    @property
    def log(self) -> Log: ...

    @property
    def has_followers(self) -> bool: ...

    def deliver(self, event: Event) -> None: ...


class AppendJob(NamedTuple):
    """A leader's append; ``token`` is the machine's, by which it hears of the outcome."""

    target: Target
    token: int
    batch: Batch
    leader_epoch: int
    keep: bool = True
    """Whether it is to stay in memory, as below."""


class FollowJob(NamedTuple):
    """Append what a leader sent. ``columns`` is called on the loop, before the outcome is told,
    with where the last batch of columns in it ends."""

    target: Target
    payload: memoryview
    leader_epoch: int
    columns: Callable[[int], None]
    keep: bool = True


class SyncJob(NamedTuple):
    target: Target


class CallJob(NamedTuple):
    function: Callable[[], Any]
    done: Done[Any]


Job = AppendJob | FollowJob | SyncJob | CallJob
Result = tuple[Target | None, Any, Any]
"""(target, event, None), or (None, done, (value, exception))."""


class Worker(threading.Thread):
    """One append thread and what waits for it. ``put`` is the only way in, the loop the way out."""

    def __init__(self, name: str, disk: Disk, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name=name, daemon=True)
        self._disk = disk
        self._loop = loop
        self._waiting: deque[Job] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_called = self._is_ended = False
        self._company = 0
        """How many jobs were under way when the last group was answered."""
        self._company_until_us = 0

    def put(self, job: Job) -> None:
        """Loop thread. The thread is woken at the end of this turn of the loop: sooner, it would
        only contend with the loop for the interpreter, and find less to do at once."""
        self._waiting.append(job)
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._is_called = False
        self._bell.put(None)

    def end(self) -> None:
        """Let the thread end when nothing waits any more; the loop need not run."""
        self._is_ended = True
        self._bell.put(None)

    def run(self) -> None:
        while not self._is_ended or self._waiting:
            self._bell.get()
            while self._waiting:
                group = self._next_group()
                began_us = self._disk.clock.monotonic_us()
                self._disk.post(self._carry_out(group))
                now_us = self._disk.clock.monotonic_us()
                self._company = len(group) + len(self._waiting)
                self._company_until_us = now_us + min(now_us - began_us, COMPANY_US_MAX)
                # An idle thread must not hold the files of a deleted partition open.
                del group

    def _next_group(self) -> list[Job]:
        """What waits; and, while that is little, what is about to come. Producers that were just
        answered send again at once: a group that began without them would be flushed for a part of
        those under way, and the next for the rest, at nearly the cost of both each time. Where
        there are followers, these decide when to answer: they are not kept waiting."""
        waiting = self._waiting
        group: list[Job] = []
        size = 0
        may_wait = True
        while True:
            while waiting and size < GROUP_BYTES_MAX:
                job = waiting.popleft()
                group.append(job)
                if type(job) is AppendJob:
                    size += len(job.batch.buffer)
                    may_wait = may_wait and not job.target.has_followers
                elif type(job) is not SyncJob:
                    may_wait = False
                    if type(job) is FollowJob:
                        size += len(job.payload)
            may_wait = may_wait and size < COMPANY_BYTES and len(group) < self._company
            if not may_wait or not self._is_joined():
                return group

    def _is_joined(self) -> bool:
        """Whether the bell rang in the time that a group has for company."""
        left_us = self._company_until_us - self._disk.clock.monotonic_us()
        if left_us <= 0:
            return False
        try:
            self._bell.get(timeout=left_us / 1e6)
        except Empty:
            return False
        return True

    def _carry_out(self, group: list[Job]) -> list[Result]:
        results: list[Result] = []
        dirty: dict[Target, None] = {}
        now_ms = self._disk.clock.now_ms()
        has_followers = False
        for job in group:
            if type(job) is AppendJob:
                results.append((job.target, _append(job, now_ms), None))
                if job.target.log.failed:
                    results.append(_failure(job.target))
                has_followers = has_followers or job.target.has_followers
            elif type(job) is FollowJob:
                _follow(job, now_ms, results)
            elif type(job) is SyncJob:
                dirty[job.target] = None
            else:
                assert isinstance(job, CallJob)
                results.append((None, job.done, _call(job.function)))
        if dirty:
            if has_followers:
                self._disk.post(results)
                results = []
            began_ms = self._disk.clock.monotonic_ms()
            if len(dirty) > 1:
                # The disk works on all of them while the first is waited for.
                for target in dirty:
                    target.log.start_flush()
            for target in dirty:
                results.append(_flush(target))
            took_ms = self._disk.clock.monotonic_ms() - began_ms
            self._disk.metrics.observe_ms("flush", took_ms, label=self.name)
        return results


def _append(job: AppendJob, now_ms: int) -> Event:
    batch, log = job.batch, job.target.log
    try:
        validate_for_append(batch.buffer, batch.header, batch.max_bytes)
        base, following, append_ms, duplicate = log.append_as_leader(
            batch.buffer, batch.header, job.leader_epoch, now_ms, keep=job.keep
        )
    except LogbusError as error:
        # At once: the batch behind it may wait in this group.
        log.note_refused(batch.header, error)
        return AppendFailed(job.token, error)
    except Exception:
        logger.exception("%s: append", log.key)
        return AppendFailed(job.token, UnknownServerError())
    return Appended(job.token, base, following, append_ms, log.log_start_offset, duplicate)


def _follow(job: FollowJob, now_ms: int, results: list[Result]) -> None:
    log, target = job.target.log, job.target
    try:
        following = log.append_as_follower(job.payload, job.leader_epoch, now_ms, keep=job.keep)
        columns_end = _columns_end(job.payload, following)
    except LogbusError as error:
        results.append((target, FetchedAppendFailed(error), None))
    except Exception as error:
        logger.exception("%s: append of what was fetched", log.key)
        results.append((target, FetchedAppendFailed(UnknownServerError(repr(error))), None))
    else:
        if columns_end >= 0:
            results.append((None, job.columns, (columns_end,)))
        results.append((target, FetchedAppended(following, log.leader_epochs.latest), None))
    if log.failed:
        results.append(_failure(target))


def _columns_end(buffer: memoryview, end_offset: int) -> int:
    """Where the last batch of columns ends, of those below ``end_offset``; -1 if there is none."""
    end = -1
    for batch in BatchWalker(WalkPolicy(allows_gaps=True, orders_epochs=False), 0).walk(buffer):
        if batch.header.next_offset > end_offset:
            break
        if batch.header.is_columns:
            end = batch.header.next_offset
    return end


def _flush(target: Target) -> Result:
    log = target.log
    try:
        return target, Synced(log.flush()), None
    except LogbusError as error:
        return target, StorageFailed(error), None
    except Exception as error:
        logger.exception("%s: flush", log.key)
        return target, StorageFailed(StorageError(f"{log.key}: flush: {error!r}")), None


def _failure(target: Target) -> Result:
    return target, StorageFailed(StorageError(f"{target.log.key}: its directory failed")), None


def _call(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


class Disk:
    """``append_threads`` and ``read_threads`` threads and the keeper, started at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        append_threads: int,
        read_threads: int,
        clock: Clock,
        metrics: Metrics | None = None,
    ) -> None:
        self.clock = clock
        self.metrics = metrics or Metrics()
        self._loop = loop
        self._stopped = False
        self._workers = [Worker(f"disk-{n}", self, loop) for n in range(append_threads)]
        self._keeper = Worker("keeper", self, loop)
        self._reads: SimpleQueue[CallJob | None] = SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read_loop, name=f"read-{n}", daemon=True)
            for n in range(read_threads)
        ]
        for thread in (*self._workers, self._keeper, *self._readers):
            thread.start()

    def worker_of(self, key: PartitionKey) -> Worker:
        """Where to put the jobs of a partition, in their order."""
        # Not hash(): the same partition keeps its thread across restarts, so traces compare.
        place = zlib.crc32(key.topic_id.encode()) + key.partition
        return self._workers[place % len(self._workers)]

    def call(self, key: PartitionKey, function: Callable[[], T], done: Done[T]) -> None:
        """Run ``function`` between the appends of a partition."""
        self.worker_of(key).put(CallJob(function, done))

    def keep(self, function: Callable[[], T], done: Done[T]) -> None:
        """Run ``function`` on the keeper: what concerns the whole directory."""
        self._keeper.put(CallJob(function, done))

    def read(self, function: Callable[[], T], done: Done[T]) -> None:
        """Run ``function`` on a read thread; calls wait their turn in order."""
        self._reads.put(CallJob(function, done))

    async def run_on(self, key: PartitionKey, function: Callable[[], T]) -> T:
        """``call`` for coroutines."""
        return await self._awaited(lambda done: self.call(key, function, done))

    async def run_keeper(self, function: Callable[[], T]) -> T:
        """``keep`` for coroutines."""
        return await self._awaited(lambda done: self.keep(function, done))

    async def run_read(self, function: Callable[[], T]) -> T:
        """``read`` for coroutines."""
        return await self._awaited(lambda done: self.read(function, done))

    async def _awaited(self, start: Callable[[Done[T]], None]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()

        def done(value: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        start(done)
        return await future

    def post(self, results: list[Result]) -> None:
        """Hand a group's results to the loop: one wake-up, whatever their number."""
        try:
            self._loop.call_soon_threadsafe(_deliver, results)
        except RuntimeError:
            if not self._stopped:
                raise

    def stop(self) -> None:
        """Finish what is queued, then end the threads. Blocks; the loop need not run."""
        self._stopped = True
        for worker in (*self._workers, self._keeper):
            worker.end()
        for _ in self._readers:
            self._reads.put(None)
        for thread in (*self._workers, self._keeper, *self._readers):
            thread.join(STOP_TIMEOUT_S)

    def _read_loop(self) -> None:
        while True:
            job = self._reads.get()
            if job is None:
                return
            self.post([(None, job.done, _call(job.function))])
            del job


def _deliver(results: list[Result]) -> None:
    for target, what, arguments in results:
        try:
            if target is not None:
                target.deliver(what)
            else:
                what(*arguments)
        except Exception:
            # One partition's trouble must not swallow the results of the others.
            logger.exception("a result of a disk thread")
