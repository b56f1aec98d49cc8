"""Run the client's transactions on three real brokers while the tests kill brokers.

The tests pass on Apache Kafka too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from support.transaction_suite import *  # noqa: F403
from support.transaction_suite import visible

from broker_lite.bus import Bus
from broker_lite.client.administration.transactions import list_transactions
from broker_lite.client.transactions.producer import TransactionalProducer
from broker_lite.errors import (
    FencedError,
    LogbusError,
    TransactionAbortedError,
    UnknownOutcomeError,
)
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("client-transactions"),
]

SETTINGS = {"zookeeper.session.timeout.ms": "2000"}
RECORDS = 600
RECORDS_OF_TRANSACTION = 5


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return make_module_cluster(3, config=SETTINGS)


@pytest.fixture
def servers(cluster: LocalCluster) -> str:
    return cluster.bootstrap_servers


def broker(cluster: LocalCluster, broker_id: int) -> LocalBroker:
    return next(each for each in cluster.brokers if each.id == broker_id)


@pytest.fixture
def copies(bus: Bus, topic: str) -> str:
    """Create the topic to which a test copies records, with three replicas; return its name."""
    bus.create_topic(name := topic + "-copies", partitions=2, replication_factor=3)
    return name


def test_transaction_commits_although_its_coordinator_dies(
    cluster: LocalCluster, bus: Bus, copies: str
) -> None:
    with bus.transaction("x-" + copies) as txn:
        txn.send(copies, "before", partition=0).result()
        listed = bus.admin.run(list_transactions)
        found = next(row for row in listed if row.transactional_id == "x-" + copies)
        dead = broker(cluster, found.coordinator)
        dead.kill()
    with bus.transaction("x-" + copies) as txn:
        txn.send(copies, "after", partition=1)
    dead.start()
    assert visible(cluster.bootstrap_servers, copies) == ["after", "before"]


def test_transaction_commits_although_the_leader_of_a_partition_dies(
    cluster: LocalCluster, bus: Bus, copies: str
) -> None:
    with bus.transaction("x-" + copies) as txn:
        txn.send(copies, "before", partition=0).result()
        metadata = bus.cluster().partition(TopicPartition(copies, 0))
        assert metadata is not None
        dead = broker(cluster, metadata.leader)
        dead.kill()
        txn.send(copies, "after", partition=0)
    dead.start()
    assert visible(cluster.bootstrap_servers, copies) == ["after", "before"]


def test_a_transaction_ends_although_one_of_its_topics_was_deleted(
    cluster: LocalCluster, bus: Bus, copies: str
) -> None:
    bus.create_topic(deleted := copies + "-deleted", partitions=2, replication_factor=3)
    with bus.transaction("x-" + copies) as txn:
        for name in (copies, deleted):
            txn.send(name, "before", partition=0).result()
        bus.delete_topic(deleted)
    # The coordinator lets the next transaction begin once the first has ended.
    with (
        pytest.raises(TransactionAbortedError, match=r"does not exist.*begin\(\) again"),
        bus.transaction("x-" + copies) as txn,
    ):
        txn.send(copies, "lost", partition=1)
        txn.send(deleted, "lost")
    with bus.transaction("x-" + copies) as txn:
        txn.send(copies, "after", partition=1)
    assert visible(cluster.bootstrap_servers, copies) == ["after", "before"]


class Copier(threading.Thread):
    """Copies numbers in transactions that also commit the group's offsets, until all are copied.

    After a failed transaction, the copier continues at the committed offsets.
    """

    def __init__(self, bus: Bus, source: str, target: str) -> None:
        super().__init__(daemon=True)
        self.bus, self.source, self.target = bus, source, target
        self.copied = 0

    def run(self) -> None:
        producer = self.producer()
        while self.committed() < RECORDS:
            try:
                self.copy(producer)
            except FencedError:
                producer.close()
                producer = self.producer()
            except LogbusError:
                producer.abort()
        producer.close()

    def producer(self) -> TransactionalProducer:
        return self.bus.producer(transactional_id="copier-" + self.source)

    def committed(self) -> int:
        rows = self.bus.admin.committed("g-" + self.source)
        return sum(row.offset for row in rows.values())

    def copy(self, producer: TransactionalProducer) -> None:
        with self.bus.consumer(
            self.source, group="g-" + self.source, start="earliest", auto_commit=False
        ) as consumer:
            while records := consumer.poll(2.0, max_records=RECORDS_OF_TRANSACTION):
                producer.begin()
                for record in records:
                    producer.send(self.target, record.value, partition=record.partition)
                producer.send_offsets(consumer)
                while True:
                    try:
                        producer.commit()
                        break
                    except UnknownOutcomeError:
                        continue
                self.copied += len(records)


def test_transactional_copy_writes_each_record_once_while_brokers_are_killed(
    cluster: LocalCluster, bus: Bus, copies: str
) -> None:
    bus.create_topic(source := copies + "-source", partitions=2, replication_factor=3)
    with bus.producer() as producer:
        for number in range(RECORDS):
            producer.send(source, str(number), partition=number % 2)
    copier = Copier(bus, source, copies)
    copier.start()
    try:
        for turn, each in enumerate(cluster.brokers):
            while copier.copied < (turn + 1) * RECORDS // 6 and copier.is_alive():
                copier.join(0.01)
            each.kill()
            killed_at = copier.copied
            while copier.copied < killed_at + RECORDS // 12 and copier.is_alive():
                copier.join(0.01)
            each.start()
    finally:
        copier.join(120)
    assert not copier.is_alive()
    want = sorted(map(str, range(RECORDS)))
    assert visible(cluster.bootstrap_servers, copies) == want
