"""How soon a group owns everything again when a member joins, leaves or dies; prints JSON.

    python benchmarks/groups.py [--members 10] [--partitions 30] [--rounds 10] [--kills 5]
                                [--session-timeout-ms 6000] [--coordination kafka]

Three brokers, RF 3; each member is a process of its own that reads what one producer sends
(500 records a second). Counted, in ms: from the moment that a member has joined (its constructor
returned), or was told to leave, or was killed with SIGKILL, until every partition's owner is the
one that the range algorithm names for those who are there. With ``--coordination kafka``, whose
constructor waits for partitions, from the moment that it is called, until the group is stable and
each partition is assigned to one of those who are there. Everything shares the machine's cores.
"""

from __future__ import annotations

import abc
import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

from broker_lite.client import Bus, connect
from broker_lite.client.native.assignment import assign
from broker_lite.local.cluster import LocalCluster
from broker_lite.metadata import znodes
from broker_lite.metadata.zookeeper import ZooKeeperStore
from broker_lite.wire.consumer_protocol import decode_assignment

TOPIC, GROUP = "work", "crew"
WAIT_S = 60.0
LOOK_S = 0.002
CALM_S = 1.5
"""Between two rounds: a member that has heard of nothing for a second looks at once."""


def member(bootstrap: str, zookeeper: str, session_timeout_ms: int) -> None:
    """Read until stdin ends; then leave well. ``zookeeper`` "": of a Kafka group."""
    native = {"coordination": "zookeeper", "zookeeper": zookeeper} if zookeeper else {}
    with connect(bootstrap) as bus:
        began = time.monotonic()
        consumer: Any = bus.consumer(
            TOPIC, group=GROUP, session_timeout_ms=session_timeout_ms, start="earliest", **native
        )
        while not consumer.member_id:
            consumer.poll(0.05)
        print(time.monotonic() if native else began, consumer.member_id, flush=True)
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
        while not over.is_set():
            consumer.poll(0.05)
        consumer.close()


class Member:
    """A process that has joined when this returns."""

    def __init__(self, cluster: LocalCluster, options: argparse.Namespace) -> None:
        zookeeper = str(cluster.zookeeper) if options.coordination == "zookeeper" else ""
        arguments = [cluster.bootstrap_servers, zookeeper, str(options.session_timeout_ms)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--member", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.joined_at = 0.0
        self.name = ""

    def wait(self) -> Member:
        assert self.process.stdout is not None
        at, self.name = self.process.stdout.readline().split()
        self.joined_at = float(at)
        return self

    def leave(self) -> float:
        """When it was told to."""
        assert self.process.stdin is not None
        began = time.monotonic()
        self.process.stdin.close()
        return began

    def kill(self) -> float:
        began = time.monotonic()
        self.process.kill()
        return began

    def reap(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(WAIT_S)
        self.process.stdout.close()


class Watched(abc.ABC):
    """A group that somebody looks at again and again."""

    @abc.abstractmethod
    async def is_owned_by(self, names: set[str]) -> bool:
        """Whether these are the members, and own what each of them should."""

    async def wait(self, members: list[Member], since: float) -> float:
        """Milliseconds since then until all is owned as it should be."""
        names = {each.name for each in members}
        while not await self.is_owned_by(names):
            if time.monotonic() - since > WAIT_S:
                raise SystemExit(f"not settled after {WAIT_S:g} s")
            await asyncio.sleep(LOOK_S)
        return (time.monotonic() - since) * 1000


class Described(Watched):
    """A Kafka group, as its coordinator describes it."""

    def __init__(self, bus: Bus, partitions: int) -> None:
        self._bus = bus
        self._partitions = partitions

    async def is_owned_by(self, names: set[str]) -> bool:
        group = (await asyncio.to_thread(self._bus.admin.describe_groups, [GROUP]))[GROUP]
        if group.state != "Stable" or {row.member_id for row in group.members} != names:
            return False
        owned = [
            where for row in group.members for where in decode_assignment(row.member_assignment)
        ]
        return len(owned) == len(set(owned)) == self._partitions


class Registry(Watched):
    """A native group's registries, as ZooKeeper has them."""

    def __init__(self, store: ZooKeeperStore, partitions: int) -> None:
        self._store = store
        self._partitions = partitions

    async def is_owned_by(self, names: set[str]) -> bool:
        found = set(await self._store.children(znodes.consumers_path(GROUP)) or ())
        if found != names:
            return False
        one = znodes.Subscription((TOPIC,), None, 1)
        expected = assign(dict.fromkeys(names, one), {TOPIC: self._partitions})
        paths = [znodes.owner_path(GROUP, *where) for where in expected]
        there = await asyncio.gather(*[self._store.get(path) for path in paths])
        return all(
            znode is not None and znodes.decode_owner(path, znode.data) == owner
            for path, znode, owner in zip(paths, there, expected.values(), strict=True)
        )


async def measure(
    cluster: LocalCluster, bus: Bus, options: argparse.Namespace, members: list[Member]
) -> dict[str, list[float]]:
    assert cluster.zookeeper is not None
    store = ZooKeeperStore(cluster.zookeeper, session_timeout_ms=10_000)
    await store.start(lambda event: None)
    registry: Watched = Registry(store, options.partitions)
    if options.coordination == "kafka":
        registry = Described(bus, options.partitions)
    found: dict[str, list[float]] = {"join": [], "leave": [], "kill": []}
    try:
        began = time.monotonic()
        members += [Member(cluster, options) for _ in range(options.members - 1)]
        for each in members:
            await asyncio.to_thread(each.wait)
        await registry.wait(members, began)
        for number in range(options.rounds + options.kills):
            await asyncio.sleep(CALM_S)
            newcomer = await asyncio.to_thread(Member(cluster, options).wait)
            members.append(newcomer)
            found["join"].append(await registry.wait(members, newcomer.joined_at))
            await asyncio.sleep(CALM_S)
            gone = members.pop(number % len(members))
            kind = "leave" if number < options.rounds else "kill"
            began = gone.leave() if kind == "leave" else gone.kill()
            found[kind].append(await registry.wait(members, began))
            await asyncio.to_thread(gone.reap)
    finally:
        await store.close()
    return found


def produce(bus: Bus, over: threading.Event) -> None:
    with bus.producer() as producer:
        for number in itertools.count():
            if over.wait(0.01):
                return
            for record in range(5):
                producer.send(TOPIC, b"%d" % (number * 5 + record))


def summary(values: list[float]) -> dict[str, float]:
    return {
        "count": len(values),
        "median_ms": round(statistics.median(values), 1),
        "max_ms": round(max(values), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--session-timeout-ms", type=int, default=6000)
    parser.add_argument("--coordination", choices=("zookeeper", "kafka"), default="zookeeper")
    parser.add_argument("--member", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        bootstrap, zookeeper, timeout_ms = options.member
        member(bootstrap, zookeeper, int(timeout_ms))
        return
    members: list[Member] = []
    over = threading.Event()
    with LocalCluster(brokers=3) as cluster, connect(cluster.bootstrap_servers) as bus:
        bus.create_topic(TOPIC, partitions=options.partitions, replication_factor=3)
        producer = threading.Thread(target=produce, args=(bus, over))
        producer.start()
        try:
            found = asyncio.run(measure(cluster, bus, options, members))
        finally:
            for each in members:
                each.kill()
                each.process.wait()
            over.set()
            producer.join()
    result = {
        "coordination": options.coordination,
        "members": options.members,
        "partitions": options.partitions,
        "session_timeout_ms": options.session_timeout_ms,
        **{kind: summary(values) for kind, values in found.items() if values},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
