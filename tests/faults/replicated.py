"""A cluster with replicated topics, for tests that inject faults.

``Replicated`` wraps a ``LocalCluster`` or brokers that were started one by one. It finds leaders
and ISRs, and waits for their changes, through an ordinary client.
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
from support.patience import until

from broker_lite.client import Admin, ClusterView
from broker_lite.client.client_config import (
    chosen_security,
    security_of_environment,
    security_of_file,
)
from broker_lite.client.discovery import parse_endpoints
from broker_lite.client.operations.requests import view_of
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.pool import PooledConnection
from broker_lite.client.transport.steps import CallExchange
from broker_lite.errors import LogbusError
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.guard import Guard
from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.wire.calls.cluster import MetadataRequest

POLL_S = 0.02
_NUMBERS = itertools.count()


class Replicated:
    """The brokers of a cluster, by number. The caller must close it."""

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
        """Return the addresses of all brokers, including stopped brokers."""
        return ",".join(broker.endpoint for broker in self.brokers.values())

    def close(self) -> None:
        """Close the connections of the test to the brokers."""
        self.admin.close()

    def make_topic(self, partitions: int = 3, **config: object) -> str:
        """Create a topic with a replica on every broker."""
        name = f"faults-{os.getpid()}-{next(_NUMBERS)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topic(name, partitions, len(self.brokers), settings)
        self.wait_in_sync(name)
        return name

    def workload(self, topic: str, **options: object) -> Workload:
        """Return the writers and readers of a topic; the caller starts them."""
        partitions = len(self.admin.cluster([topic]).topics[topic].partitions)
        return Workload(self.bootstrap_servers, topic, partitions, **options)  # type: ignore[arg-type]

    def finish(self, work: Workload) -> History:
        """Check the topic after the faults; return its history.

        Wait until all replicas are in sync and the workload continues. Then compare the logs with
        the history, and the replicas byte for byte. Raises AssertionError for a difference.
        """
        self.wait_in_sync(work.topic)
        work.wait_acked()
        history = work.finish()
        topic_id = self.admin.cluster([work.topic]).topic_id(work.topic)
        for number in range(work.partitions):
            names = [b.directory / "data" / f"{topic_id}-{number}" for b in self.brokers.values()]
            until(
                lambda names=names: len({content(name) for name in names}) == 1,
                what=f"{work.topic}-{number}: replicas differ",
            )
        return history

    def leader(self, topic: str, partition: int = 0) -> LocalBroker:
        """Return the leader of a partition; wait while the partition has no leader."""
        view = self.wait(lambda view: view.topics[topic].partitions[partition].leader >= 0, topic)
        return self.brokers[view.topics[topic].partitions[partition].leader]

    def follower(self, topic: str, partition: int = 0) -> LocalBroker:
        """Return a broker that has a follower replica of the partition."""
        leader = self.leader(topic, partition)
        return next(broker for broker in self.brokers.values() if broker is not leader)

    def controller(self) -> LocalBroker:
        """Return the broker that is the controller now."""
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
        """Wait until a broker is in no ISR of the topic.

        The wait looks at the metadata of all running brokers, or only of broker ``at``.
        """
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
        """Wait until ``condition`` accepts the metadata of every running broker, or only of broker
        ``at``.

        Return the metadata of the first of these brokers.
        """
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
        raise AssertionError(f"waited {timeout_s:.0f} s, the last value is {seen}")

    def led_by(self, topic: str, broker: LocalBroker) -> list[int]:
        """Return the partitions that a broker leads now."""
        rows = self.admin.cluster([topic]).topics[topic].partitions
        return [row.partition for row in rows if row.leader == broker.id]

    def start_all(self) -> None:
        """Start stopped brokers, resume paused brokers, and wait until every broker is live."""
        self.zookeeper.start()
        for broker in self.brokers.values():
            broker.resume()
        down = [broker for broker in self.brokers.values() if not broker.is_running]
        for broker in down:
            broker.start(wait=False)
        for broker in down:
            broker.wait_ready()
        # A resumed broker registers again if its session has expired.
        self.wait(lambda view: len(view.brokers) == len(self.brokers))

    def cut_power(self, brokers: Sequence[LocalBroker], random: Random) -> None:
        """Cut the power of these brokers' machines together; then mount their disks again."""
        at_once = random.random() < 0.7
        for broker in brokers:
            # Suspend the process, which would otherwise continue without its disk for a while.
            if at_once:
                broker.pause()
        for broker in brokers:
            self.disks[broker.id].cut(random)
        for broker in brokers:
            broker.kill()
            self.disks[broker.id].unmount()
            self.disks[broker.id].mount()


def view_at(broker: LocalBroker, topics: Sequence[str]) -> ClusterView:
    """Return the metadata of these topics from one broker."""
    (endpoint,) = parse_endpoints(broker.endpoint)
    deadline_ms = monotonic_ms() + 5000
    connection = PooledConnection(endpoint, "faults", 5.0, security_of_environment())
    try:
        connection.send(CallExchange(MetadataRequest(tuple(topics))), deadline_ms)
        return view_of(connection.receive(deadline_ms))
    finally:
        connection.close()


def _knows(view: ClusterView, topics: Sequence[str]) -> bool:
    return all(view.topics[topic].error is None for topic in topics)


def is_in_sync(view: ClusterView, topic: str) -> bool:
    """Return whether every partition has a leader and all of its replicas are in sync."""
    return all(
        row.error is None and row.leader >= 0 and set(row.isr) == set(row.replicas)
        for row in view.topics[topic].partitions
    )


def content(directory: Path) -> bytes:
    """Return the bytes of a replica's whole log: all segments in order."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


@contextlib.contextmanager
def on_disks(directory: Path, *, secure: bool = False, **settings: str) -> Iterator[Replicated]:
    """Start three brokers, each with its own disk that can lose power or fill up.

    If this machine does not permit such disks, the brokers get plain directories, and ``disks`` is
    empty. With ``secure``, clients of this process log in over TLS as the user admin.
    """
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
        cluster = stack.enter_context(
            LocalCluster(3, directory=directory, config=config, secure=secure)
        )
        if cluster.client_config is not None:
            stack.enter_context(chosen_security(security_of_file(Path(cluster.client_config))))
        assert cluster.zookeeper_server is not None
        replicated = Replicated(cluster.brokers, cluster.zookeeper_server, disks)
        stack.callback(replicated.close)
        yield replicated


class _HubZooKeeper(EmbeddedZooKeeper):
    """A ZooKeeper on the network's hub (host 0), which the other hosts can reach."""

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
    """Start three brokers on hosts 1, 2 and 3 of a network. Move the calling thread to host 0, the
    hub to which the hosts are linked."""
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
