"""Brokers whose topics are replicated: who leads, who is in sync, and waiting for either.

``Replicated`` stands before a ``LocalCluster`` or brokers started one by one. Everything it is told
and everything it waits for goes through an ordinary client.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from faults.history import WAIT_S, History, Workload
from faults.machine import LoopDisk, Network, private_mounts, why_no_disks
from plain_connection import PlainConnection

from broker_lite.client import Admin, ClusterView
from broker_lite.client.operations.requests import view_of
from broker_lite.errors import LogbusError
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.guard import Guard
from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.wire.calls.cluster import MetadataRequest

POLL_S = 0.02
_NUMBERS = itertools.count()


class Replicated:
    """Brokers, by number; of a cluster that is up. ``close`` it."""

    def __init__(
        self,
        brokers: Sequence[LocalBroker],
        zookeeper: EmbeddedZooKeeper,
        disks: Mapping[int, LoopDisk] | None = None,
    ) -> None:
        self.brokers = {broker.id: broker for broker in brokers}
        self.zookeeper = zookeeper
        self.disks = dict(disks or {})
        self.admin = Admin(self.bootstrap_servers, client_id="faults")

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, those that are down included."""
        return ",".join(broker.endpoint for broker in self.brokers.values())

    def close(self) -> None:
        """Forget the connections."""
        self.admin.close()

    def make_topic(self, partitions: int = 3, **config: object) -> str:
        """A new topic with a replica on every broker."""
        name = f"faults-{os.getpid()}-{next(_NUMBERS)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topic(name, partitions, len(self.brokers), settings)
        self.wait_in_sync(name)
        return name

    def workload(self, topic: str, **options: object) -> Workload:
        """Writers and readers of a topic; not started yet."""
        partitions = len(self.admin.cluster([topic]).topics[topic].partitions)
        return Workload(self.bootstrap_servers, topic, partitions, **options)  # type: ignore[arg-type]

    def finish(self, work: Workload) -> History:
        """The faults are over: all is in sync, writing and reading goes on, and then what there is
        is held against the history, and every replica is the same bytes. AssertionError if not."""
        self.wait_in_sync(work.topic)
        work.wait_acked()
        history = work.finish()
        topic_id = self.admin.cluster([work.topic]).topic_id(work.topic)
        deadline = time.monotonic() + WAIT_S
        for number in range(work.partitions):
            names = [b.directory / "data" / f"{topic_id}-{number}" for b in self.brokers.values()]
            while len({content(name) for name in names}) > 1:
                assert time.monotonic() < deadline, f"{work.topic}-{number}: replicas differ"
                time.sleep(POLL_S)
        return history

    def leader(self, topic: str, partition: int = 0) -> LocalBroker:
        """The broker that leads a partition now. Waits while nobody does."""
        view = self.wait(lambda view: view.topics[topic].partitions[partition].leader >= 0, topic)
        return self.brokers[view.topics[topic].partitions[partition].leader]

    def follower(self, topic: str, partition: int = 0) -> LocalBroker:
        """A broker that does not lead a partition."""
        leader = self.leader(topic, partition)
        return next(broker for broker in self.brokers.values() if broker is not leader)

    def controller(self) -> LocalBroker:
        """The broker that is the controller now."""
        view = self.wait(lambda view: view.controller_id in self.brokers)
        return self.brokers[view.controller_id]

    def wait_in_sync(self, topic: str, timeout_s: float = WAIT_S) -> None:
        """Wait until every replica of every partition is in sync."""
        self.wait(lambda view: is_in_sync(view, topic), topic, timeout_s=timeout_s)

    def wait_out_of_sync(
        self,
        topic: str,
        broker: LocalBroker,
        at: LocalBroker | None = None,
    ) -> None:
        """Wait until a broker is in no ISR of the topic."""
        self.wait(
            lambda view: all(broker.id not in row.isr for row in view.topics[topic].partitions),
            topic,
            at=at,
        )

    def wait(
        self,
        condition: Callable[[ClusterView], bool],
        *topics: str,
        timeout_s: float = WAIT_S,
        at: LocalBroker | None = None,
    ) -> ClusterView:
        """Wait until what every broker that runs, or ``at`` alone, tells fulfils ``condition``."""
        deadline = time.monotonic() + timeout_s
        seen: object = None
        while time.monotonic() < deadline:
            asked = [b for b in self.brokers.values() if b.is_running] if at is None else [at]
            try:
                views = [view_at(broker, topics) for broker in asked]
                seen = [view.topics for view in views]
                if views and all(_knows(view, topics) and condition(view) for view in views):
                    return views[0]
            except (LogbusError, OSError, EOFError) as error:
                seen = error
            time.sleep(POLL_S)
        raise AssertionError(f"waited {timeout_s:.0f} s, and now it is {seen}")

    def led_by(self, topic: str, broker: LocalBroker) -> list[int]:
        """The partitions that a broker leads now."""
        rows = self.admin.cluster([topic]).topics[topic].partitions
        return [row.partition for row in rows if row.leader == broker.id]

    def start_all(self) -> None:
        """Start what is down, resume what is paused, and wait until every broker is live."""
        self.zookeeper.start()
        for broker in self.brokers.values():
            broker.resume()
        down = [broker for broker in self.brokers.values() if not broker.is_running]
        for broker in down:
            broker.start(wait=False)
        for broker in down:
            broker.wait_ready()
        # A resumed broker whose session has expired registers again.
        self.wait(lambda view: len(view.brokers) == len(self.brokers))

    def cut_power(self, brokers: Sequence[LocalBroker], random: Random) -> None:
        """The machines of these brokers lose power at one moment; their disks come back."""
        at_once = random.random() < 0.7
        for broker in brokers:
            # Else the process lives on for a moment without its disk.
            if at_once:
                broker.pause()
        for broker in brokers:
            self.disks[broker.id].cut(random)
        for broker in brokers:
            broker.kill()
            self.disks[broker.id].unmount()
            self.disks[broker.id].mount()


def view_at(broker: LocalBroker, topics: Sequence[str]) -> ClusterView:
    """What one broker tells its clients."""
    with PlainConnection(broker.endpoint, 5.0) as connection:
        return view_of(connection.call(MetadataRequest(tuple(topics))))


def _knows(view: ClusterView, topics: Sequence[str]) -> bool:
    return all(view.topics[topic].error is None for topic in topics)


def is_in_sync(view: ClusterView, topic: str) -> bool:
    """Whether every replica of every partition is in sync, and somebody leads."""
    return all(
        row.error is None and row.leader >= 0 and set(row.isr) == set(row.replicas)
        for row in view.topics[topic].partitions
    )


def content(directory: Path) -> bytes:
    """A replica's whole log, segment after segment."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


@contextlib.contextmanager
def on_disks(directory: Path, **settings: str) -> Iterator[Replicated]:
    """Three brokers, each with a disk of its own that can lose power or fill up; where that is not
    permitted with directories (``disks`` is empty then)."""
    config = {key.replace("_", "."): value for key, value in settings.items()}
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        disks = {}
        if not why_no_disks():
            stack.enter_context(private_mounts())
            for number in range(3):
                place = directory / f"broker-{number}" / "data"
                disks[number] = LoopDisk(directory / f"disk-{number}", place)
                stack.callback(disks[number].unmount)
        cluster = stack.enter_context(LocalCluster(3, directory=directory, config=config))
        assert cluster.zookeeper_server is not None
        replicated = Replicated(cluster.brokers, cluster.zookeeper_server, disks)
        stack.callback(replicated.close)
        yield replicated


class _HubZooKeeper(EmbeddedZooKeeper):
    """Reached from other hosts of a network."""

    @property
    def address(self) -> str:
        return f"{Network.coordination}:{self.port}"

    def write_config(self) -> Path:
        path = super().write_config()
        text = path.read_text("utf-8").replace("Address=127.0.0.1", "Address=0.0.0.0")
        path.write_text(text, "utf-8")
        return path


@contextlib.contextmanager
def on_network(directory: Path, **settings: str) -> Iterator[tuple[Replicated, Network]]:
    """Three brokers at hosts 1, 2, 3 of a network; this thread and ZooKeeper are at its hub."""
    config = {key.replace("_", "."): value for key, value in settings.items()}
    with contextlib.ExitStack() as stack:
        guard = Guard()
        stack.callback(guard.close)
        network = Network(guard, 3, directory / "network.log")
        stack.enter_context(network.inside(0))
        zookeeper = _HubZooKeeper(directory / "zookeeper", guard=guard)
        stack.callback(zookeeper.stop)
        config["zookeeper.connect"] = zookeeper.start() + "/logbus"
        brokers = []
        for host in (1, 2, 3):
            own = config | {
                "host": network.address(host),
                "port": "9092",
                "listeners.insecure.allow": "true",
            }
            brokers.append(LocalBroker(guard, directory / f"broker-{host}", host, own))
            stack.callback(brokers[-1].stop)
            with network.inside(host):
                brokers[-1].start(wait=False)
        for broker in brokers:
            broker.wait_ready()
        replicated = Replicated(brokers, zookeeper)
        stack.callback(replicated.close)
        yield replicated, network
