"""One seed from beginning to end: faults for a while, then everything heals and is checked.

Swarm: each seed turns whole kinds of faults off, so that the others get further. The safety phase
checks that nothing forbidden happens, the liveness phase that what was sent is decided and every
partition is led once nothing is broken any more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from sim import scheduler
from sim.cluster import SimCluster, Violation, pick
from sim.workload import (
    Client,
    History,
    Producer,
    Reader,
    create_topic,
    delete_topic,
    fetch,
)

from broker_lite.errors import LogbusError
from broker_lite.metadata import znodes
from broker_lite.model import PartitionKey, TopicPartition

SAFETY_S = 60.0
LIVENESS_S = 120.0
CHECK_EVERY_S = 0.01
TOPIC, BRIEF_TOPIC = "lines", "brief"


@dataclass(frozen=True)
class Outcome:
    """What a run was."""

    seed: int
    digest: str
    steps: int
    counts: dict[str, int]


class Failed(AssertionError):
    """A seed that found something; the text says how to see it again."""


def run(seed: int, safety_s: float = SAFETY_S) -> Outcome:
    """Raises Failed. The same seed does the same, step by step."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        outcome: Outcome = scheduler.run(_Scenario(seed, safety_s).run())
        return outcome
    finally:
        logging.disable(level)


class _Scenario:
    def __init__(self, seed: int, safety_s: float) -> None:
        self.seed = seed
        self.safety_s = safety_s
        self.rng = scheduler.stream(seed, "faults")
        self.history = History()

    async def run(self) -> Outcome:
        cluster = self.cluster = SimCluster(self.seed)
        try:
            await self._run(cluster)
        except (Exception, scheduler.Deadlock) as error:
            tail = "\n".join(cluster.tail[-60:])
            raise Failed(
                f"seed {self.seed} at {cluster.loop.time():.3f} s: {type(error).__name__}: "
                f"{error}\n(sim.scenario.run({self.seed}) does it again)\n{tail}"
            ) from error
        return Outcome(self.seed, cluster.digest, cluster.steps, cluster.counts)

    async def _run(self, cluster: SimCluster) -> None:
        for broker_id in cluster.disks:
            await cluster.start(broker_id)
        admin = Client(cluster, self.history, "admin")
        keys = await create_topic(admin, TOPIC, 4)
        producers = [
            Producer(cluster, self.history, f"p{n}", pick(self.rng, keys), acks)
            for n, acks in enumerate((-1, -1, -1, -1, 1))
        ]
        readers = [Reader(cluster, self.history, f"r{n}", TOPIC, keys) for n in range(2)]
        tasks = [cluster.loop.create_task(worker.run()) for worker in producers]
        background = [cluster.loop.create_task(reader.run()) for reader in readers]
        background.append(cluster.loop.create_task(self._make_and_delete(admin)))
        watch = cluster.loop.create_task(self._watch(tasks + background))
        faults = cluster.loop.create_task(_Faults(cluster, self.rng).run())
        await _first(cluster, watch, faults, self.safety_s)
        faults.cancel()
        await self._heal(cluster)
        for producer in producers:
            producer.is_stopping = True
        everything = asyncio.gather(*tasks)
        try:
            async with asyncio.timeout(LIVENESS_S):
                await everything
        except TimeoutError:
            raise Violation("sends were not decided although everything was healed") from None
        for task in (*background, watch):
            task.cancel()
        cluster.check()
        await self._check(cluster, admin, keys)

    async def _watch(self, tasks: list[asyncio.Task[None]]) -> None:
        """The checks that run all the time."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self.cluster.check()
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]

    async def _make_and_delete(self, admin: Client) -> None:
        """A topic that comes and goes under one name, with a producer each time."""
        for number in range(1000):
            await asyncio.sleep(self.rng.random() * 10)
            keys = await create_topic(admin, BRIEF_TOPIC, 2)
            producer = Producer(
                self.cluster, self.history, f"brief{number}", pick(self.rng, keys), -1
            )
            task = self.cluster.loop.create_task(producer.run())
            await asyncio.sleep(self.rng.random() * 10)
            await delete_topic(admin, BRIEF_TOPIC)
            await task

    async def _heal(self, cluster: SimCluster) -> None:
        cluster.trace("heal")
        cluster.lost_answer_rate = cluster.zk.lost_reply_rate = 0.0
        cluster.zk.delay_s = 0.002
        if not cluster.zk.running:
            cluster.zk.start()
        for broker_id, files in cluster.disks.items():
            process = cluster.processes.get(broker_id)
            files.clear_faults()
            files.stop_at = None
            files.capacity_bytes = None
            if process is not None:
                wrong_disk = process.files is not files
                failed = process.logs is not None and process.logs.failed
                if wrong_disk or failed or not process.serving:
                    cluster.kill(broker_id)
                else:
                    process.zk.heal()
        async with asyncio.timeout(LIVENESS_S):
            while len(cluster.processes) < len(cluster.disks):
                for broker_id in cluster.disks:
                    if broker_id not in cluster.processes:
                        await cluster.start(broker_id)
                await asyncio.sleep(0.5)

    async def _check(self, cluster: SimCluster, admin: Client, keys: list[PartitionKey]) -> None:
        logs = {key: await self._whole(admin, key) for key in keys}
        self.history.check(logs)
        self.history.check_commits(lambda group, place: _committed(cluster, group, place))
        try:
            async with asyncio.timeout(LIVENESS_S):
                while (wrong := _unsettled(cluster)) is not None:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise Violation(f"after everything was healed {wrong}") from None

    async def _whole(self, admin: Client, key: PartitionKey) -> dict[int, bytes]:
        rows: dict[int, bytes] = {}
        async with asyncio.timeout(LIVENESS_S):
            while True:
                leader = await admin.leader(key)
                try:
                    part = await admin.call(
                        leader if leader is not None else -1,
                        lambda process: fetch(process, key, len(rows)),
                    )
                except (LogbusError, TimeoutError):
                    await admin.pause()
                    continue
                assert isinstance(part, list)
                if not part:
                    return rows
                rows.update(part)


def _unsettled(cluster: SimCluster) -> str | None:
    """What is not yet as it must become once nothing is broken."""
    running = cluster.processes.values()
    for process in running:
        live = sorted(process.registry.snapshot.brokers)
        if live != sorted(cluster.disks):
            return f"broker {process.broker_id} sees the brokers {live}"
    controllers = [process.broker_id for process in running if process.registry.is_controller]
    return None if len(controllers) == 1 else f"the controllers are {controllers}"


def _committed(cluster: SimCluster, group: str, place: TopicPartition) -> int:
    path = znodes.offset_path(group, *place)
    znode = cluster.zk.peek(path)
    return -1 if znode is None else znodes.decode_offset(path, znode.data).offset


async def _first(
    cluster: SimCluster, watch: asyncio.Task[None], faults: asyncio.Task[None], most_s: float
) -> None:
    """Until the time is over or one of the two fails."""
    end = cluster.loop.time() + most_s
    while cluster.loop.time() < end:
        await asyncio.sleep(0.1)
        for task in (watch, faults):
            if task.done():
                task.result()


class _Faults:
    """What goes wrong, by chance, until cancelled."""

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        kinds: list[Callable[[], object]] = [
            self._kill,
            self._kill_and_start_at_once,
            self._power_cut,
            self._power_cut_in_a_write,
            self._fail_sync,
            self._slow_disk,
            self._full_disk,
            self._other_disk,
            self._expire_session,
            self._cut_zookeeper_off,
            self._stop_zookeeper,
            self._lose_answers,
            self._lose_zookeeper_answers,
            self._slow_zookeeper,
        ]
        self.kinds = [kind for kind in kinds if rng.random() < 0.6] or kinds[:1]
        self.pause_s = rng.choice((0.5, 2.0, 5.0))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.random() * self.pause_s)
            kind = pick(self.rng, self.kinds)
            self.cluster.trace("fault", kind.__name__)
            self.cluster.count(kind.__name__)
            result = kind()
            if asyncio.iscoroutine(result):
                await result

    def _some_broker(self) -> int | None:
        running = [n for n, process in self.cluster.processes.items() if process.serving]
        return pick(self.rng, sorted(running)) if running else None

    async def _start(self, broker_id: int, *, spare: bool = False) -> None:
        while broker_id not in self.cluster.processes:
            if await self.cluster.start(broker_id, spare=spare):
                return
            await asyncio.sleep(self.rng.random())

    def _start_later(self, broker_id: int) -> None:
        async def later() -> None:
            await asyncio.sleep(self.rng.choice((0.5, 3.0, 12.0)) * self.rng.random())
            await self._start(broker_id)

        self._spawn(later())

    def _spawn(self, coroutine: object) -> None:
        async def guarded() -> None:
            try:
                await coroutine  # type: ignore[misc]
            except Violation as error:
                self.cluster.failure = self.cluster.failure or error

        self.cluster.loop.create_task(guarded())

    def _kill(self) -> None:
        broker_id = self._some_broker()
        if broker_id is not None:
            self.cluster.kill(broker_id)
            self._start_later(broker_id)

    async def _kill_and_start_at_once(self) -> None:
        broker_id = self._some_broker()
        if broker_id is not None:
            self.cluster.kill(broker_id)
            await self._start(broker_id)

    def _power_cut(self) -> None:
        broker_id = self._some_broker()
        if broker_id is not None:
            self.cluster.power_cut(self.cluster.processes[broker_id])
            self._start_later(broker_id)

    def _power_cut_in_a_write(self) -> None:
        broker_id = self._some_broker()
        if broker_id is None:
            return
        files = self.cluster.processes[broker_id].files
        files.stop_at = files.operations + self.rng.randint(1, 40)

        async def restart() -> None:
            while broker_id in self.cluster.processes:
                await asyncio.sleep(0.2)
            await asyncio.sleep(self.rng.random() * 5)
            await self._start(broker_id)

        self._spawn(restart())

    async def _fail_sync(self) -> None:
        broker_id = self._some_broker()
        if broker_id is None:
            return
        self.cluster.fail_sync(broker_id)
        await asyncio.sleep(self.rng.random() * 3)
        if broker_id in self.cluster.processes:
            self.cluster.processes[broker_id].files.clear_faults()
            self.cluster.kill(broker_id)
            self._start_later(broker_id)

    def _slow_disk(self) -> None:
        broker_id = self._some_broker()
        if broker_id is not None:
            disk = self.cluster.processes[broker_id].disk
            disk.slow_until = self.cluster.loop.time() + self.rng.random() * 5

    def _full_disk(self) -> None:
        broker_id = self._some_broker()
        if broker_id is None:
            return
        files = self.cluster.processes[broker_id].files
        total, usable = files.space("/")
        files.capacity_bytes = total - usable + self.rng.choice((0, 100, 5000))

        def free() -> None:
            files.capacity_bytes = None

        self.cluster.loop.call_later(self.rng.random() * 5, free)

    async def _other_disk(self) -> None:
        """The broker starts with a directory that is not its own, then with its own again."""
        broker_id = self._some_broker()
        if broker_id is None:
            return
        self.cluster.kill(broker_id)
        if await self.cluster.start(broker_id, spare=True):
            await asyncio.sleep(self.rng.random() * 8)
        if broker_id in self.cluster.processes:
            self.cluster.kill(broker_id)
        self._start_later(broker_id)

    def _expire_session(self) -> None:
        broker_id = self._some_broker()
        if broker_id is not None and self.cluster.processes[broker_id].zk.connected:
            self.cluster.processes[broker_id].zk.expire()

    def _cut_zookeeper_off(self) -> None:
        broker_id = self._some_broker()
        if broker_id is None:
            return
        zk = self.cluster.processes[broker_id].zk
        zk.cut()
        self.cluster.loop.call_later(self.rng.random() * 15, zk.heal)

    def _stop_zookeeper(self) -> None:
        if self.cluster.zk.running:
            self.cluster.zk.stop()
            self.cluster.loop.call_later(self.rng.random() * 10, self._start_zookeeper)

    def _start_zookeeper(self) -> None:
        if not self.cluster.zk.running:
            self.cluster.zk.start()

    def _lose_answers(self) -> None:
        self.cluster.lost_answer_rate = self.rng.choice((0.0, 0.05, 0.3))

    def _slow_zookeeper(self) -> None:
        self.cluster.zk.delay_s = self.rng.choice((0.002, 0.02, 0.4))

    def _lose_zookeeper_answers(self) -> None:
        self.cluster.zk.lost_reply_rate = self.rng.choice((0.0, 0.02, 0.2))
