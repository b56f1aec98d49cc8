"""The broker's disk threads in virtual time, without threads. Production code executes the jobs.

After a short delay a worker takes all waiting jobs as one group and executes them at one instant.
The worker flushes after the disk's simulated latency and then posts the results. A power cut during
a group (``MemFiles.stop_at``) ends the process at once, so the worker posts none of its results.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

from sim.scheduler import WALL_BEGAN_MS
from support.memory_files import MemFiles

from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions.disk import (
    AppendJob,
    Disk,
    Done,
    Job,
    Result,
    SyncJob,
    T,
    Worker,
    _call,
    _deliver,
)

Observer = Callable[[Job], None]


class SimClock(Clock):
    """The clock of one machine, derived from the event loop's time; wall time starts in 2025.

    ``skew_ms`` is the error of the wall clock. ``rate`` is the speed of the clock; 1.0 is right.
    """

    __slots__ = ("_loop", "_since", "rate", "skew_ms")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, skew_ms: int = 0, rate: float = 1.0
    ) -> None:
        self._loop = loop
        self._since = loop.time()
        self.skew_ms = skew_ms
        self.rate = rate

    def now_ms(self) -> int:
        return WALL_BEGAN_MS + self.skew_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return self.monotonic_us() // 1000

    def monotonic_us(self) -> int:
        return int((self._since + (self._loop.time() - self._since) * self.rate) * 1_000_000)


class _SimWorker:
    """A simulated disk thread, which appends to logs and flushes them."""

    def __init__(self, name: str, disk: SimDisk) -> None:
        self.name = name
        self._disk = disk
        self._appends = disk.metrics.histogram("append_duration_seconds")
        self._flushes = disk.metrics.histogram("flush_duration_seconds")
        self._waiting: deque[Job] = deque()
        self._is_busy = False

    def put(self, job: Job) -> None:
        self._waiting.append(job)
        if not self._is_busy:
            self._is_busy = True
            self._disk.later(0.0002, self._take)

    def _take(self) -> None:
        """Execute all waiting jobs as a group; its flushes come last."""
        group = list(self._waiting)
        self._waiting.clear()
        syncs: list[Job] = []
        others: list[Job] = []
        for job in group:
            self._disk.observe(job)
            (syncs if type(job) is SyncJob else others).append(job)
        results = self._carry_out(others) if others else []
        if results is None:
            return
        has_followers = any(type(job) is AppendJob and job.target.has_followers for job in others)
        if syncs and has_followers:
            # Post the appends before the flush, so that followers fetch unflushed records.
            self._disk.later(0.0003, lambda: self._tell_then_sync(results, syncs))
        elif syncs:
            self._sync_later(results, syncs)
        else:
            is_slow = any(type(job) is not AppendJob for job in others)
            most_s = self._disk.sync_s() if is_slow else 0.0003
            self._disk.later(most_s, lambda: self._post(results))

    def _carry_out(self, group: list[Job]) -> list[Result] | None:
        """Run the disk thread's production code on a group of jobs; return None if the power was
        cut."""
        results = Worker._carry_out(self, group)  # type: ignore[arg-type]
        if self._disk.files.is_cut:
            self._disk.on_power_cut()
            return None
        return results

    def _tell_then_sync(self, results: list[Result], syncs: list[Job]) -> None:
        self._disk.post(results)
        self._sync_later([], syncs)

    def _sync_later(self, results: list[Result], syncs: list[Job]) -> None:
        """Flush after a delay; until then a power cut may lose the writes."""

        def sync() -> None:
            synced = self._carry_out(syncs)
            if synced is not None:
                self._post([*results, *synced])

        self._disk.later(self._disk.sync_s(), sync)

    def _post(self, results: list[Result]) -> None:
        self._is_busy = False
        if self._waiting:
            self._is_busy = True
            self._disk.later(0.0002, self._take)
        self._disk.post(results)


class SimDisk(Disk):
    """A simulated disk. It calls ``observe`` with each job that it executes, and ``on_power_cut``
    when a job hits a power cut."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        files: MemFiles,
        rng: random.Random,
        *,
        clock: Clock,
        on_power_cut: Callable[[], None],
        observe: Observer,
    ) -> None:
        self.clock = clock
        self.metrics = Metrics()
        self.files = files
        self.rng = rng
        self.on_power_cut = on_power_cut
        self.observe = observe
        self.slow_until = 0.0
        self._loop = loop
        self._stopped = False
        self._workers = [_SimWorker(f"disk-{n}", self) for n in range(2)]  # type: ignore[misc]
        self._keeper = _SimWorker("keeper", self)  # type: ignore[assignment]

    def later(self, most_s: float, function: Callable[[], None]) -> None:
        """Call ``function`` within ``most_s`` seconds, unless the process dies before."""

        def run() -> None:
            if not self._stopped:
                function()

        self._loop.call_later(self.rng.random() * most_s, run)

    def sync_s(self) -> float:
        """Return the longest time, in seconds, that a flush may take at present."""
        return 0.2 if self._loop.time() < self.slow_until else 0.002

    def read(self, function: Callable[[], T], done: Done[T]) -> None:
        self.later(0.001, lambda: done(*_call(function)))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def post(self, results: list[Result]) -> None:
        if not self._stopped:
            _deliver(results)

    def stop(self) -> None:
        self._stopped = True
