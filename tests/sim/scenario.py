"""Run one seed in two phases.

The safety phase injects faults and checks the invariants. The liveness phase heals all faults and
checks that every send gets an outcome, every partition a leader, and every replica gets in sync.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sim import options as swarm
from sim import scheduler
from sim.administration import Administrator, assignment
from sim.checker import Violation, observing
from sim.clients import Producer
from sim.cluster import SimCluster, pick
from sim.consumer import Consumer
from sim.faults import Faults
from sim.history import ACKS_ALL, History
from sim.lossy import LOSSY_TOPIC, LossyTopic
from sim.options import Options
from sim.settling import unsettled
from sim.transactions import Transactions, small_state
from sim.workload import Client, RowProducer, create_topic, delete_topic

from broker_lite.metadata import znodes
from broker_lite.model import PartitionKey, TopicPartition

SAFETY_S = 60.0
LIVENESS_S = 180.0
CHECK_EVERY_S = 0.2
TAIL_LINES = 60
TOPIC, BRIEF_TOPIC = "lines", "brief"
Worker = Producer | RowProducer


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    ``virtual_s`` is the run's virtual time in seconds, ``callbacks`` the number of event loop
    callbacks.
    """

    seed: int
    digest: str
    steps: int
    callbacks: int
    virtual_s: float
    counts: dict[str, int]


class Failed(AssertionError):
    """Raised when a seed fails; the message says how to run the seed again."""


def run(seed: int, safety_s: float = SAFETY_S, **overrides: object) -> Outcome:
    """Run the simulation with a seed; the same seed runs the same steps. Raises Failed if a check
    fails.
    """
    options = swarm.draw(seed, Faults.names(), safety_s)
    options = dataclasses.replace(options, **overrides)  # type: ignore[arg-type]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with observing(), small_state(options.copy_batches):
            words = [f"{name}={value!r}" for name, value in overrides.items()]
            again = ", ".join([f"{seed}, {safety_s:g}", *words])
            outcome: Outcome = scheduler.run(_Scenario(options, again).run())
        return outcome
    finally:
        if was_enabled:
            gc.enable()
        logging.disable(level)


class _Scenario:
    def __init__(self, options: Options, again: str) -> None:
        self.options = options
        self._again = again
        self.rng = scheduler.stream(options.seed, "faults")
        self.history = History()
        self.workers: list[tuple[Worker, asyncio.Task[None]]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.consumers: list[Consumer] = []
        self.is_over = False

    async def run(self) -> Outcome:
        cluster = self.cluster = SimCluster(self.options)
        seed = self.options.seed
        try:
            await self._run(cluster)
        except (Exception, scheduler.Deadlock) as error:
            tail = cluster.last_lines(TAIL_LINES)
            raise Failed(
                f"seed {seed} at {cluster.loop.time():.3f} s: {type(error).__name__}: {error}\n"
                f"(sim.scenario.run({self._again}) repeats it)\n{tail}"
            ) from error
        loop = cluster.loop
        return Outcome(seed, cluster.digest, cluster.steps, loop.steps, loop.now, cluster.counts)

    async def _run(self, cluster: SimCluster) -> None:
        options = self.options
        for broker_id in cluster.disks:
            await cluster.start(broker_id)
        admin = Client(cluster, self.history, "admin")
        config = {"flush.messages": str(options.flush_messages)}
        if options.segment_ms:
            config["segment.ms"] = str(options.segment_ms)
        if options.min_insync:
            config["min.insync.replicas"] = str(options.min_insync)
            cluster.checker.least_copies[TOPIC] = options.min_insync
        keys = await create_topic(
            admin, TOPIC, options.partitions, options.replication_factor, config
        )
        cluster.rot.keys = list(keys)
        for worker in self._workers(keys):
            self._begin(worker)
        self.consumers = [
            Consumer(cluster, self.history, f"r{n}", TOPIC, keys) for n in range(options.readers)
        ]
        lossy = LossyTopic(cluster) if options.loses else None
        background = [consumer.run() for consumer in self.consumers]
        if lossy is not None:
            background += await lossy.begin(admin)
        transactions = Transactions(cluster) if options.transacts else None
        if transactions is not None:
            background += await transactions.begin(admin)
        background.append(self._make_and_delete(admin))
        others = (BRIEF_TOPIC,) if lossy is None else (BRIEF_TOPIC, LOSSY_TOPIC)
        administrator = Administrator(cluster, self.history, TOPIC, keys, others, self._added)
        if options.administrates:
            background.append(administrator.run())
        self.tasks += [cluster.loop.create_task(each) for each in background]
        watch = cluster.loop.create_task(self._watch(self.tasks))
        faults = cluster.loop.create_task(Faults(cluster, self.rng).run())
        await _first(cluster, watch, faults, options.safety_s)
        faults.cancel()
        self.is_over = True
        await self._heal(cluster)
        if transactions is not None:
            await transactions.check(self._settle)
        keys = await self._finish_work(administrator, watch)
        # Stop the administrator first: a later reassignment would be found unfinished.
        await administrator.stop()
        for task in (*self.tasks, watch):
            task.cancel()
        cluster.check()
        await self._check(cluster, keys)
        if options.administrates:
            await self._finish_moves(administrator, keys)
        await self._finish_repairs(administrator, keys)
        if lossy is not None:
            await lossy.check(lambda keys: self._settle(keys, LOSSY_TOPIC))
            cluster.check()

    def _begin(self, worker: Worker) -> None:
        task = self.cluster.loop.create_task(worker.run())
        self.workers.append((worker, task))
        self.tasks.append(task)

    def _added(self, key: PartitionKey) -> None:
        """Make consumers read an added partition, and start a producer for it."""
        self.cluster.rot.keys.append(key)
        for consumer in self.consumers:
            consumer.add(key)
        if not self.is_over:
            name = f"a{key.partition}"
            self._begin(RowProducer(self.cluster, self.history, name, key, ACKS_ALL))

    async def _finish_work(
        self, administrator: Administrator, watch: asyncio.Task[None]
    ) -> list[PartitionKey]:
        """Wait for the outcome of all sends to partitions that still have an in-sync disk; return
        these partitions."""
        cluster = self.cluster
        for worker, _ in self.workers:
            worker.is_stopping = True
        administrator.look()
        lost = [key for key in administrator.keys if cluster.checker.is_lost(key)]
        cluster.rot.keys = [key for key in cluster.rot.keys if key not in lost]
        left = []
        for worker, task in self.workers:
            if worker.key in lost:
                cluster.count("undecided where all in-sync disks were lost")
                task.cancel()
            else:
                left.append(task)
        await self._decided(asyncio.gather(*left), watch)
        administrator.look()
        return [key for key in administrator.keys if key not in lost]

    async def _read_whole(
        self, name: str, keys: list[PartitionKey]
    ) -> dict[PartitionKey, dict[int, bytes]]:
        """Let a new consumer and all others read to the end; return the new one's records."""
        consumer = whole = Consumer(self.cluster, self.history, name, TOPIC, keys)
        whole.rows = {key: {} for key in keys}
        try:
            async with asyncio.timeout(LIVENESS_S):
                await whole.start()
                for consumer in (*self.consumers, whole):
                    await consumer.read_to_the_end(keys)
        except TimeoutError:
            raise Violation(f"{consumer.name} did not reach the end of the log") from None
        return whole.rows

    async def _finish_moves(self, administrator: Administrator, keys: list[PartitionKey]) -> None:
        administrator.check_places(keys)
        await administrator.finish(keys, lambda: self._settle(keys))

    async def _finish_repairs(self, administrator: Administrator, keys: list[PartitionKey]) -> None:
        """Make each broker with damage lead the damaged partitions: reads then repair its logs."""
        cluster = self.cluster
        for broker_id, struck in cluster.rot.struck.items():
            replicas = assignment(cluster, TOPIC).replicas
            targets = {
                key.partition: (broker_id, *(n for n in replicas[key.partition] if n != broker_id))
                for key in keys
                if key in struck and broker_id in replicas[key.partition]
            }
            if not targets:
                continue
            led = [key for key in keys if key.partition in targets]
            await administrator.place(led, targets, lambda: self._settle(keys))
            await self._read_until_repaired(broker_id, led, struck)
            await self._settle(keys)
        for process in cluster.processes.values():
            cluster.checker.check_whole(process, keys)
        cluster.check()

    async def _read_until_repaired(
        self, broker_id: int, led: list[PartitionKey], struck: Mapping[PartitionKey, range]
    ) -> None:
        """Read until this broker's logs have no damage.

        The first reader starts inside the corrupt batches, but may still fetch from the former
        leader. Further readers follow.
        """
        cluster, rot = self.cluster, self.cluster.rot
        damage = ""
        try:
            async with asyncio.timeout(LIVENESS_S):
                reader = Consumer(cluster, self.history, f"reader in {broker_id}", TOPIC, led)
                await reader.start({key: self.rng.choice(struck[key]) for key in led})
                await reader.read_to_the_end(led)
                while True:
                    await self._read_whole(f"reader of {broker_id}", led)
                    damage = rot.damage(self.cluster.processes[broker_id])
                    if not damage:
                        return
                    await asyncio.sleep(1.0)
        except TimeoutError:
            raise Violation(f"broker {broker_id}: not repaired: {damage}") from None

    def _workers(self, keys: list[PartitionKey]) -> list[Worker]:
        options, cluster, history = self.options, self.cluster, self.history
        workers: list[Worker] = [
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
        """Wait for the outcome of all sends, or for the first violation."""
        try:
            async with asyncio.timeout(LIVENESS_S):
                await asyncio.wait((everything, watch), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise Violation("sends have no outcome although all faults were healed") from None
        if watch.done():
            watch.result()
        everything.result()

    async def _watch(self, tasks: list[asyncio.Task[None]]) -> None:
        """Raise a violation or the error of a failed task; check every CHECK_EVERY_S seconds."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self.cluster.check()
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]

    async def _make_and_delete(self, admin: Client) -> None:
        """Repeatedly create a topic, write to it with a new producer, and delete it."""
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
            failed = process.logs is not None and process.logs.data.failed
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

    async def _check(self, cluster: SimCluster, keys: list[PartitionKey]) -> None:
        await self._settle(keys)
        logs = await self._read_whole("whole", keys)
        self.history.check(logs)
        self.history.check_commits(lambda group, place: _committed(cluster, group, place))
        cluster.check()

    async def _settle(self, keys: list[PartitionKey], topic: str = TOPIC) -> None:
        cluster = self.cluster
        try:
            async with asyncio.timeout(LIVENESS_S):
                while (wrong := unsettled(cluster, topic, keys)) is not None:
                    await asyncio.sleep(0.25)
                    cluster.check()
        except TimeoutError:
            raise Violation(f"after all faults were healed {wrong}") from None


def _committed(cluster: SimCluster, group: str, place: TopicPartition) -> int:
    path = znodes.offset_path(group, *place)
    znode = cluster.zk.peek(path)
    return -1 if znode is None else znodes.decode_offset(path, znode.data).offset


async def _first(
    cluster: SimCluster, watch: asyncio.Task[None], faults: asyncio.Task[None], most_s: float
) -> None:
    """Wait until one of the tasks ends, at most ``most_s`` seconds; raise its error."""
    done, _ = await asyncio.wait(
        (watch, faults), timeout=most_s, return_when=asyncio.FIRST_COMPLETED
    )
    for task in done:
        task.result()
