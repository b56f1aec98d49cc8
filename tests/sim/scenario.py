"""One seed from beginning to end: faults for a while, then everything heals and is checked.

The safety phase checks that nothing forbidden happens, the liveness phase that what was sent is
decided, every partition is led and every replica in sync once nothing is broken any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
from dataclasses import dataclass

from sim import options as swarm
from sim import scheduler
from sim.checker import Violation, observing
from sim.clients import Producer
from sim.cluster import SimCluster, pick
from sim.faults import Faults
from sim.history import ACKS_ALL, History
from sim.options import Options
from sim.workload import Client, Reader, RowProducer, create_topic, delete_topic, fetch

from broker_lite.errors import LogbusError
from broker_lite.metadata import znodes
from broker_lite.model import PartitionKey, TopicPartition

SAFETY_S = 60.0
LIVENESS_S = 180.0
CHECK_EVERY_S = 0.2
TAIL_LINES = 60
TOPIC, BRIEF_TOPIC = "lines", "brief"


@dataclass(frozen=True)
class Outcome:
    """What a run was. ``virtual_s``: the time in it; ``callbacks``: what happened."""

    seed: int
    digest: str
    steps: int
    callbacks: int
    virtual_s: float
    counts: dict[str, int]


class Failed(AssertionError):
    """A seed that found something; the text says how to see it again."""


def run(seed: int, safety_s: float = SAFETY_S, **overrides: object) -> Outcome:
    """Raises Failed. The same seed does the same, step by step."""
    options = swarm.draw(seed, Faults.names(), safety_s)
    options = dataclasses.replace(options, **overrides)  # type: ignore[arg-type]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with observing():
            outcome: Outcome = scheduler.run(_Scenario(options).run())
        return outcome
    finally:
        if was_enabled:
            gc.enable()
        logging.disable(level)


class _Scenario:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.rng = scheduler.stream(options.seed, "faults")
        self.history = History()

    async def run(self) -> Outcome:
        cluster = self.cluster = SimCluster(self.options)
        seed, safety_s = self.options.seed, self.options.safety_s
        try:
            await self._run(cluster)
        except (Exception, scheduler.Deadlock) as error:
            tail = cluster.last_lines(TAIL_LINES)
            raise Failed(
                f"seed {seed} at {cluster.loop.time():.3f} s: {type(error).__name__}: {error}\n"
                f"(sim.scenario.run({seed}, {safety_s:g}) does it again)\n{tail}"
            ) from error
        loop = cluster.loop
        return Outcome(seed, cluster.digest, cluster.steps, loop.steps, loop.now, cluster.counts)

    async def _run(self, cluster: SimCluster) -> None:
        options = self.options
        for broker_id in cluster.disks:
            await cluster.start(broker_id)
        admin = Client(cluster, self.history, "admin")
        config = {"flush.messages": str(options.flush_messages)}
        if options.min_insync:
            config["min.insync.replicas"] = str(options.min_insync)
            cluster.checker.least_copies[TOPIC] = options.min_insync
        keys = await create_topic(
            admin, TOPIC, options.partitions, options.replication_factor, config
        )
        workers = self._workers(keys)
        readers = [
            Reader(cluster, self.history, f"r{n}", TOPIC, keys) for n in range(options.readers)
        ]
        tasks = [cluster.loop.create_task(worker.run()) for worker in workers]
        background = [cluster.loop.create_task(reader.run()) for reader in readers]
        background.append(cluster.loop.create_task(self._make_and_delete(admin)))
        watch = cluster.loop.create_task(self._watch(tasks + background))
        faults = cluster.loop.create_task(Faults(cluster, self.rng).run())
        await _first(cluster, watch, faults, options.safety_s)
        faults.cancel()
        await self._heal(cluster)
        for worker in workers:
            worker.is_stopping = True
        lost = [key for key in keys if cluster.checker.is_lost(key)]
        for worker, task in zip(workers, tasks):
            if worker.key in lost:
                cluster.count("undecided where all in-sync disks were lost")
                task.cancel()
        keys = [key for key in keys if key not in lost]
        left = [task for worker, task in zip(workers, tasks) if worker.key in keys]
        await self._decided(asyncio.gather(*left), watch)
        for task in (*background, watch):
            task.cancel()
        cluster.check()
        await self._check(cluster, admin, keys)

    def _workers(self, keys: list[PartitionKey]) -> list[Producer | RowProducer]:
        options, cluster, history = self.options, self.cluster, self.history
        workers: list[Producer | RowProducer] = [
            Producer(cluster, history, f"p{n}", TOPIC, pick(self.rng, keys))
            for n in range(options.producers)
        ]
        workers += [
            RowProducer(cluster, history, f"q{n}", pick(self.rng, keys), ACKS_ALL if n % 2 else 1)
            for n in range(options.row_producers)
        ]
        return workers

    async def _decided(
        self, everything: asyncio.Future[list[None]], watch: asyncio.Task[None]
    ) -> None:
        """Wait until all that was sent is decided, or something is found before."""
        try:
            async with asyncio.timeout(LIVENESS_S):
                await asyncio.wait((everything, watch), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise Violation("sends were not decided although everything was healed") from None
        if watch.done():
            watch.result()
        everything.result()

    async def _watch(self, tasks: list[asyncio.Task[None]]) -> None:
        """What was found is told soon."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self.cluster.check()
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]

    async def _make_and_delete(self, admin: Client) -> None:
        """A topic that comes and goes under one name, with a producer each time."""
        options = self.options
        for number in range(1000):
            await asyncio.sleep(self.rng.random() * 30)
            keys = await create_topic(admin, BRIEF_TOPIC, 1, options.replication_factor, {})
            producer = RowProducer(
                self.cluster, self.history, f"brief{number}", pick(self.rng, keys), ACKS_ALL
            )
            task = self.cluster.loop.create_task(producer.run())
            await asyncio.sleep(self.rng.random() * 10)
            await delete_topic(admin, BRIEF_TOPIC)
            await task

    async def _heal(self, cluster: SimCluster) -> None:
        cluster.trace("heal")
        cluster.net.heal_all()
        cluster.zk.lost_reply_rate = cluster.zk.lost_request_rate = 0.0
        cluster.zk.delay_s = 0.002
        if not cluster.zk.running:
            cluster.zk.start()
        for broker_id, files in cluster.disks.items():
            process = cluster.processes.get(broker_id)
            files.clear_faults()
            files.stop_at = None
            files.capacity_bytes = None
            if process is None:
                continue
            if process.owner.paused:
                process.resume()
            wrong_disk = process.files is not files
            failed = process.logs is not None and process.logs.failed
            if wrong_disk or failed or not process.serving:
                cluster.kill(broker_id)
            else:
                process.zk.lag_s = 0.0
                process.zk.heal()
        async with asyncio.timeout(LIVENESS_S):
            while len(cluster.processes) < len(cluster.disks):
                for broker_id in cluster.disks:
                    if broker_id not in cluster.processes:
                        await cluster.start(broker_id)
                await asyncio.sleep(0.5)

    async def _check(self, cluster: SimCluster, admin: Client, keys: list[PartitionKey]) -> None:
        try:
            async with asyncio.timeout(LIVENESS_S):
                while (wrong := _unsettled(cluster, keys)) is not None:
                    await asyncio.sleep(0.25)
                    cluster.check()
        except TimeoutError:
            raise Violation(f"after everything was healed {wrong}") from None
        logs = {key: await self._whole(admin, key) for key in keys}
        self.history.check(logs)
        self.history.check_commits(lambda group, place: _committed(cluster, group, place))
        for process in cluster.processes.values():
            cluster.checker.check_whole(process, keys)
        cluster.check()

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
                except LogbusError:
                    admin.forget(key)
                    await admin.pause()
                    continue
                if not part.batches:
                    return rows
                rows.update(part.rows())


def _unsettled(cluster: SimCluster, keys: list[PartitionKey]) -> str | None:
    """What is not yet as it must become once nothing is broken."""
    running = list(cluster.processes.values())
    if len(running) < len(cluster.disks):
        return f"only the brokers {sorted(cluster.processes)} run"
    for process in running:
        live = sorted(process.registry.snapshot.brokers)
        if live != sorted(cluster.disks):
            return f"broker {process.broker_id} sees the brokers {live}"
    controllers = [process.broker_id for process in running if process.registry.is_controller]
    if len(controllers) != 1:
        return f"the controllers are {controllers}"
    for key in keys:
        state = cluster.checker.state(key)
        assert state is not None
        if state.leader < 0:
            return f"partition {key.partition} has no leader: {state}"
        members = {replica.broker_id: replica.directory_id for replica in state.isr}
        if len(members) < cluster.options.replication_factor:
            return f"partition {key.partition} has the ISR {sorted(members)}"
        for broker_id, directory_id in members.items():
            process = cluster.processes[broker_id]
            assert process.logs is not None
            if process.logs.directory_id != directory_id:
                return f"broker {broker_id} is in the ISR with another disk"
            log = process.log(key)
            end = cluster.checker.true_end(key)
            if log is None or log.log_end_offset != end:
                found = None if log is None else log.log_end_offset
                return f"broker {broker_id} ends at {found}, {end} are committed"
    return None


def _committed(cluster: SimCluster, group: str, place: TopicPartition) -> int:
    path = znodes.offset_path(group, *place)
    znode = cluster.zk.peek(path)
    return -1 if znode is None else znodes.decode_offset(path, znode.data).offset


async def _first(
    cluster: SimCluster, watch: asyncio.Task[None], faults: asyncio.Task[None], most_s: float
) -> None:
    """Until the time is over or one of the two fails."""
    done, _ = await asyncio.wait(
        (watch, faults), timeout=most_s, return_when=asyncio.FIRST_COMPLETED
    )
    for task in done:
        task.result()
