"""Copy records in transactions of confluent-kafka while the group's coordinator is killed.

Each transaction consumes, transforms and produces. The output must have each input record once.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker_lite.bus import connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.metadata.cache import TRANSACTION_FEATURE
from broker_lite.server.cluster.registry import (
    SUPPORTED_FEATURES,
)

PARTITIONS, RECORDS, KILL_AFTER = 3, 1500, 500
PATIENCE_S = 90.0


class Copier:
    """A loop that consumes, transforms and produces records; after a fatal error, ``restart``
    replaces its clients."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.producer, self.consumer = self._producer(), self._consumer()

    def _producer(self) -> Producer:
        producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": "copier",
             "transaction.timeout.ms": 10_000}
        )  # fmt: skip
        producer.init_transactions(30)
        return producer

    def _consumer(self) -> Consumer:
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "copiers",
             "auto.offset.reset": "earliest", "enable.auto.commit": False,
             "isolation.level": "read_committed", "session.timeout.ms": 6000}
        )  # fmt: skip
        consumer.subscribe(["in"])
        return consumer

    def restart(self) -> None:
        self.consumer.close()
        self.producer, self.consumer = self._producer(), self._consumer()

    def copy(self) -> int:
        """Copy some records in one transaction; return how many were committed."""
        records = [row for row in self.consumer.consume(50, 1.0) if row.error() is None]
        if not records:
            return 0
        self.producer.begin_transaction()
        try:
            for row in records:
                self.producer.produce("out", row.value(), row.key())
            offsets = {(row.topic(), row.partition()): row.offset() + 1 for row in records}
            self.producer.send_offsets_to_transaction(
                [TopicPartition(*tp, offset) for tp, offset in offsets.items()],
                self.consumer.consumer_group_metadata(),
                10,
            )
            self.producer.commit_transaction(30)
            return len(records)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.txn_requires_abort():
                self.producer.abort_transaction(30)
            # The positions are already after the aborted records: resume at the committed offsets.
            self.restart()
            return 0


def read(servers: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "checker", "auto.offset.reset": "earliest",
         "isolation.level": "read_committed", "enable.partition.eof": True}
    )  # fmt: skip
    consumer.subscribe(["out"])
    found: list[bytes] = []
    ended: set[int] = set()
    until = time.monotonic() + PATIENCE_S
    while len(ended) < PARTITIONS or len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} records"
        row = consumer.poll(1.0)
        if row is None:
            continue
        if row.error() is None:
            found.append(row.value())
        elif row.error().code() == KafkaError._PARTITION_EOF:
            ended.add(row.partition())
    consumer.close()
    return found


@pytest.mark.skipif(
    TRANSACTION_FEATURE not in SUPPORTED_FEATURES, reason="brokers refuse transactional ids yet"
)
def test_transactional_copy_writes_each_record_once_although_the_group_coordinator_is_killed(
    tmp_path: Path,
) -> None:
    settings = {"default.replication.factor": "3"}
    with LocalCluster(3, directory=tmp_path, config=settings) as cluster:
        servers = cluster.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        topics = [NewTopic(name, PARTITIONS, 3) for name in ("in", "out")]
        for made in admin.create_topics(topics).values():
            made.result(30)
        source = Producer({"bootstrap.servers": servers})
        for number in range(RECORDS):
            source.produce("in", b"%d" % number, b"%d" % number)
        assert source.flush(30) == 0
        copier = Copier(servers)
        copied, killed = 0, False
        until = time.monotonic() + PATIENCE_S
        while copied < RECORDS:
            assert time.monotonic() < until, f"{copied} of {RECORDS} records are copied"
            copied += copier.copy()
            if copied >= KILL_AFTER and not killed:
                killed = True
                described = admin.describe_consumer_groups(["copiers"])
                coordinator = described["copiers"].result(30).coordinator
                (broker,) = [b for b in cluster.brokers if b.id == coordinator.id]
                broker.kill()
        copier.consumer.close()
        found = read(servers, RECORDS)
        assert sorted(map(int, found)) == list(range(RECORDS))
        with connect(servers) as bus:
            while bus.admin.unstable_partitions("copiers"):
                assert time.monotonic() < until, "pending offsets of ended transactions are left"
                time.sleep(0.1)
