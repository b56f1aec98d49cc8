"""Test unchanged Python clients: confluent-kafka (librdkafka), kafka-python and aiokafka.

The tests produce, and consume assigned partitions, with every codec, headers, tombstones and
timestamps. They also administer topics and commit offsets. ``test_groups`` tests the clients as
group members.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin as confluent_admin
import kafka
import kafka.admin
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from support.client_rows import KafkaPython
from support.patience import until

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster

pytestmark = pytest.mark.real

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
NUMBERS = itertools.count()
WAIT_S = 30.0

Note = Callable[[str, str], None]

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]

ROWS: list[Row] = [
    (b"k1", b"value " * 50, [("h", b"1"), ("h", b"2")], 1_700_000_000_000),
    (None, b"", [], 1_700_000_000_001),
    (b"", b"\x00\xff", [("binary", b"\x00\xff")], 1_700_000_000_002),
    (b"gone", None, [], 1_700_000_000_003),
] + [(b"k%d" % n, b"row %d" % n, [], 1_700_000_000_004 + n) for n in range(200)]


def new_name(prefix: str) -> str:
    return f"{prefix}-{os.getpid()}-{next(NUMBERS)}"


@pytest.fixture
def note(answered: Callable[[str, str, str], None], versions: dict[str, str]) -> Note:
    return lambda client, asked: answered(versions[client], asked, "served")


# The next tests use librdkafka.


@pytest.fixture
def rd_admin(cluster: LocalCluster) -> confluent_admin.AdminClient:
    return confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


@pytest.fixture
def topic(rd_admin: confluent_admin.AdminClient) -> str:
    """Create a topic of three partitions with librdkafka."""
    name = new_name("t")
    rd_admin.create_topics([confluent_admin.NewTopic(name, 3, 1)])[name].result(WAIT_S)
    # Wait for the leaders, because until then a record sent with acks=0 is lost silently.
    partitions = [confluent_kafka.TopicPartition(name, number) for number in range(3)]
    earliest = dict.fromkeys(partitions, confluent_admin.OffsetSpec.earliest())

    def answered() -> bool:
        found = rd_admin.list_offsets(earliest).values()
        return all(each.exception(WAIT_S) is None for each in found)

    until(answered)
    return name


def rd_produce(servers: str, topic: str, codec: str, **settings: Any) -> list[int]:
    """Produce all rows to partition 1; return their offsets."""
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 20, **settings}
    )
    for key, value, headers, timestamp_ms in ROWS:
        producer.produce(
            topic, value, key, 1, timestamp=timestamp_ms, headers=headers, on_delivery=delivered
        )
    assert producer.flush(WAIT_S) == 0
    return offsets


def rd_consume(servers: str, topic: str, count: int) -> list[Row]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 1, 0)])
    rows: list[Row] = []
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            if len(rows) >= count:
                break
            continue
        rows.append(
            (message.key(), message.value(), message.headers() or [], message.timestamp()[1])
        )
    consumer.close()
    return rows


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_client_produces_and_consumes(
    cluster: LocalCluster, topic: str, codec: str, note: Note
) -> None:
    servers = cluster.bootstrap_servers
    assert rd_produce(servers, topic, codec) == list(range(len(ROWS)))
    assert rd_consume(servers, topic, len(ROWS)) == ROWS
    note(
        "librdkafka",
        "produce and consume: none, gzip, snappy, lz4, zstd; keys, headers, tombstones, times",
    )


def test_idempotent_librdkafka_producer_writes_records_once(
    cluster: LocalCluster, topic: str, note: Note
) -> None:
    offsets = rd_produce(cluster.bootstrap_servers, topic, "lz4", **{"enable.idempotence": True})
    assert offsets == list(range(len(ROWS)))
    note("librdkafka", "enable.idempotence")


@pytest.mark.parametrize("acks", [0, 1])
def test_librdkafka_produces_with_acks_0_and_1(
    cluster: LocalCluster, topic: str, acks: int, note: Note
) -> None:
    rd_produce(cluster.bootstrap_servers, topic, "none", acks=acks)
    assert rd_consume(cluster.bootstrap_servers, topic, len(ROWS)) == ROWS
    note("librdkafka", "acks=0, acks=1")


def test_record_too_large_for_librdkafka_is_refused(
    cluster: LocalCluster, rd_admin: confluent_admin.AdminClient
) -> None:
    name = new_name("small")
    created = confluent_admin.NewTopic(name, 1, 1, config={"max.message.bytes": "2000"})
    rd_admin.create_topics([created])[name].result(WAIT_S)
    errors: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(name, os.urandom(5000), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert [error.code() for error in errors] == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]


def test_librdkafka_administers_a_cluster(
    cluster: LocalCluster, rd_admin: confluent_admin.AdminClient, note: Note
) -> None:
    name = new_name("rd")
    created = confluent_admin.NewTopic(name, 2, 1, config={"retention.ms": "60000"})
    rd_admin.create_topics([created])[name].result(WAIT_S)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        rd_admin.create_topics([created])[name].result(WAIT_S)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    more = confluent_admin.NewPartitions(name, 3)
    rd_admin.create_partitions([more])[name].result(WAIT_S)

    wanted = confluent_kafka.TopicCollection([name])

    def partitions() -> list[Any]:
        return list(rd_admin.describe_topics(wanted)[name].result(WAIT_S).partitions)

    until(lambda: [len(part.replicas) for part in partitions()] == [1, 1, 1])
    assert len(rd_admin.describe_cluster().result(WAIT_S).nodes) == 3
    until(lambda: name in rd_admin.list_topics(timeout=WAIT_S).topics)

    resource = confluent_admin.ConfigResource("topic", name)
    resource.add_incremental_config(
        confluent_admin.ConfigEntry(
            "retention.ms",
            "70000",
            incremental_operation=confluent_admin.AlterConfigOpType.SET,
        )
    )
    rd_admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    asked = confluent_admin.ConfigResource("topic", name)

    def settings() -> dict[str, Any]:
        found: dict[str, Any] = rd_admin.describe_configs([asked])[asked].result(WAIT_S)
        return found

    until(lambda: settings()["retention.ms"].value == "70000")
    assert (
        settings()["retention.ms"].source == confluent_admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    )
    assert settings()["segment.bytes"].is_default

    rd_produce(cluster.bootstrap_servers, name, "none")
    tp = confluent_kafka.TopicPartition(name, 1)
    ends = rd_admin.list_offsets({tp: confluent_admin.OffsetSpec.latest()})
    assert ends[tp].result(WAIT_S).offset == len(ROWS)
    found = rd_admin.list_offsets({tp: confluent_admin.OffsetSpec.for_timestamp(ROWS[2][3])})
    assert found[tp].result(WAIT_S).offset == 2
    before = confluent_kafka.TopicPartition(name, 1, 10)
    assert rd_admin.delete_records([before])[before].result(WAIT_S).low_watermark == 10
    starts = rd_admin.list_offsets({tp: confluent_admin.OffsetSpec.earliest()})
    assert starts[tp].result(WAIT_S).offset == 10

    rd_admin.delete_topics([name])[name].result(WAIT_S)
    until(lambda: name not in rd_admin.list_topics(timeout=WAIT_S).topics)
    note("librdkafka", "admin: topics, partitions, configs, offsets, delete_records, cluster")


def test_librdkafka_commits_group_offsets(
    cluster: LocalCluster, topic: str, rd_admin: confluent_admin.AdminClient, note: Note
) -> None:
    rd_produce(cluster.bootstrap_servers, topic, "none")
    group = new_name("rd group")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group}
    )
    tp = confluent_kafka.TopicPartition(topic, 1, 17, metadata="seventeen")
    consumer.assign([tp])
    consumer.commit(offsets=[tp], asynchronous=False)
    (kept,) = consumer.committed([confluent_kafka.TopicPartition(topic, 1)], timeout=WAIT_S)
    assert kept.offset == 17
    consumer.close()

    listed = rd_admin.list_consumer_groups().result(WAIT_S)
    assert group in [row.group_id for row in listed.valid]
    asked = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
    offsets = rd_admin.list_consumer_group_offsets(asked)[group].result(WAIT_S)
    assert [(row.topic, row.partition, row.offset) for row in offsets.topic_partitions] == [
        (topic, 1, 17)
    ]
    described = rd_admin.describe_consumer_groups([group])[group].result(WAIT_S)
    assert described.state == confluent_kafka.ConsumerGroupState.EMPTY
    back = confluent_kafka.TopicPartition(topic, 1, 3)
    moved = confluent_kafka.ConsumerGroupTopicPartitions(group, [back])
    (now,) = rd_admin.alter_consumer_group_offsets([moved])[group].result(WAIT_S).topic_partitions
    assert (now.offset, now.error) == (3, None)
    rd_admin.delete_consumer_groups([group])[group].result(WAIT_S)
    listed = rd_admin.list_consumer_groups().result(WAIT_S)
    assert group not in [row.group_id for row in listed.valid]
    note("librdkafka", "admin: groups and their offsets, changed, deleted")


# The next tests use kafka-python. It needs a package for each codec except gzip, which ``make
# compat`` installs.


@pytest.fixture
def py_admin(cluster: LocalCluster) -> Iterator[kafka.admin.KafkaAdminClient]:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    yield admin
    admin.close()


def py_consume(servers: str, topic: str, count: int) -> list[Row]:
    tp = kafka.TopicPartition(topic, 1)
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    consumer.assign([tp])
    consumer.seek_to_beginning(tp)
    rows: list[Row] = []
    deadline = time.monotonic() + WAIT_S
    while len(rows) < count and time.monotonic() < deadline:
        for message in consumer.poll(timeout_ms=500).get(tp, []):
            headers = [(name, value) for name, value in message.headers]
            rows.append((message.key, message.value, headers, message.timestamp))
    consumer.close()
    return rows


@pytest.mark.parametrize("codec", KafkaPython.codecs)
def test_kafka_python_produces_and_consumes(
    cluster: LocalCluster, topic: str, codec: str, note: Note
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
    )
    sent = [
        producer.send(topic, value, key, headers, partition=1, timestamp_ms=timestamp_ms)
        for key, value, headers, timestamp_ms in ROWS
    ]
    producer.flush(WAIT_S)
    assert [future.get(WAIT_S).offset for future in sent] == list(range(len(ROWS)))
    producer.close()
    assert py_consume(cluster.bootstrap_servers, topic, len(ROWS)) == ROWS
    note(
        "kafka-python",
        f"produce, idempotent, and consume: {', '.join(KafkaPython.codecs)}",
    )


def test_kafka_python_administers_a_cluster(
    cluster: LocalCluster, py_admin: kafka.admin.KafkaAdminClient, note: Note
) -> None:
    name = new_name("py")
    py_admin.create_topics(
        {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "1000"}}}
    )
    until(lambda: name in py_admin.list_topics())
    (described,) = py_admin.describe_topics([name])
    assert [row["leader_id"] >= 0 for row in described["partitions"]] == [True, True]
    py_admin.create_partitions({name: 4})
    until(lambda: len(py_admin.describe_topics([name])[0]["partitions"]) == 4)
    assert len(py_admin.describe_cluster()["brokers"]) == 3
    assert py_admin.describe_log_dirs()

    resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, name)
    changed = kafka.admin.ConfigResource(
        kafka.admin.ConfigResourceType.TOPIC, name, configs={"retention.ms": "2000"}
    )
    py_admin.alter_configs([changed])
    until(lambda: "2000" in str(py_admin.describe_configs([resource])))
    rd_produce(cluster.bootstrap_servers, name, "none")
    tp = kafka.TopicPartition(name, 1)

    def offset(spec: int) -> int:
        found: dict[Any, Any] = py_admin.list_partition_offsets({tp: spec})
        return int(found[tp].offset)

    assert offset(kafka.admin.OffsetSpec.LATEST) == len(ROWS)
    py_admin.delete_records({tp: 10})
    assert offset(kafka.admin.OffsetSpec.EARLIEST) == 10
    assert py_admin.list_partition_reassignments() == {}
    py_admin.delete_topics([name])
    until(lambda: name not in py_admin.list_topics())
    note("kafka-python", "admin: topics, partitions, configs, offsets, log dirs, cluster")


def test_kafka_python_commits_group_offsets(
    cluster: LocalCluster, topic: str, py_admin: kafka.admin.KafkaAdminClient, note: Note
) -> None:
    tp = kafka.TopicPartition(topic, 2)
    group = new_name("py")
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=group, enable_auto_commit=False
    )
    consumer.assign([tp])
    consumer.commit({tp: kafka.OffsetAndMetadata(5, "five", -1)})
    assert consumer.committed(tp) == 5
    consumer.close()
    assert group in str(py_admin.list_groups())
    assert "5" in str(py_admin.list_group_offsets({group: None}))
    assert "Empty" in str(py_admin.describe_groups([group]))
    py_admin.alter_group_offsets(group, {tp: kafka.OffsetAndMetadata(2, "", -1)})
    assert py_admin.list_group_offsets({group: None})[group][tp].offset == 2
    py_admin.delete_group_offsets(group, [tp])
    py_admin.delete_groups([group])
    assert group not in str(py_admin.list_groups())
    note("kafka-python", "admin: groups and their offsets, changed, deleted")


# The next tests use aiokafka.


async def aio_round_trip(servers: str, topic: str, codec: str) -> list[Row]:
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
    )
    await producer.start()
    for key, value, headers, timestamp_ms in ROWS:
        await producer.send(
            topic, value, key, partition=1, timestamp_ms=timestamp_ms, headers=headers
        )
    await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    tp = AioTopicPartition(topic, 1)
    consumer.assign([tp])
    await consumer.start()
    rows: list[Row] = []
    async with asyncio.timeout(WAIT_S):
        while len(rows) < len(ROWS):
            for message in (await consumer.getmany(tp, timeout_ms=500)).get(tp, []):
                rows.append((message.key, message.value, list(message.headers), message.timestamp))
    await consumer.stop()
    return rows


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_produces_and_consumes(
    cluster: LocalCluster, topic: str, codec: str, note: Note
) -> None:
    rows = asyncio.run(aio_round_trip(cluster.bootstrap_servers, topic, codec))
    assert rows == ROWS
    note("aiokafka", "produce, idempotent, and consume: none, gzip, snappy, lz4, zstd")


async def aio_administer(servers: str, name: str, group: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.create_topics([NewTopic(name, 2, 1)])
    async with asyncio.timeout(WAIT_S):
        while name not in await admin.list_topics():
            await asyncio.sleep(0.01)
    assert len((await admin.describe_topics([name]))[0]["partitions"]) == 2
    assert len((await admin.describe_cluster())["brokers"]) == 3
    await admin.create_partitions({name: NewPartitions(3)})
    asked = {"retention.ms": "80000"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, asked)])
    async with asyncio.timeout(WAIT_S):
        while "80000" not in str(
            await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        ):
            await asyncio.sleep(0.01)
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    tp = AioTopicPartition(name, 0)
    consumer.assign([tp])
    await consumer.start()
    await consumer.commit({tp: 0})
    assert await consumer.committed(tp) == 0
    await consumer.stop()
    kept = await admin.list_consumer_group_offsets(group)
    assert kept[tp].offset == 0
    assert group in [row[0] for row in await admin.list_consumer_groups()]
    assert group in str(await admin.describe_consumer_groups([group]))
    await admin.delete_topics([name])
    await admin.close()


def test_aiokafka_administers_topics(cluster: LocalCluster, note: Note) -> None:
    asyncio.run(aio_administer(cluster.bootstrap_servers, new_name("aio"), new_name("aio")))
    note("aiokafka", "admin: topics, partitions, configs, groups and their offsets, cluster")


# In the next test, all clients read and write the same topic.


def test_every_client_reads_the_records_of_all_clients(
    cluster: LocalCluster, topic: str, bus: Bus
) -> None:
    servers = cluster.bootstrap_servers
    with bus.producer(compression="lz4") as producer:
        for key, value, headers, timestamp_ms in ROWS:
            producer.send(
                topic, value, key=key, headers=headers, partition=1, timestamp_ms=timestamp_ms
            )
        producer.flush()
    assert rd_consume(servers, topic, len(ROWS)) == ROWS
    assert py_consume(servers, topic, len(ROWS)) == ROWS
    rd_produce(servers, topic, "zstd")
    with bus.consumer(topic, start="earliest") as consumer:
        rows: list[Row] = []
        deadline = time.monotonic() + WAIT_S
        while len(rows) < 2 * len(ROWS) and time.monotonic() < deadline:
            rows += [
                (r.key, r.value, list(r.headers or ()), r.timestamp_ms) for r in consumer.poll(1.0)
            ]
    assert rows == ROWS + ROWS
