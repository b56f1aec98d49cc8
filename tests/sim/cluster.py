"""A simulated cluster: what outlives its processes (disks, ZooKeeper, network), and the trace.

The trace hashes every event, so that two runs of a seed can be compared. It keeps the last events
as text for the failure report.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import hashlib
import itertools
import marshal
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

from sim.checker import Checker, Violation
from sim.disk import SimClock
from sim.net import CLIENTS, Channel, SimNet, ask
from sim.options import Options
from sim.process import DIRECTORY, Process
from sim.rot import Rot
from sim.scheduler import OUTSIDE, SimLoop, stream
from sim.zk import SimZk, ZkService
from support.memory_files import MemFiles, PowerCut

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError
from broker_lite.metadata.store import Operation

__all__ = ["SimCluster", "Violation", "pick"]

TAIL_LINES = 300
HASHED_AT_ONCE = 256
MARSHAL_VERSION = 2
"""The marshal version that writes equal values as equal bytes."""
T = TypeVar("T")


class SimCluster:
    """A ZooKeeper and ``options.brokers`` brokers, each with a disk and a spare disk."""

    def __init__(self, options: Options) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        seed = options.seed
        self.loop = loop
        self.options = options
        self.seed = seed
        self.chance = stream(seed, "cluster")
        self.disk_chance = stream(seed, "disk")
        self.ids = stream(seed, "ids")
        self.zk = ZkService(stream(seed, "zk"), session_timeout_s=options.session_timeout_s)
        self.zk.on_write = self._zk_written
        self.net = SimNet(loop, stream(seed, "net"), self.serving)
        self.net.delay_s = options.net_delay_s
        self.process_numbers: Iterator[int] = itertools.count(1)
        brokers = range(1, options.brokers + 1)
        self.disks = {n: MemFiles() for n in brokers}
        self.spares = {n: MemFiles() for n in brokers}
        self.processes: dict[int, Process] = {}
        self.checker = Checker(self)
        self.rot = Rot(self, stream(seed, "rot"))
        self.steps = 0
        self.counts: dict[str, int] = {}
        self.tail: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=TAIL_LINES)
        self.failure: BaseException | None = None
        self._hash = hashlib.blake2b(digest_size=16)
        self._unhashed: list[tuple[float, tuple[object, ...]]] = []
        self._channels: dict[tuple[str, int], Channel] = {}
        self._by_store: dict[SimZk, Process] = {}
        loop.set_exception_handler(self._unhandled)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Make the simulated run fail because of an exception that no code handled."""
        error = context.get("exception")
        if error is not None and not isinstance(error, LogbusError):
            self.failure = self.failure or error

    def config(self, broker_id: int) -> BrokerConfig:
        options = self.options
        return BrokerConfig(
            broker_id=broker_id,
            log_dir=DIRECTORY,
            zookeeper_session_timeout_ms=int(options.session_timeout_s * 1000),
            replica_lag_ms=options.replica_lag_ms,
            replica_fetch_wait_ms=options.fetch_wait_ms,
        )

    def clock(self) -> SimClock:
        """Return a clock for a process. Wall time may be wrong; the speed errs by up to 10 %."""
        if not self.options.clock_rates:
            return SimClock(self.loop)
        skew_ms = self.chance.choice((0, 0, -3_600_000, 90_000, 5_000))
        return SimClock(self.loop, skew_ms=skew_ms, rate=0.9 + self.chance.random() * 0.2)

    # The methods below record the trace.

    def trace(self, *words: object) -> None:
        """Add one event to the trace, from which two runs of a seed are compared."""
        self.tail.append((self.loop.now, words))
        self.steps += 1
        self._unhashed.append((self.loop.now, words))
        if len(self._unhashed) >= HASHED_AT_ONCE:
            self._digest()

    def _digest(self) -> None:
        self._hash.update(marshal.dumps(self._unhashed, MARSHAL_VERSION))
        self._unhashed.clear()

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    @property
    def digest(self) -> str:
        self._digest()
        return self._hash.hexdigest()

    def last_lines(self, count: int) -> str:
        rows = list(self.tail)[-count:]
        return "\n".join(f"{at:.6f} {' '.join(map(str, words))}" for at, words in rows)

    # The methods below start and end processes.

    def serving(self, broker_id: int) -> Process | None:
        """Return the broker's process if it accepts requests, otherwise None."""
        process = self.processes.get(broker_id)
        return process if process is not None and process.serving else None

    def process_of(self, session_id: int) -> Process:
        """Return the process that has a ZooKeeper session; the process may be dead."""
        return self._by_store[self.zk.client_of(session_id)]

    async def start(
        self, broker_id: int, *, files: MemFiles | None = None, is_stale: bool = False
    ) -> bool:
        """Start a broker that is not running; return False if it could not start."""
        assert broker_id not in self.processes
        process = Process(self, broker_id, files or self.disks[broker_id], is_stale=is_stale)
        self.processes[broker_id] = process
        self._by_store[process.zk] = process
        self.trace("start", broker_id, process.number, "other disk" if files else "")
        starting = self.loop.create_task(process.start(), context=process.context)
        await self._until_over(process, starting)
        if not starting.done() or starting.cancelled():
            return False
        error = starting.exception()
        if isinstance(error, PowerCut):
            self.power_cut(process)
        elif isinstance(error, LogbusError | OSError):
            self.trace("refused", broker_id, type(error).__name__)
            if self.processes.get(broker_id) is process:
                self.kill(broker_id)
        elif error is not None:
            raise error
        return error is None and process.alive

    async def _until_over(self, process: Process, task: asyncio.Task[None]) -> None:
        over: asyncio.Future[None] = self.loop.create_future()

        def end(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        task.add_done_callback(end, context=OUTSIDE)
        process.on_end = end
        await over

    def kill(self, broker_id: int) -> None:
        """Kill the process: its writes stay in the page cache, and peers see connections close."""
        process = self.processes.pop(broker_id)
        self.trace("kill", broker_id, process.number)
        self._end(process, silently=False)
        process.files.kill()

    def power_cut(self, process: Process) -> None:
        """Cut the machine's power.

        Writes since the last sync are lost, kept or torn. Peers do not see their connections close.
        """
        if self.processes.get(process.broker_id) is process:
            del self.processes[process.broker_id]
        self.trace("power cut", process.broker_id, process.number)
        self.count("power cuts")
        self._end(process, silently=True)
        process.files.crash(self.disk_chance)

    def _end(self, process: Process, *, silently: bool) -> None:
        epoch = process.registry.broker_epoch
        process.end()
        self.net.died(process, silently=silently)
        process.on_end()
        if self.options.hints and not silently:
            for peer in list(self.processes.values()):
                self._hint(peer, process.broker_id, epoch)

    def _hint(self, peer: Process, broker_id: int, epoch: int) -> None:
        """Make a peer suspect that the broker is dead, as if the broker had refused a
        reconnection."""

        def suspect() -> None:
            if peer.serving and broker_id not in self.processes:
                peer.registry.suspect(broker_id, epoch)

        def hear() -> None:
            self.loop.call_soon(suspect, context=peer.context)

        self.net.send(broker_id, peer.broker_id, self.loop.now, hear)

    def stopped(self, process: Process, error: LogbusError) -> None:
        """Record that a broker has stopped itself after an error."""
        self.trace("stops", process.broker_id, type(error).__name__)
        if self.processes.get(process.broker_id) is process:
            self.kill(process.broker_id)

    async def stop(self, broker_id: int) -> None:
        """Stop a broker with SIGTERM, and wait until its process has ended."""
        process = self.processes[broker_id]
        self.trace("stop", broker_id, process.number)
        stopping = self.loop.create_task(process.stop(), context=process.context)
        await self._until_over(process, stopping)
        if self.processes.get(broker_id) is process:
            self.kill(broker_id)

    def fail_sync(self, broker_id: int) -> None:
        """Make the broker's next flush fail with EIO."""
        self.processes[broker_id].files.fail_next("datasync", errno.EIO, path=".log")

    def snapshot_of(self, broker_id: int) -> MemFiles:
        """Return a copy of a broker's disk, which a fault may restore later."""
        return copy.deepcopy(self.disks[broker_id])

    # The methods below send requests of clients.

    async def call(
        self,
        name: str,
        broker_id: int,
        function: Callable[[Process], Awaitable[T]],
        timeout_s: float = 5.0,
    ) -> T:
        """Run ``function`` in the broker's process, as if the client ``name`` had sent a request.

        Raises LogbusError. After NetworkError or RequestTimedOutError the outcome is unknown.
        """
        channel = self._channels.get((name, broker_id))
        if channel is None or not channel.is_open:
            channel = self.net.channel(CLIENTS, broker_id, OUTSIDE)
            self._channels[name, broker_id] = channel
        result: T = await ask(channel, function, timeout_s)
        return result

    def check(self) -> None:
        """Raise the first violation or unexpected error of the run, if there is any."""
        if self.failure is not None:
            raise self.failure

    def _zk_written(self, session_id: int, operations: Sequence[Operation]) -> None:
        self.trace("zk", session_id, *[operation.path for operation in operations])
        self.checker.written(session_id, operations)


def pick(rng: random.Random, values: Sequence[T]) -> T:
    """Return one of ``values``, which ``rng`` chooses at random."""
    return values[rng.randrange(len(values))]
