"""Run librdkafka's transactions (transaction version 1) on three real brokers."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable

import confluent_kafka as ck
import pytest
from support.patience import until
from support.plain_connection import PlainConnection

from broker_lite.bus import connect
from broker_lite.client.operations.cluster import PartitionMetadata
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.metadata.cache import TRANSACTION_FEATURE
from broker_lite.server.cluster.registry import SUPPORTED_FEATURES
from broker_lite.wire.calls.groups import KEY_TYPE_TRANSACTION, FindCoordinatorRequest

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(120),
    pytest.mark.xdist_group("transactions"),
    pytest.mark.skipif(TRANSACTION_FEATURE not in SUPPORTED_FEATURES, reason="the feature is off"),
]

SETTINGS = {"zookeeper.session.timeout.ms": "2000"}
WAIT_S = 30.0


@pytest.fixture(scope="module")
def running(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return make_module_cluster(3, config=SETTINGS)


@pytest.fixture
def topic(running: LocalCluster) -> str:
    name = f"out-{uuid.uuid4().hex[:8]}"
    with connect(running.bootstrap_servers) as bus:
        bus.create_topic(name, partitions=3, replication_factor=3)
    return name


def producer_of(running: LocalCluster, transactional_id: str, **options: object) -> ck.Producer:
    made = ck.Producer(
        {
            "bootstrap.servers": running.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            **options,
        }
    )
    made.init_transactions(WAIT_S)
    return made


def send(producer: ck.Producer, topic: str, values: range) -> None:
    for value in values:
        producer.produce(topic, str(value), partition=value % 3)
    assert producer.flush(WAIT_S) == 0


def committed(running: LocalCluster, topic: str, marker: int) -> list[int]:
    """Read all partitions until three values of at least ``marker`` have arrived, one from each
    partition. Return the values below ``marker``, sorted.
    """
    consumer = ck.Consumer(
        {
            "bootstrap.servers": running.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([ck.TopicPartition(topic, number, 0) for number in range(3)])
    found: list[int] = []
    seen = 0
    try:
        while seen < 3:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"only {sorted(found)} after {WAIT_S} s"
            assert message.error() is None, message.error()
            found.append(int(message.value()))
            seen += found[-1] >= marker
    finally:
        consumer.close()
    return sorted(value for value in found if value < marker)


def finish(running: LocalCluster, topic: str, marker: int = 900) -> list[int]:
    """Commit to each partition a last record, whose value is ``marker`` or more, above all values
    of the test. Return all smaller committed values.
    """
    producer = producer_of(running, f"finish-{topic}")
    producer.begin_transaction()
    send(producer, topic, range(marker, marker + 3))
    producer.commit_transaction(WAIT_S)
    return committed(running, topic, marker)


def coordinator_of(running: LocalCluster, transactional_id: str) -> int:
    """Return the index, in ``running.brokers``, of a transactional id's coordinator."""
    with PlainConnection(running.brokers[0].endpoint) as connection:
        answer = connection.call(
            FindCoordinatorRequest((transactional_id,), key_type=KEY_TYPE_TRANSACTION)
        )
    row = answer.coordinators[0]
    return [broker.endpoint for broker in running.brokers].index(f"{row.host}:{row.port}")


def test_consumer_sees_exactly_the_committed_transactions(
    running: LocalCluster, topic: str
) -> None:
    producer = producer_of(running, f"id-{topic}")
    for number in range(6):
        producer.begin_transaction()
        send(producer, topic, range(10 * number, 10 * number + 10))
        if number % 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    expected = [row for row in range(60) if row // 10 % 2 == 0]
    assert finish(running, topic) == expected


def test_second_producer_of_a_transactional_id_fences_the_first(
    running: LocalCluster, topic: str
) -> None:
    first = producer_of(running, f"id-{topic}")
    first.begin_transaction()
    send(first, topic, range(10))
    second = producer_of(running, f"id-{topic}")
    with pytest.raises(ck.KafkaException) as raised:
        first.commit_transaction(WAIT_S)
    assert raised.value.args[0].fatal()
    assert raised.value.args[0].code() == ck.KafkaError._FENCED
    second.begin_transaction()
    send(second, topic, range(10, 20))
    second.commit_transaction(WAIT_S)
    assert finish(running, topic) == list(range(10, 20))


def test_transaction_that_times_out_is_aborted(running: LocalCluster, topic: str) -> None:
    slow = producer_of(running, f"id-{topic}", **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    send(slow, topic, range(10))
    # The open transaction hides these rows until it times out.
    assert finish(running, topic) == []
    with pytest.raises(ck.KafkaException):
        slow.commit_transaction(WAIT_S)


def test_killed_coordinator_loses_no_transaction(running: LocalCluster, topic: str) -> None:
    name = f"id-{topic}"
    producer = producer_of(running, name)
    producer.begin_transaction()
    send(producer, topic, range(10))
    victim = running.brokers[coordinator_of(running, name)]
    victim.kill()
    try:
        producer.commit_transaction(WAIT_S)
        producer.begin_transaction()
        send(producer, topic, range(10, 20))
        producer.abort_transaction(WAIT_S)
    finally:
        victim.start()
    producer.begin_transaction()
    send(producer, topic, range(20, 30))
    producer.commit_transaction(WAIT_S)
    assert finish(running, topic) == [*range(10), *range(20, 30)]


def leader_of(running: LocalCluster, topic: str) -> LocalBroker:
    """Wait until partition 0 has a leader and all replicas are in sync; return the leader."""
    with connect(running.bootstrap_servers) as bus:

        def view() -> PartitionMetadata:
            return bus.admin.cluster([topic]).topics[topic].partitions[0]

        row = until(view, lambda row: row.leader >= 0 and len(row.isr) == 3, what="all in sync")
    return next(broker for broker in running.brokers if broker.id == row.leader)


def coordinated_elsewhere(running: LocalCluster, broker: LocalBroker, prefix: str) -> str:
    """Return a transactional id whose coordinator is not ``broker``."""
    names = (f"{prefix}-{number}" for number in itertools.count())
    return next(n for n in names if running.brokers[coordinator_of(running, n)] is not broker)


def test_new_leaders_return_exactly_the_records_of_committed_transactions(
    running: LocalCluster, topic: str
) -> None:
    kept, undone = producer_of(running, f"kept-{topic}"), producer_of(running, f"undone-{topic}")
    for producer, first in ((kept, 0), (undone, 30)):
        producer.begin_transaction()
        send(producer, topic, range(first, first + 9))
    # Both transactions are half written. Kill the leader before their next batches.
    first_leader = leader_of(running, topic)
    first_leader.kill()
    for producer, first in ((kept, 9), (undone, 39)):
        send(producer, topic, range(first, first + 9))
    first_leader.start()
    kept.commit_transaction(WAIT_S)
    undone.abort_transaction(WAIT_S)
    # Kill the second leader after the coordinator decides, before the leader gets the markers.
    second_leader = leader_of(running, topic)
    ids = [coordinated_elsewhere(running, second_leader, f"{k}-{topic}") for k in ("k", "u")]
    kept, undone = (producer_of(running, name) for name in ids)
    for producer, first in ((kept, 60), (undone, 90)):
        producer.begin_transaction()
        send(producer, topic, range(first, first + 9))
    second_leader.pause()
    try:
        kept.commit_transaction(WAIT_S)
        undone.abort_transaction(WAIT_S)
    finally:
        second_leader.kill()
        second_leader.start()
    assert finish(running, topic) == [*range(18), *range(60, 69)]


def test_offsets_of_a_group_are_committed_with_the_transaction(
    running: LocalCluster, topic: str
) -> None:
    group = f"group-{topic}"
    with connect(running.bootstrap_servers) as bus:
        source = f"in-{topic}"
        bus.create_topic(source, partitions=1, replication_factor=3)
        with bus.producer() as sender:
            for value in range(20):
                sender.send(source, str(value).encode(), partition=0)
    consumer = ck.Consumer(
        {
            "bootstrap.servers": running.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([source])
    producer = producer_of(running, f"id-{topic}")
    for number in range(2):
        rows: list[ck.Message] = []
        while len(rows) < 10:
            rows += [row for row in consumer.consume(10 - len(rows), WAIT_S) if not row.error()]
        producer.begin_transaction()
        for row in rows:
            producer.produce(topic, row.value(), partition=0)
        producer.send_offsets_to_transaction(
            [ck.TopicPartition(source, 0, rows[-1].offset() + 1)],
            consumer.consumer_group_metadata(),
            WAIT_S,
        )
        if number:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    (position,) = consumer.committed([ck.TopicPartition(source, 0)], WAIT_S)
    consumer.close()
    assert position.offset == 10
    assert finish(running, topic) == list(range(10))
