"""The threads of a broker that do file I/O: append threads, read threads, and one keeper thread.

Each partition belongs to one append thread, chosen by a hash of its key, so a partition's jobs run
in the order in which the event loop queued them. The thread runs all queued jobs as one group,
flushes each log once, and posts all results together (group commit). Jobs that arrive meanwhile
form the next group. A small group waits briefly, because producers that were just answered usually
send more batches. Appends of replicated partitions are reported before the flush, so that followers
flush in parallel.

Read threads load offset ranges into the page cache, check their CRCs and convert batches between
row and column format. The keeper thread runs operations on the whole data directory. A file-system
error becomes a StorageFailed event and does not end the thread."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from broker_lite.errors import LogbusError, StorageError, UnknownServerError
from broker_lite.model import PartitionKey
from broker_lite.record.batch import BatchHeader, validate_for_append
from broker_lite.record.control import MARKER_BYTES, Marker
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
from broker_lite.server.network.quotas import Spent, uncounted
from broker_lite.storage.log import Log

logger = logging.getLogger("logbus.disk")

GROUP_BYTES_MAX = 32 << 20
"""A group of appends that share a flush accepts no further append once it has this many bytes."""
COALESCE_BYTES = 256 << 10
"""A group of appends of at least this many bytes is flushed at once; a smaller one waits for more.

Up to this size, a flush takes about the same time for any number of bytes."""
COALESCE_US_MAX = 1_000
"""Maximum microseconds for which a small group of appends waits for more before its flush.

Producers that the previous group answered usually send their next batch within this time."""
READS_MS = 2
"""Milliseconds after which a job of ``run_reads`` starts no further function. Another job runs the
rest."""
STOP_TIMEOUT_S = 30.0
"""Seconds for which ``Disk.stop`` waits for each thread to end."""

T = TypeVar("T")
Done = Callable[[T | None, BaseException | None], None]
"""A function that receives a job's result or exception, on the event loop's thread."""


class DiskWork:
    """The seconds for which a disk thread works for one request.

    The thread adds to ``seconds``. The event loop reads them after it has the job's result."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[[], T]) -> Callable[[], T]:
        """Return a function that calls ``function`` and counts the time of the call."""

        def run() -> T:
            began = time.perf_counter()
            try:
                return function()
            finally:
                self.seconds += time.perf_counter() - began

        return run


class AppendBatch(NamedTuple):
    """A producer's batch, to append to a log. ``max_bytes`` is the topic's ``max.message.bytes``.

    The state machines of the package ``replication`` pass this object through, as ``payload``,
    without reading it."""

    buffer: memoryview
    header: BatchHeader
    max_bytes: int
    begins_at_zero: bool = False
    """Whether the first batch of a producer that is new to the log must have sequence number 0.

    Transaction version 2 (KIP-890) requires it."""
    work: DiskWork | None = None
    """Receives the time of the check and the append; None if no quota limits the producer's time.

    The flush does not count, because several producers share it."""

    @property
    def size_bytes(self) -> int:
        return len(self.buffer)


class MarkerBatch(NamedTuple):
    """Transaction markers to append to one log. The append thread checks each marker
    (``ProducerState.judge``)."""

    markers: tuple[Marker, ...]

    @property
    def size_bytes(self) -> int:
        return len(self.markers) * MARKER_BYTES


class AppendTarget(Protocol):
    """The replica whose log a disk job changes. ``deliver`` runs on the event loop's thread."""

    @property
    def log(self) -> Log: ...

    @property
    def has_followers(self) -> bool: ...

    def deliver(self, event: Event) -> None: ...


class AppendJob(NamedTuple):
    """An append to a leader's log. Its outcome, Appended or AppendFailed, has the ``token`` of the
    produce request."""

    target: AppendTarget
    token: int
    batch: AppendBatch | MarkerBatch
    leader_epoch: int
    keep: bool = True
    """Whether the appended pages stay in the page cache once they are on disk."""


class FollowJob(NamedTuple):
    """An append of records that a follower fetched from its leader.

    If the payload has batches in logbus's column format, ``columns`` is called with the end offset
    of the last of them, on the event loop, before the job's result is delivered. ``keep`` tells
    whether the appended pages stay in the page cache."""

    target: AppendTarget
    payload: memoryview
    leader_epoch: int
    columns: Callable[[int], None]
    keep: bool = True


class SyncJob(NamedTuple):
    """A job that flushes the log of the replica ``target``."""

    target: AppendTarget


class CallJob(NamedTuple):
    """A function to run on a disk thread. ``done`` receives its result or exception."""

    function: Callable[[], Any]
    done: Done[Any]


Job = AppendJob | FollowJob | SyncJob | CallJob
Result = tuple[AppendTarget | None, Any, Any]
"""A job's result for the event loop.

(target, event, None) delivers an event to the replica ``target``; (None, callback, arguments) calls
a callback."""


class Worker(threading.Thread):
    """An append thread, or the keeper thread (for the whole data directory), with its queue of
    jobs."""

    def __init__(self, name: str, disk: Disk, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name=name, daemon=True)
        self._disk = disk
        self._loop = loop
        self._waiting: deque[Job] = deque()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._is_called = self._is_ended = False
        self._in_flight_count = 0
        """Number of jobs in the previous group, plus the jobs in the queue when that ended.

        A next group of fewer jobs waits briefly for more: the same producers may soon send their
        next batches."""
        self._coalesce_until_us = 0
        """Monotonic time (microseconds) until which a small group of appends waits for more."""
        self._appends = disk.metrics.histogram("append_duration_seconds")
        self._flushes = disk.metrics.histogram("flush_duration_seconds")

    def put(self, job: Job) -> None:
        """Queue a job. Only the event loop's thread may call this method.

        The worker wakes at the end of this iteration of the event loop. If it woke earlier, it
        would contend with the loop for the interpreter lock, and fewer appends would share a
        flush."""
        self._waiting.append(job)
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._is_called = False
        self._wakeups.put(None)

    def end(self) -> None:
        """End the thread once its queue is empty, even if the event loop has stopped."""
        self._is_ended = True
        self._wakeups.put(None)

    def run(self) -> None:
        while not self._is_ended or self._waiting:
            self._wakeups.get()
            while self._waiting:
                group = self._next_group()
                began_us = self._disk.clock.monotonic_us()
                self._disk.post(self._carry_out(group))
                now_us = self._disk.clock.monotonic_us()
                self._in_flight_count = len(group) + len(self._waiting)
                self._coalesce_until_us = now_us + min(now_us - began_us, COALESCE_US_MAX)
                # Release the finished disk jobs: otherwise this thread, while idle, would keep
                # files of a deleted partition open.
                del group

    def _next_group(self) -> list[Job]:
        """Take the queued jobs as the next group; a small group first waits briefly for more jobs.

        Without the wait, producers that send again at once would be split over two flushes. A group
        with replicated partitions does not wait here, because its producers wait for followers
        anyway."""
        waiting = self._waiting
        group: list[Job] = []
        size = 0
        may_wait = True
        while True:
            while waiting and size < GROUP_BYTES_MAX:
                job = waiting.popleft()
                group.append(job)
                if type(job) is AppendJob:
                    size += job.batch.size_bytes
                    may_wait = may_wait and not job.target.has_followers
                elif type(job) is not SyncJob:
                    may_wait = False
                    if type(job) is FollowJob:
                        size += len(job.payload)
            may_wait = may_wait and size < COALESCE_BYTES and len(group) < self._in_flight_count
            if not may_wait or not self._has_more():
                return group

    def _has_more(self) -> bool:
        """Wait for another job. Return False when the group of jobs has waited long enough."""
        left_us = self._coalesce_until_us - self._disk.clock.monotonic_us()
        if left_us <= 0:
            return False
        try:
            self._wakeups.get(timeout=left_us / 1e6)
        except Empty:
            return False
        return True

    def _carry_out(self, group: list[Job]) -> list[Result]:
        results: list[Result] = []
        dirty: dict[AppendTarget, None] = {}
        now_ms = self._disk.clock.now_ms()
        began_us = self._disk.clock.monotonic_us()
        has_followers = has_appends = False
        for job in group:
            if type(job) is AppendJob:
                results.append((job.target, _append(job, now_ms), None))
                if job.target.log.failed:
                    results.append(_failure(job.target))
                has_followers = has_followers or job.target.has_followers
                has_appends = True
            elif type(job) is FollowJob:
                _follow(job, now_ms, results)
                has_appends = True
            elif type(job) is SyncJob:
                dirty[job.target] = None
            else:
                assert isinstance(job, CallJob)
                results.append((None, job.done, _call(job.function)))
        if has_appends:
            self._appends.observe((self._disk.clock.monotonic_us() - began_us) / 1e6)
        if dirty:
            if has_followers:
                self._disk.post(results)
                results = []
            began_ms = self._disk.clock.monotonic_ms()
            if len(dirty) > 1:
                # Start all flushes before waiting for the first, so that the disk runs them in
                # parallel.
                for target in dirty:
                    target.log.start_flush()
            for target in dirty:
                results.append(_flush(target))
            took_ms = self._disk.clock.monotonic_ms() - began_ms
            self._flushes.observe(took_ms / 1000)
        return results


def _append(job: AppendJob, now_ms: int) -> Event:
    batch = job.batch
    if isinstance(batch, MarkerBatch):
        return _append_markers(job, batch, now_ms)
    if batch.work is None:
        return _append_batch(job, batch, now_ms)
    return batch.work.timed(partial(_append_batch, job, batch, now_ms))()


def _append_batch(job: AppendJob, batch: AppendBatch, now_ms: int) -> Event:
    log = job.target.log
    try:
        validate_for_append(batch.buffer, batch.header, batch.max_bytes)
        base, following, append_ms, duplicate = log.append_as_leader(
            batch.buffer,
            batch.header,
            job.leader_epoch,
            now_ms,
            keep=job.keep,
            begins_at_zero=batch.begins_at_zero,
        )
    except LogbusError as error:
        # Record the refused append at once: the producer's next batch may be in the same group of
        # appends, and must not be appended after a gap.
        log.note_refused(batch.header, error)
        return AppendFailed(job.token, error)
    except Exception:
        logger.exception("%s: unexpected error while appending a batch", log.key)
        return AppendFailed(job.token, UnknownServerError())
    return Appended(job.token, base, following, append_ms, log.log_start_offset, duplicate)


def _append_markers(job: AppendJob, batch: MarkerBatch, now_ms: int) -> Event:
    log = job.target.log
    try:
        base, following, errors = log.append_markers(batch.markers, job.leader_epoch, now_ms)
    except LogbusError as error:
        return AppendFailed(job.token, error)
    except Exception:
        logger.exception("%s: unexpected error while appending markers", log.key)
        return AppendFailed(job.token, UnknownServerError())
    start = log.log_start_offset
    return Appended(job.token, base, following, log_start_offset=start, errors=errors)


def _follow(job: FollowJob, now_ms: int, results: list[Result]) -> None:
    log, target = job.target.log, job.target
    try:
        following = log.append_as_follower(job.payload, job.leader_epoch, now_ms, keep=job.keep)
        columns_end = _columns_end(job.payload, following)
    except LogbusError as error:
        results.append((target, FetchedAppendFailed(error), None))
    except Exception as error:
        logger.exception("%s: unexpected error while appending fetched records", log.key)
        results.append((target, FetchedAppendFailed(UnknownServerError(repr(error))), None))
    else:
        if columns_end >= 0:
            results.append((None, job.columns, (columns_end,)))
        results.append((target, FetchedAppended(following, log.leader_epochs.latest), None))
    if log.failed:
        results.append(_failure(target))


def _columns_end(buffer: memoryview, end_offset: int) -> int:
    """Return the end offset of the buffer's last batch in logbus's column format up to
    ``end_offset``; -1 without such a batch."""
    end = -1
    for batch in BatchWalker(WalkPolicy(allows_gaps=True, orders_epochs=False), 0).walk(buffer):
        if batch.header.next_offset > end_offset:
            break
        if batch.header.is_columns:
            end = batch.header.next_offset
    return end


def _flush(target: AppendTarget) -> Result:
    log = target.log
    try:
        return target, Synced(log.flush()), None
    except LogbusError as error:
        return target, StorageFailed(error), None
    except Exception as error:
        logger.exception("%s: unexpected error while flushing the log", log.key)
        return target, StorageFailed(StorageError(f"{log.key}: cannot flush: {error!r}")), None


def _failure(target: AppendTarget) -> Result:
    return target, StorageFailed(StorageError(f"{target.log.key}: the data directory failed")), None


def _call(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


class Disk:
    """The threads of a broker for file I/O. The constructor starts them."""

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
        self._soon: deque[Callable[[], None]] = deque()
        """The callbacks passed to ``call_soon`` that have not run yet."""
        self._runs_soon = False
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
        """Return the append thread of the partition, which runs its jobs in order."""
        # A CRC, unlike hash(), gives a partition the same thread after a restart, so that traces of
        # two runs can be compared.
        slot = zlib.crc32(key.topic_id.encode()) + key.partition
        return self._workers[slot % len(self._workers)]

    def call(self, key: PartitionKey, function: Callable[[], T], done: Done[T]) -> None:
        """Run ``function`` on the partition's append thread, after the jobs queued before it."""
        self.worker_of(key).put(CallJob(function, done))

    def keep(self, function: Callable[[], T], done: Done[T]) -> None:
        """Run ``function``, an operation on the whole data directory, on the keeper thread."""
        self._keeper.put(CallJob(function, done))

    def read(self, function: Callable[[], T], done: Done[T]) -> None:
        """Run ``function`` on a read thread. Functions start in the order of the calls."""
        self._reads.put(CallJob(function, done))

    async def run_on(
        self, key: PartitionKey, function: Callable[[], T], spent: Spent = uncounted
    ) -> T:
        """Run ``function`` on the partition's append thread and return its result."""
        return await self._awaited(function, partial(self.call, key), spent)

    async def run_keeper(self, function: Callable[[], T]) -> T:
        """Run ``function``, an operation on the whole data directory, on the keeper thread, and
        return its result."""
        return await self._awaited(function, self.keep, uncounted)

    async def run_read(self, function: Callable[[], T], spent: Spent = uncounted) -> T:
        """Run ``function`` on a read thread and return its result."""
        return await self._awaited(function, self.read, spent)

    async def run_reads(
        self, functions: Sequence[Callable[[], T]], spent: Spent = uncounted
    ) -> list[T | LogbusError]:
        """Run short functions, such as lookups, on a read thread, in order. Return the result of
        each, or the LogbusError that it raised.

        One job runs many functions, because to start a job for each would cost more than the
        lookups themselves. After ``READS_MS`` the job ends, so that other reads can start, and
        another job continues."""
        results: list[T | LogbusError] = []
        while len(results) < len(functions):
            some = partial(self._run_some, functions, len(results))
            results += await self.run_read(some, spent)
        return results

    def _run_some(self, functions: Sequence[Callable[[], T]], first: int) -> list[T | LogbusError]:
        until_ms = self.clock.monotonic_ms() + READS_MS
        results: list[T | LogbusError] = []
        for function in itertools.islice(functions, first, None):
            try:
                results.append(function())
            except LogbusError as error:
                results.append(error)
            if self.clock.monotonic_ms() >= until_ms:
                break
        return results

    async def _awaited(
        self,
        function: Callable[[], T],
        start: Callable[[Callable[[], T], Done[T]], None],
        spent: Spent,
    ) -> T:
        """Pass ``function`` to ``start``, which runs it on a disk thread. Return its result."""
        future: asyncio.Future[T] = self._loop.create_future()
        work = DiskWork()

        def done(value: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        start(work.timed(function), done)
        try:
            return await future
        finally:
            spent(work.seconds)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the event loop, right after the results that are being delivered.

        To wait for the loop's next iteration instead would cost a system call and one more change
        of the interpreter lock."""
        self._soon.append(callback)
        if not self._runs_soon:
            self._runs_soon = True
            self._loop.call_soon(self._run_soon)

    def _run_soon(self) -> None:
        soon = self._soon
        try:
            while soon:
                soon.popleft()()
        finally:
            self._runs_soon = bool(soon)
            if soon:  # After an exception, which asyncio logs, run the remaining callbacks.
                self._loop.call_soon(self._run_soon)

    def post(self, results: list[Result]) -> None:
        """Pass the results of a group of jobs to the event loop, which wakes once for all of
        them."""
        try:
            self._loop.call_soon_threadsafe(self._delivered, results)
        except RuntimeError:
            if not self._stopped:
                raise

    def _delivered(self, results: list[Result]) -> None:
        self._runs_soon = True
        _deliver(results)
        self._run_soon()

    def stop(self) -> None:
        """Block until all queued jobs have run and all threads have ended.

        This works even if the event loop has stopped."""
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
            # An exception for one partition must not drop the results of the others.
            logger.exception("unexpected error while handling the result of a disk job")
