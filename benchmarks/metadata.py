"""How long the metadata of many partitions takes to fail over, on a real ZooKeeper.

``python benchmarks/metadata.py [--partitions N] [--rounds R]``: one JSON object on standard output.
Three brokers' registries, each in a process of its own; one is killed with -9 and its peers say at
once that they suspect it, as their broken connections make them. Timed until both others' snapshots
show a live leader for every partition: where the dead one was the controller, and where it was not;
and what that costs ZooKeeper: its processor's time, and reads of the two others.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

from peers.meter import cpu_seconds

from broker_lite.config import BrokerConfig
from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.metadata.store import Znode
from broker_lite.metadata.zookeeper import ZooKeeperStore
from broker_lite.model import Endpoint
from broker_lite.server.registry import BrokerRegistration, NewTopic, Registry

PARTITIONS_PER_TOPIC = 100
BROKERS = (1, 2, 3)


class Failover(NamedTuple):
    """``reads`` of znodes and their lists of children, by the brokers that are left."""

    seconds: float
    zookeeper_cpu_seconds: float
    reads: int


class CountingStore(ZooKeeperStore):
    """ZooKeeper, and how often it was read."""

    reads = 0

    async def get(self, path: str, *, watch: bool = False) -> Znode | None:
        self.reads += 1
        return await super().get(path, watch=watch)

    async def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        self.reads += 1
        return await super().children(path, watch=watch)


class Broker:
    """A registry in a child process; ``do`` asks it and awaits its answer."""

    def __init__(self, address: str, broker_id: int, counter: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, address, broker_id, counter), daemon=True
        )
        self.process.start()
        self.pipe.recv()

    def ask(self, *words: object) -> None:
        self.pipe.send(words)

    def do(self, *words: object) -> object:
        self.ask(*words)
        return self.pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(pipe: Connection, address: str, broker_id: int, counter: int) -> None:
    asyncio.run(_run(pipe, address, broker_id, counter))


async def _run(pipe: Connection, address: str, broker_id: int, counter: int) -> None:
    config = BrokerConfig(broker_id=broker_id, zookeeper_connect=address)
    store = CountingStore(address, session_timeout_ms=config.zookeeper_session_timeout_ms)
    registry = Registry(config, now_ms=lambda: time.time_ns() // 1_000_000, store=store)
    await registry.start(
        BrokerRegistration(
            broker_id, Endpoint("127.0.0.1", 9000 + broker_id), f"directory-{broker_id}", counter
        )
    )
    pipe.send("ready")
    loop = asyncio.get_running_loop()
    while True:
        command, *words = await loop.run_in_executor(None, pipe.recv)
        match command:
            case "create":
                topics = [NewTopic(name, PARTITIONS_PER_TOPIC, 3) for name in words]
                for result in await registry.create_topics(topics):
                    assert result.error is None, result.error
                pipe.send("created")
            case "is_controller":
                pipe.send(registry.is_controller)
            case "sees":
                [count, live] = words
                await _until(functools.partial(_seen, registry, count, live))
                pipe.send("seen")
            case "lose":
                [dead] = words
                before = store.reads
                view = registry.snapshot.brokers[dead]
                registry.suspect(dead, view.broker_epoch)
                await _until(functools.partial(_led_by_others, registry, dead))
                pipe.send(store.reads - before)
            case "close":
                await registry.close()
                pipe.send("closed")
                return


def _seen(registry: Registry, partitions: int, live: int) -> bool:
    views = [v for topic in registry.snapshot.topics.values() for v in topic.partitions]
    return len(views) == partitions and len(registry.snapshot.brokers) == live


def _led_by_others(registry: Registry, dead: int) -> bool:
    return all(
        view.state.leader not in (dead, -1)
        and all(replica.broker_id != dead for replica in view.state.isr)
        for topic in registry.snapshot.topics.values()
        for view in topic.partitions
    )


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def measure(address: str, pid: int, partitions: int, *, controller: bool) -> Failover:
    """From the kill until both others see all partitions led. ``pid``: ZooKeeper's."""
    brokers = {number: Broker(address, number, 1) for number in BROKERS}
    names = [f"t{number}" for number in range(partitions // PARTITIONS_PER_TOPIC)]
    chief = next(n for n, broker in brokers.items() if broker.do("is_controller"))
    brokers[chief].do("sees", 0, len(BROKERS))
    brokers[chief].do("create", *names)
    for broker in brokers.values():
        broker.do("sees", partitions, len(BROKERS))
    dead = chief if controller else next(number for number in BROKERS if number != chief)
    others = [broker for number, broker in brokers.items() if number != dead]
    start, cpu = time.perf_counter(), cpu_seconds(pid)
    brokers[dead].kill()
    for broker in others:
        broker.ask("lose", dead)
    reads = [int(broker.pipe.recv()) for broker in others]
    found = Failover(time.perf_counter() - start, cpu_seconds(pid) - cpu, sum(reads))
    for broker in others:
        broker.do("close")
        broker.process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as directory:
        zookeeper = EmbeddedZooKeeper(directory)
        address = zookeeper.start()
        try:
            assert zookeeper.pid is not None
            for name, controller in (("a_broker", False), ("the_controller", True)):
                rounds = [
                    measure(
                        f"{address}/{name}-{n}",
                        zookeeper.pid,
                        options.partitions,
                        controller=controller,
                    )
                    for n in range(options.rounds)
                ]
                seconds, cpu, reads = zip(*rounds)
                figures[name] = {
                    "seconds_median": round(statistics.median(seconds), 3),
                    "seconds_max": round(max(seconds), 3),
                    "zookeeper_cpu_seconds_median": round(statistics.median(cpu), 3),
                    "reads_median": statistics.median(reads),
                }
        finally:
            zookeeper.stop()
    print(json.dumps({"partitions": options.partitions, "dead": figures}))


if __name__ == "__main__":
    main()
