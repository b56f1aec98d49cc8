"""Test transactional producers of third-party Python clients, which use transaction version 1.

Some tests cut the connections before a transaction ends, so EndTxn arrives on a newer connection
than the one on which the transaction began. The coordinator must accept EndTxn there; it refuses
EndTxn only on an older connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import kafka
import pytest
from support.client_programs import Note
from support.cutting_proxy import CuttingProxy

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import EmbeddedZooKeeper

pytestmark = pytest.mark.real

WAIT_S = 30.0
COMMITTED = [b"0", b"2", b"4"]
"""The values of transactions 0, 2 and 4; transactions 1 and 3 abort."""


@pytest.fixture
def topic(bus: Bus, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.name}-{os.getpid()}"
    bus.create_topic(name, partitions=1)
    return name


def committed(bus: Bus, topic: str) -> list[bytes | None]:
    with bus.consumer(topic, start="earliest") as consumer:
        found: list[bytes | None] = []
        while len(found) < len(COMMITTED):
            found += [record.value for record in consumer.poll(WAIT_S)]
        return found


def test_librdkafka_commits_and_aborts_transactions(
    cluster: LocalCluster, bus: Bus, topic: str, answered: Note, versions: dict[str, str]
) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(WAIT_S)
    for number in range(5):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.flush(WAIT_S)
        if number % 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    assert committed(bus, topic) == COMMITTED
    answered(versions["librdkafka"], "init_transactions, commit, abort", "served")


def test_kafka_python_commits_and_aborts_transactions(
    cluster: LocalCluster, bus: Bus, topic: str, answered: Note, versions: dict[str, str]
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic
    )
    producer.init_transactions()
    for number in range(5):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number).get(WAIT_S)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    assert committed(bus, topic) == COMMITTED
    answered(versions["kafka-python"], "init_transactions, commit, abort", "served")


def test_aiokafka_commits_and_aborts_transactions(
    cluster: LocalCluster, bus: Bus, topic: str, answered: Note, versions: dict[str, str]
) -> None:
    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic
        )
        async with asyncio.timeout(WAIT_S), producer:
            for number in range(5):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % number)
                if number % 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()

    asyncio.run(send())
    assert committed(bus, topic) == COMMITTED
    answered(versions["aiokafka"], "transactional_id, commit, abort", "served")


@pytest.fixture(scope="module")
def proxy(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper
) -> Iterator[CuttingProxy]:
    """Start a cluster of one broker that clients reach only through a proxy; yield the proxy."""
    with CuttingProxy() as proxy:
        config = {"advertised.port": str(proxy.port)}
        folder = tmp_path_factory.mktemp("proxied")
        place = f"{zookeeper.address}/proxied/logbus"
        with LocalCluster(1, directory=folder, config=config, zookeeper=place) as running:
            proxy.target = f"127.0.0.1:{running.brokers[0].port}"
            yield proxy


def send_with_librdkafka(address: str, topic: str, cut: Callable[[], int]) -> None:
    settings = {"bootstrap.servers": address, "transactional.id": topic, "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(WAIT_S)
    for number in range(5):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        assert producer.flush(WAIT_S) == 0
        assert cut()
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(WAIT_S)


def send_with_aiokafka(address: str, topic: str, cut: Callable[[], int]) -> None:
    async def send() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id=topic)
        async with asyncio.timeout(WAIT_S), producer:
            for number in range(5):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % number)
                assert cut()
                await (producer.abort_transaction if number % 2 else producer.commit_transaction)()

    asyncio.run(send())


@pytest.mark.parametrize(
    ("client", "send"),
    [("librdkafka", send_with_librdkafka), ("aiokafka", send_with_aiokafka)],
    ids=["librdkafka", "aiokafka"],
)
def test_transaction_can_end_on_another_connection_than_the_one_on_which_it_began(
    proxy: CuttingProxy,
    answered: Note,
    versions: dict[str, str],
    client: str,
    send: Callable[[str, str, Callable[[], int]], None],
) -> None:
    with connect(proxy.address) as bus:
        bus.create_topic(client, partitions=1)
        send(proxy.address, client, proxy.cut)
        assert committed(bus, client) == COMMITTED
    asked = "transactions: commit, abort, with connections closed before each end"
    answered(versions[client], asked, "served")
