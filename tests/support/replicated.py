"""Watch a topic's replicas through clients and files. Write records to the topic during a test, and
check that none is lost or duplicated."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from broker_lite.bus import Bus
from broker_lite.client.producing.futures import RecordMetadata
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition
from support.patience import PATIENCE_S, until


class Watched:
    """A topic, with access to its leaders, its ISRs and the files of its replicas."""

    def __init__(self, cluster: LocalCluster, bus: Bus, topic: str) -> None:
        self.cluster = cluster
        self.bus = bus
        self.topic = topic

    def state(self, partition: int = 0) -> tuple[int, int, set[int]]:
        """Return leader, leader epoch and ISR of a partition from a broker's metadata."""
        row = self.bus.admin.cluster([self.topic]).topics[self.topic].partitions[partition]
        return row.leader, row.leader_epoch, set(row.isr)

    def leader(self, partition: int = 0) -> LocalBroker:
        return self.cluster.brokers[self.state(partition)[0]]

    def followers(self, partition: int = 0) -> list[LocalBroker]:
        leader = self.state(partition)[0]
        return [broker for broker in self.cluster.brokers if broker.id != leader]

    def in_sync(self, *brokers: int, partition: int = 0) -> None:
        """Wait until exactly these brokers are in the ISR."""
        until(
            lambda: self.state(partition)[2] == set(brokers),
            what=f"{self.topic}: the state is {self.state(partition)}; expected ISR {brokers}",
        )

    def led_by_another(self, than: int, partition: int = 0) -> None:
        until(
            lambda: self.state(partition)[0] not in (-1, than),
            what=f"{self.topic} is still led by broker {than}",
        )

    def folder(self, broker: LocalBroker, partition: int = 0) -> Path:
        """Return the folder of a broker's replica."""
        topic_id = self.bus.admin.cluster([self.topic]).topics[self.topic].topic_id
        return broker.directory / "data" / f"{topic_id}-{partition}"

    def bytes_on(self, broker: LocalBroker, partition: int = 0) -> bytes:
        """Return all bytes of a replica's log."""
        files = sorted(self.folder(broker, partition).glob("*.log"))
        return b"".join(file.read_bytes() for file in files)

    def all_alike(self, partition: int = 0) -> bytes:
        """Wait until all brokers' logs are equal; return their bytes."""

        def alike() -> bool:
            return len({self.bytes_on(b, partition) for b in self.cluster.brokers}) == 1

        until(alike, what=f"{self.topic}: the replicas stay different")
        return self.bytes_on(self.cluster.brokers[0], partition)

    def values(self, partition: int = 0) -> list[bytes | None]:
        """Read all records of a partition; check that offsets have no gaps; return the values."""
        found: list[bytes | None] = []
        end = self.end(partition)
        with self.bus.consumer(self.topic, partitions=[partition], start="earliest") as consumer:
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < end:
                assert time.monotonic() < deadline, f"received {len(found)} of {end} records"
                for record in consumer.poll(0.2):
                    assert record.offset == len(found)
                    found.append(record.value)
        return found

    def end(self, partition: int = 0) -> int:
        tp = TopicPartition(self.topic, partition)
        return self.bus.admin.list_offsets({tp: LATEST_TIMESTAMP})[tp].offset


class Load(threading.Thread):
    """A thread that sends numbered records while its ``with`` block runs.

    At the end it checks that each acknowledged record is in the log once, in order, at the
    acknowledged offset.
    """

    def __init__(self, watched: Watched, name: bytes = b"load", **options: object) -> None:
        super().__init__(daemon=True)
        self._prefix = name + b"-"
        self._watched = watched
        self._options = {"linger_ms": 0, "request_timeout_ms": 5000} | options
        self._stop_requested = threading.Event()
        self._failure: BaseException | None = None
        self.acked: list[RecordMetadata] = []
        self.gap_s = 0.0
        """The longest time until an acknowledgement, in seconds."""

    def run(self) -> None:
        try:
            with self._watched.bus.producer(**self._options) as producer:
                while not self._stop_requested.is_set():
                    began = time.monotonic()
                    value = b"%b%d" % (self._prefix, len(self.acked))
                    future = producer.send(self._watched.topic, value, partition=0)
                    self.acked.append(future.result(PATIENCE_S))
                    self.gap_s = max(self.gap_s, time.monotonic() - began)
        except BaseException as error:
            self._failure = error

    def more(self, count: int = 50) -> None:
        """Wait until ``count`` more records are acknowledged."""
        wanted = len(self.acked) + count
        until(
            lambda: len(self.acked) >= wanted or self._failure is not None,
            what=f"only {len(self.acked)} of {wanted} were acknowledged",
        )
        assert self._failure is None, self._failure

    def __enter__(self) -> Load:
        self.start()
        self.more()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop_requested.set()
        self.join(PATIENCE_S)
        if kind is None:
            assert self._failure is None, self._failure

    def check(self) -> None:
        """Check that no acknowledged record is lost, duplicated or at another offset."""
        found = self._watched.values()
        offsets = [place.offset for place in self.acked]
        assert offsets == sorted(set(offsets))
        assert [found[offset] for offset in offsets] == [
            b"%b%d" % (self._prefix, number) for number in range(len(offsets))
        ]
        loaded = [value for value in found if value and value.startswith(self._prefix)]
        assert len(loaded) == len(set(loaded)), "a record is in the log twice"
