"""Brokers whose topics are replicated: who leads, who is in sync, and waiting for either.

``Replicated`` stands before a ``LocalCluster`` or brokers started one by one. Everything it is told
and everything it waits for goes through an ordinary client.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from faults.history import WAIT_S, Workload

from broker_lite.client import Admin, ClusterView
from broker_lite.errors import LogbusError
from broker_lite.local.broker import LocalBroker

POLL_S = 0.02
_NUMBERS = itertools.count()


class Replicated:
    """Brokers, by number; of a cluster that is up. ``close`` it."""

    def __init__(self, brokers: Sequence[LocalBroker]) -> None:
        self.brokers = {broker.id: broker for broker in brokers}
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

    def wait_out_of_sync(self, topic: str, broker: LocalBroker, timeout_s: float = WAIT_S) -> None:
        """Wait until a broker is in no ISR of the topic."""
        self.wait(
            lambda view: all(broker.id not in p.isr for p in view.topics[topic].partitions),
            topic,
            timeout_s=timeout_s,
        )

    def wait(
        self, condition: Callable[[ClusterView], bool], *topics: str, timeout_s: float = WAIT_S
    ) -> ClusterView:
        """Wait until what clients are told fulfils ``condition``."""
        deadline = time.monotonic() + timeout_s
        seen: object = None
        while time.monotonic() < deadline:
            try:
                view = self.admin.cluster(topics)
                seen = view.topics
                if all(view.topics[topic].error is None for topic in topics) and condition(view):
                    return view
            except LogbusError as error:
                seen = error
            time.sleep(POLL_S)
        raise AssertionError(f"waited {timeout_s:.0f} s, and now it is {seen}")

    def data(self, broker: LocalBroker, topic: str, partition: int) -> Path:
        """Where a broker keeps its replica of a partition."""
        topic_id = self.admin.cluster([topic]).topic_id(topic)
        return broker.directory / "data" / f"{topic_id}-{partition}"


def is_in_sync(view: ClusterView, topic: str) -> bool:
    """Whether every replica of every partition is in sync, and somebody leads."""
    return all(
        row.error is None and row.leader >= 0 and set(row.isr) == set(row.replicas)
        for row in view.topics[topic].partitions
    )


def content(directory: Path) -> bytes:
    """A replica's whole log, segment after segment."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
