"""Brokers in virtual time: production Registry, controller, ReplicaManager and Log on a simulated
ZooKeeper, disk and clock; only sockets are left out. A call to a broker is a function that runs in
its process after a delay, and whose answer may be lost.

``SimCluster`` holds what outlives processes (disks, ZooKeeper) and checks, as it runs, what must
hold after every step; what it records goes into the trace, whose hash tells whether two runs were
the same.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from sim.disk import SimClock, SimDisk
from sim.scheduler import stream
from sim.zk import ZkService

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError, NetworkError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Operation, Set
from broker_lite.model import Endpoint, PartitionKey
from broker_lite.server.disk import AppendJob, CallJob, SyncJob
from broker_lite.server.metrics import Metrics
from broker_lite.server.registry import BrokerRegistration, Registry
from broker_lite.server.replica_manager import ReplicaManager
from broker_lite.storage import LogManager, MemFiles
from broker_lite.storage.memory import PowerCut

DIRECTORY = "/data"
T = TypeVar("T")


class Violation(AssertionError):
    """Something that must never happen has happened."""


class Process:
    """One broker process from its start to its end."""

    def __init__(self, cluster: SimCluster, broker_id: int, files: MemFiles) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.files = files
        self.number = next(cluster.process_numbers)
        self.alive = True
        self.serving = False
        self.calls: dict[int, asyncio.Future[Any]] = {}
        self.zk = cluster.zk.client()
        self.clock = SimClock(cluster.loop)
        self.registry = Registry(
            cluster.config(broker_id),
            now_ms=self.clock.now_ms,
            store=self.zk,
            random_bytes=cluster.ids.randbytes,
        )
        self.disk = SimDisk(
            cluster.loop,
            files,
            cluster.disk_chance,
            clock=self.clock,
            on_power_cut=lambda: cluster.power_cut(self),
            observe=self._observe,
        )
        self.logs: LogManager | None = None
        self.replicas: ReplicaManager | None = None
        self.starting: asyncio.Task[None] | None = None
        self.housekeeping: asyncio.Task[None] | None = None
        self._exposed: dict[tuple[PartitionKey, int], int] = {}

    async def start(self) -> None:
        """As ``server/broker.py`` does it. LogbusError: this broker cannot start now."""
        cluster = self.cluster
        logs = self.logs = LogManager(
            self.files, DIRECTORY, random_id=lambda: f"D{cluster.ids.getrandbits(40):x}"
        )
        logs.lock(self.clock.now_ms())
        logs.open_all(self.clock.now_ms())
        cluster.check_recovered(self.broker_id, logs)
        # Recovery takes its time.
        await asyncio.sleep(cluster.chance.random() * 0.3)
        self.registry.on_fatal(lambda error: cluster.stopped(self, error))
        cluster_id = await self.registry.start(
            BrokerRegistration(
                self.broker_id,
                Endpoint("sim", self.broker_id),
                logs.directory_id,
                logs.start_counter,
                logs.cluster_id,
            )
        )
        logs.adopt_cluster(cluster_id)
        self.replicas = ReplicaManager(
            cluster.loop,
            cluster.config(self.broker_id),
            clock=self.clock,
            disk=self.disk,
            logs=logs,
            metrics=Metrics(),
            broker_epochs=lambda: self.registry.broker_epochs,
        )
        self.registry.on_change(self.replicas.apply)
        self.serving = True
        self.housekeeping = cluster.loop.create_task(self._keep_house())

    async def _keep_house(self) -> None:
        logs = self.logs
        assert logs is not None
        while True:
            await asyncio.sleep(1.0)
            if not logs.failed:
                self.disk.keep(lambda: logs.checkpoint(self.clock.now_ms()), lambda _, __: None)
                self.disk.keep(lambda: logs.tick(self.clock.now_ms()), lambda _, __: None)

    def end(self) -> None:
        """Nothing of this process runs any more."""
        self.alive = self.serving = False
        self.disk.stop()
        for task in (self.registry._keeper, self.housekeeping, self.starting):
            if task is not None and not task.done():
                task.cancel()
        self.registry._controller.resign()
        self.registry._groups.close()
        if self.registry._held_timer is not None:
            self.registry._held_timer.cancel()
        if self.replicas is not None:
            self.replicas._deadlines.close()
            self.replicas._pending.clear()
        self.zk.kill()
        for call in self.calls.values():
            if not call.done():
                call.set_exception(NetworkError("the broker died"))
        self.calls.clear()

    def _observe(self, job: Any) -> None:
        cluster = self.cluster
        match job:
            case AppendJob(target, _, _, leader_epoch):
                cluster.check_leader(self, target.log.key, leader_epoch)
            case SyncJob(target):
                cluster.trace("sync", self.broker_id, target.log.key.partition)
            case CallJob():
                cluster.trace("call", self.broker_id)

    def check_exposed(self) -> None:
        """What may be read is on the disk, and never less than it was in this leadership."""
        if not self.serving or self.replicas is None:
            return
        for replica in self.replicas.replicas:
            role = replica.role
            if not role.is_leader:
                continue
            if role.high_watermark > replica.log.flushed_end:
                raise Violation(
                    f"{replica}: readable to {role.high_watermark}, on disk to "
                    f"{replica.log.flushed_end}"
                )
            key = (replica.key, role.leader_epoch)
            if role.high_watermark < self._exposed.get(key, 0):
                raise Violation(f"{replica}: the high watermark went back")
            self._exposed[key] = role.high_watermark
            self.cluster.committed(role.local.directory_id, replica.key, role.high_watermark)


class SimCluster:
    """``brokers`` brokers, one disk each (and a spare one), one ZooKeeper."""

    def __init__(self, seed: int, brokers: int = 3) -> None:
        self.loop = asyncio.get_running_loop()
        self.seed = seed
        self.chance = stream(seed, "cluster")
        self.disk_chance = stream(seed, "disk")
        self.net_chance = stream(seed, "net")
        self.ids = stream(seed, "ids")
        self.zk = ZkService(stream(seed, "zk"))
        self.zk.on_write = self._zk_written
        self.process_numbers = itertools.count(1)
        self.disks = {n: MemFiles() for n in range(1, brokers + 1)}
        self.spares = {n: MemFiles() for n in range(1, brokers + 1)}
        self.processes: dict[int, Process] = {}
        self.lost_answer_rate = 0.0
        self.steps = 0
        self.counts: dict[str, int] = {}
        self._hash = hashlib.sha256()
        self.tail: list[str] = []
        self.failure: BaseException | None = None
        self._leaders: dict[tuple[PartitionKey, int], int] = {}
        self._committed: dict[tuple[str, PartitionKey], int] = {}
        self._epochs: dict[str, tuple[bytes, int]] = {}
        self._call_numbers = itertools.count(1)
        self.loop.set_exception_handler(self._unhandled)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What no code expected is a finding, wherever it happens."""
        error = context.get("exception")
        if error is not None and not isinstance(error, LogbusError):
            self.failure = self.failure or error

    def config(self, broker_id: int) -> BrokerConfig:
        return BrokerConfig(broker_id=broker_id, log_dir=DIRECTORY)

    # The trace.

    def trace(self, *words: object) -> None:
        """One thing that happened, into the hash and into the last lines kept for people."""
        line = f"{self.loop.time():.6f} {' '.join(map(str, words))}"
        self._hash.update(line.encode())
        self.tail.append(line)
        if len(self.tail) > 400:
            del self.tail[:200]
        self.steps += 1

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    # Processes.

    async def start(self, broker_id: int, *, spare: bool = False) -> bool:
        """Start a broker that does not run; False where it had to give up."""
        assert broker_id not in self.processes
        files = (self.spares if spare else self.disks)[broker_id]
        process = Process(self, broker_id, files)
        self.processes[broker_id] = process
        self.trace("start", broker_id, process.number, "spare" if spare else "")
        starting = process.starting = self.loop.create_task(process.start())
        await asyncio.wait([starting])
        if starting.cancelled():
            return False
        error = starting.exception()
        if isinstance(error, PowerCut):
            self.power_cut(process)
        elif isinstance(error, LogbusError | OSError):
            self.trace("refused", broker_id, error)
            if self.processes.get(broker_id) is process:
                self.kill(broker_id)
        elif error is not None:
            raise error
        return error is None and process.alive

    def kill(self, broker_id: int) -> None:
        """kill -9: what was written stays in the page cache."""
        process = self.processes.pop(broker_id)
        self.trace("kill", broker_id, process.number)
        process.end()
        process.files.kill()

    def power_cut(self, process: Process) -> None:
        """The machine is off: what was not synced is lost, kept or torn."""
        if self.processes.get(process.broker_id) is process:
            del self.processes[process.broker_id]
        self.trace("power cut", process.broker_id, process.number)
        self.count("power cuts")
        process.end()
        process.files.crash(self.disk_chance)

    def stopped(self, process: Process, error: LogbusError) -> None:
        """A broker that says itself that it must stop."""
        self.trace("stops", process.broker_id, error)
        if self.processes.get(process.broker_id) is process:
            self.kill(process.broker_id)

    def fail_sync(self, broker_id: int) -> None:
        """The next flush of this broker fails."""
        self.processes[broker_id].files.fail_next("datasync", errno.EIO, path=".log")

    # Calls.

    async def call(self, broker_id: int, function: Callable[[Process], Awaitable[T]]) -> T:
        """Run ``function`` in the broker's process. NetworkError: it may have run, or not."""
        await asyncio.sleep(self._delay())
        process = self.processes.get(broker_id)
        if process is None or not process.serving:
            raise NetworkError(f"broker {broker_id} refuses the connection")
        answer: asyncio.Future[T] = self.loop.create_future()
        number = next(self._call_numbers)
        process.calls[number] = answer
        task = self.loop.create_task(self._serve(process, function, answer))
        try:
            result = await answer
        finally:
            process.calls.pop(number, None)
            if not process.alive:
                task.cancel()
        if self.net_chance.random() < self.lost_answer_rate:
            raise NetworkError("the connection broke")
        await asyncio.sleep(self._delay())
        return result

    async def _serve(
        self,
        process: Process,
        function: Callable[[Process], Awaitable[T]],
        answer: asyncio.Future[T],
    ) -> None:
        try:
            result = await function(process)
        except LogbusError as error:
            if not answer.done():
                answer.set_exception(error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = self.failure or error
            if not answer.done():
                answer.set_exception(NetworkError(repr(error)))
        else:
            if not answer.done():
                answer.set_result(result)

    def _delay(self) -> float:
        return 0.0002 + self.net_chance.random() * 0.002

    # What must hold, always.

    def check(self) -> None:
        """After every so many steps."""
        if self.failure is not None:
            raise self.failure
        for process in self.processes.values():
            process.check_exposed()

    def check_leader(self, process: Process, key: PartitionKey, leader_epoch: int) -> None:
        """A leader epoch is led by one process."""
        self.trace("append", process.broker_id, key.partition, leader_epoch)
        holder = self._leaders.setdefault((key, leader_epoch), process.number)
        if holder != process.number:
            raise Violation(
                f"processes {holder} and {process.number} both append to {key} in leader epoch "
                f"{leader_epoch}"
            )

    def committed(self, directory_id: str, key: PartitionKey, offset: int) -> None:
        """What was readable once."""
        name = (directory_id, key)
        if offset > self._committed.get(name, 0):
            self._committed[name] = offset

    def check_recovered(self, broker_id: int, logs: LogManager) -> None:
        """A log that was opened again has everything that was readable."""
        for key, log in logs.logs.items():
            was = self._committed.get((logs.directory_id, key), 0)
            if log.log_end_offset < was:
                raise Violation(
                    f"{key} on broker {broker_id}: recovered to {log.log_end_offset}, but {was} "
                    "records were readable"
                )

    def _zk_written(self, session_id: int, operations: Sequence[Operation]) -> None:
        self.trace("zk", session_id, *(operation.path for operation in operations))
        for operation in operations:
            if not (isinstance(operation, Set) and operation.path.endswith("/state")):
                continue
            state = znodes.decode_state(operation.path, operation.data, 0)
            incarnation = self.zk.peek(operation.path)
            assert incarnation is not None
            name = f"{operation.path}@{incarnation.created_zxid}"
            before = self._epochs.get(name)
            if before is not None and state.leader_epoch <= before[1]:
                raise Violation(
                    f"{operation.path}: leader epoch {state.leader_epoch} after {before[1]}"
                )
            fence = self.zk.peek(znodes.CONTROLLER_EPOCH)
            assert fence is not None
            epoch = znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, fence.data)
            if state.controller_epoch != epoch:
                raise Violation(
                    f"{operation.path}: written by the controller of epoch "
                    f"{state.controller_epoch}, but epoch {epoch} has begun"
                )
            if not state.isr:
                raise Violation(f"{operation.path}: an empty ISR")
            self._epochs[name] = (operation.data, state.leader_epoch)


def pick(rng: random.Random, values: Sequence[T]) -> T:
    """One of them."""
    return values[rng.randrange(len(values))]
