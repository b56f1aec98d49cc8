"""Load on a replicated topic whose history is checked, and looking at replicas from outside."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from patience import PATIENCE_S, until

from broker_lite.bus import Bus
from broker_lite.client.producing.futures import RecordMetadata
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition


class Watched:
    """One topic of a cluster: who leads, who is in sync, what is on the disks."""

    def __init__(self, cluster: LocalCluster, bus: Bus, topic: str) -> None:
        self.cluster = cluster
        self.bus = bus
        self.topic = topic

    def state(self, partition: int = 0) -> tuple[int, int, set[int]]:
        """Leader, leader epoch, ISR: as some broker has it."""
        row = self.bus.admin.cluster([self.topic]).topics[self.topic].partitions[partition]
        return row.leader, row.leader_epoch, set(row.isr)

    def leader(self, partition: int = 0) -> LocalBroker:
        return self.cluster.brokers[self.state(partition)[0]]

    def followers(self, partition: int = 0) -> list[LocalBroker]:
        leader = self.state(partition)[0]
        return [broker for broker in self.cluster.brokers if broker.id != leader]

    def in_sync(self, *brokers: int, partition: int = 0) -> None:
        """Wait until these are the ISR."""
        until(
            lambda: self.state(partition)[2] == set(brokers),
            what=f"{self.topic}: in sync are {self.state(partition)}, not {brokers}",
        )

    def led_by_another(self, than: int, partition: int = 0) -> None:
        until(
            lambda: self.state(partition)[0] not in (-1, than),
            what=f"{self.topic} is still led by broker {than}",
        )

    def folder(self, broker: LocalBroker, partition: int = 0) -> Path:
        """Where a broker keeps its replica."""
        topic_id = self.bus.admin.cluster([self.topic]).topics[self.topic].topic_id
        return broker.directory / "data" / f"{topic_id}-{partition}"

    def bytes_on(self, broker: LocalBroker, partition: int = 0) -> bytes:
        """Every byte of a replica's log."""
        files = sorted(self.folder(broker, partition).glob("*.log"))
        return b"".join(file.read_bytes() for file in files)

    def all_alike(self, partition: int = 0) -> bytes:
        """Wait until every broker's log holds the same bytes; those."""

        def alike() -> bool:
            return len({self.bytes_on(b, partition) for b in self.cluster.brokers}) == 1

        until(alike, what=f"{self.topic}: the replicas stay different")
        return self.bytes_on(self.cluster.brokers[0], partition)

    def values(self, partition: int = 0) -> list[bytes | None]:
        """Every record from the first to the end, offsets without a gap."""
        found: list[bytes | None] = []
        end = self.end(partition)
        with self.bus.consumer(self.topic, partitions=[partition], start="earliest") as consumer:
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < end:
                assert time.monotonic() < deadline, f"{len(found)} of {end} records came"
                for record in consumer.poll(0.2):
                    assert record.offset == len(found)
                    found.append(record.value)
        return found

    def end(self, partition: int = 0) -> int:
        where = TopicPartition(self.topic, partition)
        return self.bus.admin.list_offsets({where: LATEST_TIMESTAMP})[where].offset


class Load(threading.Thread):
    """Sends numbered records, one after another, while its block runs; then checks what became of
    them: each that was acknowledged is there once, where it was said to be, in order."""

    def __init__(self, watched: Watched, name: bytes = b"load", **options: object) -> None:
        super().__init__(daemon=True)
        self._prefix = name + b"-"
        self._watched = watched
        self._options = {"linger_ms": 0, "request_timeout_ms": 5000} | options
        self._stop_requested = threading.Event()
        self._failure: BaseException | None = None
        self.acked: list[RecordMetadata] = []
        self.gap_s = 0.0
        """The longest that one acknowledgement took."""

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
        """Wait until so many more were acknowledged."""
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
        """Nothing acknowledged is lost, doubled or elsewhere."""
        found = self._watched.values()
        offsets = [place.offset for place in self.acked]
        assert offsets == sorted(set(offsets))
        assert [found[offset] for offset in offsets] == [
            b"%b%d" % (self._prefix, number) for number in range(len(offsets))
        ]
        loaded = [value for value in found if value and value.startswith(self._prefix)]
        assert len(loaded) == len(set(loaded)), "a record is there twice"
