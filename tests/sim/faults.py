"""Inject random faults into a cluster. Each kind of fault is a method; a seed uses some kinds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from sim.cluster import SimCluster, pick
from sim.deposed import late_batch
from sim.net import CLIENTS
from sim.overtaken import overtaken_answer
from sim.process import Process
from support.memory_files import MemFiles

from broker_lite.metadata import znodes

ROT = ("flip_a_bit", "flip_a_bit_of_a_stopped_broker")
LATE_BATCHES = ("depose_a_coordinator", "overtake_a_verification")
"""Kinds of faults that only seeds with transactions use."""


class Faults:
    """Injects random faults into one simulated cluster."""

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        options = cluster.options
        names = (
            *options.faults,
            *(ROT if options.rots else ()),
            *(LATE_BATCHES if options.transacts else ()),
        )
        # Drop duplicates: a test may name a kind that the options enable too.
        self.kinds = [getattr(self, name) for name in dict.fromkeys(names)]

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the kinds of faults that any seed may use, in the order of their definition."""
        return tuple(
            name
            for name, value in vars(Faults).items()
            if callable(value)
            and not name.startswith("_")
            and name not in ("run", "names", *ROT, *LATE_BATCHES)
        )

    async def run(self) -> None:
        options = self.cluster.options
        while True:
            # A quarter of the pauses may last four times as long, so that the cluster recovers.
            quiet = self.rng.random() < 0.25
            pause_s = options.fault_pause_s * (4 if quiet else 1)
            await asyncio.sleep(self.rng.random() * pause_s)
            kind: Callable[[], Coroutine[Any, Any, None] | None] = pick(self.rng, self.kinds)
            name = kind.__name__
            self.cluster.trace("fault", name)
            self.cluster.count(name)
            result = kind()
            if result is not None:
                await result

    # The methods below choose a process and schedule later actions.

    def _some(self) -> Process | None:
        """Return a random broker that accepts requests at present, or None."""
        running = [p for p in self.cluster.processes.values() if p.serving and not p.owner.paused]
        return pick(self.rng, sorted(running, key=lambda p: p.broker_id)) if running else None

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await coroutine
            except Exception as error:
                self.cluster.failure = self.cluster.failure or error

        self.cluster.loop.create_task(guarded())

    async def _start(self, broker_id: int, files: MemFiles | None = None) -> None:
        while broker_id not in self.cluster.processes:
            if await self.cluster.start(broker_id, files=files):
                return
            await asyncio.sleep(0.2 + self.rng.random())

    def _start_later(self, broker_id: int) -> None:
        async def later() -> None:
            await asyncio.sleep(self.rng.choice((0.5, 3.0, 12.0)) * self.rng.random())
            await self._start(broker_id)

        self._spawn(later())

    def _after(self, most_s: float, function: Callable[[], object]) -> None:
        self.cluster.loop.call_later(self.rng.random() * most_s, function)

    # The methods below are faults of processes.

    def kill(self) -> None:
        process = self._some()
        if process is not None:
            self.cluster.kill(process.broker_id)
            self._start_later(process.broker_id)

    async def kill_and_start_at_once(self) -> None:
        process = self._some()
        if process is not None:
            self.cluster.kill(process.broker_id)
            await self._start(process.broker_id)

    def kill_all(self) -> None:
        for broker_id in list(self.cluster.processes):
            self.cluster.kill(broker_id)
            self._start_later(broker_id)

    def stop_gracefully(self) -> None:
        process = self._some()
        if process is None:
            return

        async def stop_and_start() -> None:
            await self.cluster.stop(process.broker_id)
            self._start_later(process.broker_id)

        self._spawn(stop_and_start())

    def pause(self) -> None:
        """Stop a broker as SIGSTOP does, often for longer than its session timeout."""
        process = self._some()
        if process is not None:
            process.pause()
            self._after(self.rng.choice((0.5, 4.0, 15.0)), lambda: _resume(process))

    async def pause_and_kill(self) -> None:
        """Pause a broker, cut the power of another broker, then resume the first."""
        process = self._some()
        if process is None:
            return
        process.pause()
        await asyncio.sleep(self.rng.random() * 15)
        other = self._some()
        if other is not None and self.rng.random() < 0.7:
            self.cluster.power_cut(other)
            self._start_later(other.broker_id)
            await asyncio.sleep(self.rng.random() * 3)
        _resume(process)

    # The methods below are faults of disks.

    def power_cut(self) -> None:
        process = self._some()
        if process is not None:
            self.cluster.power_cut(process)
            self._start_later(process.broker_id)

    def power_cut_of_all(self) -> None:
        for process in list(self.cluster.processes.values()):
            self.cluster.power_cut(process)
            self._start_later(process.broker_id)

    def power_cut_in_a_write(self) -> None:
        process = self._some()
        if process is None:
            return
        files, broker_id = process.files, process.broker_id
        files.stop_at = files.operations + self.rng.randint(1, 40)

        async def restart() -> None:
            while self.cluster.processes.get(broker_id) is process:
                await asyncio.sleep(0.2)
            await asyncio.sleep(self.rng.random() * 5)
            await self._start(broker_id)

        self._spawn(restart())

    async def fail_sync(self) -> None:
        process = self._some()
        if process is None:
            return
        self.cluster.fail_sync(process.broker_id)
        await asyncio.sleep(self.rng.random() * 3)
        process.files.clear_faults()
        if self.cluster.processes.get(process.broker_id) is process:
            self.cluster.kill(process.broker_id)
            self._start_later(process.broker_id)

    def slow_disk(self) -> None:
        process = self._some()
        if process is not None:
            process.disk.slow_until = self.cluster.loop.time() + self.rng.random() * 8

    def full_disk(self) -> None:
        process = self._some()
        if process is None:
            return
        files = process.files
        total, usable = files.space("/")
        files.capacity_bytes = total - usable + self.rng.choice((0, 100, 5000))

        def free() -> None:
            files.capacity_bytes = None

        self._after(5, free)
        if self.rng.random() < 0.3:
            self.cluster.kill(process.broker_id)
            self._start_later(process.broker_id)

    async def other_disk(self) -> None:
        """Restart a broker with a different data directory, then with its own directory again."""
        process = self._some()
        if process is None:
            return
        broker_id = process.broker_id
        self.cluster.kill(broker_id)
        if await self.cluster.start(broker_id, files=self.cluster.spares[broker_id]):
            await asyncio.sleep(self.rng.random() * 8)
        if broker_id in self.cluster.processes:
            self.cluster.kill(broker_id)
        self._start_later(broker_id)

    def empty_disk(self) -> None:
        """Replace a disk by an empty disk for good.

        Each partition on the disk must have one or two other ISR members with intact disks.
        """
        process = self._some()
        if process is None or process.logs is None or process.files is not self._own(process):
            return
        directory_id = process.logs.data.directory_id
        if not self.cluster.checker.can_spare(directory_id, self.rng.choice((1, 2, 2, 2))):
            return
        self.cluster.checker.bad_disks.add(directory_id)
        self.cluster.kill(process.broker_id)
        self.cluster.disks[process.broker_id] = MemFiles()
        self._start_later(process.broker_id)

    def flip_a_bit(self) -> None:
        process = self._some()
        if process is not None and process.files is self._own(process):
            self.cluster.rot.strike(process)

    def flip_a_bit_of_a_stopped_broker(self) -> None:
        """Flip a bit on a broker's disk while the broker is stopped.

        When the broker starts after a clean shutdown, it reads indexes and checkpoints without
        comparing them with the log.
        """
        process = self._some()
        if process is None or process.files is not self._own(process):
            return

        async def stop_and_start() -> None:
            await self.cluster.stop(process.broker_id)
            self.cluster.rot.strike(process)
            self._start_later(process.broker_id)

        self._spawn(stop_and_start())

    async def disk_rolled_back(self) -> None:
        """Start a broker with an old copy of its disk; this must fail. Then start it with its own
        disk."""
        process = self._some()
        if process is None or process.logs is None or process.files is not self._own(process):
            return
        broker_id, logs = process.broker_id, process.logs
        self.cluster.kill(broker_id)
        old = self.cluster.snapshot_of(broker_id)
        await self._start(broker_id)
        await asyncio.sleep(self.rng.random() * 5)
        if broker_id in self.cluster.processes:
            self.cluster.kill(broker_id)
        elif self.cluster.disks[broker_id].locked:
            return
        if self._last_start(logs.data.directory_id) > logs.data.start_counter:
            # Start the directory again, so that ZooKeeper has a newer start counter than the copy.
            await self.cluster.start(broker_id, files=old, is_stale=True)
        if broker_id in self.cluster.processes:
            self.cluster.kill(broker_id)
        self._start_later(broker_id)

    def _last_start(self, directory_id: str) -> int:
        """Return the start counter that ZooKeeper has for a data directory; -1 if it has none."""
        path = znodes.disk_path(directory_id)
        znode = self.cluster.zk.peek(path)
        return -1 if znode is None else znodes.decode_disk(path, znode.data).start_counter

    def _own(self, process: Process) -> MemFiles:
        return self.cluster.disks[process.broker_id]

    # The methods below are faults of ZooKeeper.

    def expire_session(self) -> None:
        process = self._some()
        if process is not None and process.zk.connected:
            process.zk.expire()

    def cut_zookeeper_off(self) -> None:
        process = self._some()
        if process is not None:
            process.zk.cut()
            self._after(15, process.zk.heal)

    def stop_zookeeper(self) -> None:
        zk = self.cluster.zk
        if zk.running:
            zk.stop()
            self._after(10, self._start_zookeeper)

    def _start_zookeeper(self) -> None:
        if not self.cluster.zk.running:
            self.cluster.zk.start()

    def lose_zookeeper_answers(self) -> None:
        self.cluster.zk.lost_reply_rate = self.rng.choice((0.0, 0.02, 0.2))

    def lose_zookeeper_requests(self) -> None:
        self.cluster.zk.lost_request_rate = self.rng.choice((0.0, 0.02, 0.2))

    def slow_watches(self) -> None:
        """Delay ZooKeeper's watch events, but not its writes, for one broker."""
        process = self._some()
        if process is not None:
            zk = process.zk
            zk.lag_s = self.rng.choice((0.3, 1.0, 3.0))

            def catch_up() -> None:
                zk.lag_s = 0.0

            self._after(20, catch_up)

    def slow_zookeeper(self) -> None:
        self.cluster.zk.delay_s = self.rng.choice((0.002, 0.02, 0.4))

    # The methods below are faults of the network.

    def lose_messages(self) -> None:
        self.cluster.net.loss_rate = self.rng.choice((0.0, 0.01, 0.1))

    def delay_messages(self) -> None:
        net = self.cluster.net
        net.delay_s = self.rng.choice((0.001, 0.005, 0.05))
        net.spike_rate = self.rng.choice((0.0, 0.02, 0.1))

    def _cut(self, links: list[tuple[int, int]], most_s: float) -> None:
        net = self.cluster.net
        for link in links:
            net.cut(*link)
            # Heal each link at its own random time.
            self._after(most_s, partial(self._heal, *link))

    def _heal(self, source: int, target: int) -> None:
        if self.cluster.net.is_cut(source, target):
            self.cluster.net.heal(source, target)

    def cut_one_way(self) -> None:
        a, b = self.rng.sample(sorted(self.cluster.disks), 2)
        self._cut([(a, b)], 12)

    def cut_pair(self) -> None:
        a, b = self.rng.sample(sorted(self.cluster.disks), 2)
        self._cut([(a, b), (b, a)], 12)

    def isolate(self) -> None:
        """Cut one broker off from the other brokers, and perhaps from clients and ZooKeeper."""
        process = self._some()
        if process is None:
            return
        one = process.broker_id
        nodes = [n for n in self.cluster.disks if n != one]
        if self.rng.random() < 0.3:
            nodes.append(CLIENTS)
        self._cut([link for n in nodes for link in ((one, n), (n, one))], 15)
        if self.rng.random() < 0.3:
            process.zk.cut()
            self._after(15, process.zk.heal)

    # The methods below are wrong suspicions and other errors.

    def _suspect(self, one: Process, other: Process) -> None:
        """Make ``one`` suspect, for up to four seconds, that the live ``other`` is dead."""
        epoch, loop = other.registry.broker_epoch, self.cluster.loop
        loop.call_soon(one.registry.suspect, other.broker_id, epoch, context=one.context)

        def trust() -> None:
            if one.serving:
                loop.call_soon(one.registry.trust, other.broker_id, epoch, context=one.context)

        self._after(4, trust)

    def suspect_wrongly(self) -> None:
        """Make a broker suspect that another broker is dead, although the other broker lives."""
        one, other = self._some(), self._some()
        if one is not None and other is not None and one is not other:
            self._suspect(one, other)

    def suspect_the_controller(self) -> None:
        """Make all brokers suspect that the controller is dead while another broker dies."""
        found = [p for p in self.cluster.processes.values() if p.registry.is_controller]
        if not found or not found[0].serving:
            return
        one = found[0]
        others = [p for p in self.cluster.processes.values() if p.serving and p is not one]
        for other in others:
            self._suspect(other, one)
        if others and self.rng.random() < 0.5:
            other = pick(self.rng, others)
            self.cluster.kill(other.broker_id)
            self._start_later(other.broker_id)

    def depose_a_coordinator(self) -> None:
        """Replace a coordinator while a batch is delayed, so that the transaction is aborted before
        the batch arrives (module ``deposed``)."""
        self._spawn(late_batch(self.cluster, self.rng, self._suspect))

    def overtake_a_verification(self) -> None:
        """Let a transaction's marker overtake the answer to the verification of a late batch
        (module ``overtaken``)."""
        self._spawn(overtaken_answer(self.cluster, self.rng))

    def set_clock(self) -> None:
        """Change the wall clock of a machine."""
        process = self._some()
        if process is not None:
            process.clock.skew_ms += self.rng.choice((-86_400_000, -1000, 1000, 3_600_000))


def _resume(process: Process) -> None:
    if process.alive:
        process.resume()
