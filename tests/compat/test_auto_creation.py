"""Test third-party clients that rely on ``auto.create.topics.enable``, with two brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaProducer

from broker_lite.bus import connect
from broker_lite.errors import UnknownTopicOrPartitionError
from broker_lite.local.cluster import LocalCluster

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def servers(make_module_cluster: Callable[..., LocalCluster]) -> list[str]:
    """Start two brokers and return their addresses. Only one is the controller, which creates
    topics."""
    settings = {"auto.create.topics.enable": "true", "num.partitions": "3"}
    return [broker.endpoint for broker in make_module_cluster(2, config=settings).brokers]


def produce_with_librdkafka(server: str, topic: str) -> None:
    errors: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": server})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0 and errors == [None]


def produce_with_kafka_python(server: str, topic: str) -> None:
    with kafka.KafkaProducer(bootstrap_servers=server) as producer:
        producer.send(topic, b"x").get(30)


def produce_with_aiokafka(server: str, topic: str) -> None:
    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=server) as producer:
            await producer.send_and_wait(topic, b"x")

    asyncio.run(produce())


@pytest.mark.parametrize("broker", [0, 1])
@pytest.mark.parametrize(
    "produce", [produce_with_librdkafka, produce_with_kafka_python, produce_with_aiokafka]
)
def test_produce_creates_a_missing_topic(
    servers: list[str], broker: int, produce: Callable[[str, str], None]
) -> None:
    topic = f"{produce.__name__}-{broker}"
    produce(servers[broker], topic)
    with connect(servers[broker]) as bus:
        assert len(bus.admin.cluster().topics[topic].partitions) == 3


def test_consumer_creates_a_missing_topic_only_if_configured(servers: list[str]) -> None:
    settings = {"bootstrap.servers": servers[0], "topic.metadata.refresh.interval.ms": 200}
    with connect(servers[0]) as bus:
        # librdkafka creates missing topics only with a subscription that also has an existing one.
        bus.create_topic("there", 1)
        silent = confluent_kafka.Consumer(settings | {"group.id": "silent"})
        silent.subscribe(["there", "not-made"])
        making = confluent_kafka.Consumer(
            settings | {"group.id": "making", "allow.auto.create.topics": True}
        )
        making.subscribe(["there", "made"])
        while "made" not in bus.admin.cluster().topics:
            for consumer in (silent, making):
                consumer.poll(0.1)
        assert "not-made" not in bus.admin.cluster().topics
    for consumer in (silent, making):
        consumer.close()


def test_logbus_producer_does_not_create_a_missing_topic(servers: list[str]) -> None:
    with connect(servers[0]) as bus:
        with pytest.raises(UnknownTopicOrPartitionError), bus.producer() as producer:
            producer.send("misspelled", b"x").result()
        assert "misspelled" not in bus.admin.cluster().topics
