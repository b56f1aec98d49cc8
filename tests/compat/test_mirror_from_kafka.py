"""Run ``logbus mirror`` from a real Apache Kafka broker, whose jars the user's Maven downloads.

The broker is one KRaft node without flushes, whose log cleaner runs all the time. The mirror copies
keys, values, headers, timestamps, codecs, committed transactions, compacted logs with their gaps,
and settings. It translates group offsets to the offsets of the same records.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.client_programs import Note
from support.kafka_broker import kafka_running

from broker_lite.bus import Bus, connect
from broker_lite.client.administration.admin import Admin
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

MOVED = Path(__file__).parent / "spark" / "moved.py"

WAIT_SECONDS = 60
CLEAN_SECONDS = 150
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Mirror = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def noted(kafka: str, answered: Note, versions: dict[str, str]) -> None:
    answered(versions["broker"], "the source of logbus mirror", "copied")


@pytest.fixture(scope="module")
def kafka(class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka_running(class_path, tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture
def topic(kafka: str) -> str:
    return f"moved-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def command(kafka: str, cluster: LocalCluster) -> list[str]:
    to = ["--from", kafka, "--to", cluster.bootstrap_servers]
    return [sys.executable, "-P", "-m", "broker_lite", "mirror", *to]


@pytest.fixture
def mirror(command: list[str], tmp_path: Path) -> Mirror:
    """Return a function that runs ``logbus mirror --once``.

    The function returns the mirror's report, with stderr added as ``said``.
    """

    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [*command, *arguments, "--once", "-o", "jsonl"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) | {"said": done.stderr}

    return run


def make_topic(kafka: str, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)


def rows_at(servers: str, topic: str, partitions: int = 1) -> list[list[tuple[Any, ...]]]:
    """Return the records that librdkafka reads, by partition: offset, time, key, value, headers."""
    found = []
    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    with closing(consumer):
        for partition in range(partitions):
            rows: list[tuple[Any, ...]] = []
            consumer.assign([ck.TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(WAIT_SECONDS)
                assert message is not None
                if message.error():
                    assert message.error().code() == ck.KafkaError._PARTITION_EOF
                    break
                rows.append(
                    (
                        message.offset(),
                        message.timestamp()[1],
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),
                    )
                )
            found.append(rows)
    return found


def commit(servers: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    consumer = ck.Consumer({"bootstrap.servers": servers, "group.id": group})
    with closing(consumer):
        consumer.commit(
            offsets=[ck.TopicPartition(topic, p, o) for p, o in offsets.items()],
            asynchronous=False,
        )


def produce(kafka: str, topic: str, count: int, first: int = 0, **options: Any) -> None:
    producer = ck.Producer({"bootstrap.servers": kafka, "linger.ms": 20, **options})
    for n in range(first, first + count):
        producer.produce(
            topic,
            None if n % 7 == 3 else f"value {n} ".encode() * (n % 5),
            None if n % 3 == 0 else f"key {n % 11}".encode(),
            partition=n % 2,
            headers=[("n", str(n).encode()), ("none", None)] if n % 4 == 0 else None,
            timestamp=1_700_000_000_000 + n * 1000,
        )
    assert producer.flush(WAIT_SECONDS) == 0


def test_mirror_from_kafka_copies_records_settings_and_groups(
    kafka: str, cluster: LocalCluster, topic: str, mirror: Mirror, bus: Bus
) -> None:
    make_topic(
        kafka, topic, 2, retention_ms="-1", segment_bytes="20000000", min_insync_replicas="1",
        preallocate="true",
    )  # fmt: skip
    for at, codec in enumerate(CODECS):
        produce(kafka, topic, 100, at * 100, **{"compression.type": codec})
    commit(kafka, "readers-" + topic, topic, {0: 17, 1: 250})
    said = mirror("--topics", topic)
    assert "preallocate=true is not known here" in said["said"]
    assert "group readers-" + topic in said["said"]
    source, copy = rows_at(kafka, topic, 2), rows_at(cluster.bootstrap_servers, topic, 2)
    assert copy == source and [len(rows) for rows in copy] == [250, 250]
    settings = bus.admin.describe_configs([topic])["topic", topic]
    assert settings["retention.ms"].value == "-1" and settings["segment.bytes"].value == "20000000"
    offsets = bus.admin.committed("readers-" + topic)
    assert {tp.partition: at.offset for tp, at in offsets.items()} == {0: 17, 1: 250}

    # A second run must copy only the new records.
    produce(kafka, topic, 10, 500)
    said = mirror("--topics", topic)
    assert [row["copied"] for row in said["partitions"]] == [5, 5]
    assert rows_at(cluster.bootstrap_servers, topic, 2) == rows_at(kafka, topic, 2)


def test_mirror_translates_offsets_across_the_gaps_of_transaction_markers(
    kafka: str, cluster: LocalCluster, topic: str, mirror: Mirror, command: list[str]
) -> None:
    make_topic(kafka, topic)
    options = {"bootstrap.servers": kafka, "transactional.id": topic}
    producer = ck.Producer(options)
    producer.init_transactions(WAIT_SECONDS)
    for number in range(6):
        producer.begin_transaction()
        for row in range(3):
            producer.produce(topic, f"{number} {row}".encode())
        if number % 3 == 2:
            producer.flush()
            producer.abort_transaction(WAIT_SECONDS)
        else:
            producer.commit_transaction(WAIT_SECONDS)
    source = rows_at(kafka, topic)[0]
    group = f"readers-{topic}"
    for offset in (source[4][0], source[6][0], source[-1][0] + 1):
        commit(kafka, group, topic, {0: offset})
        said = mirror("--topics", topic)
        copy = rows_at(cluster.bootstrap_servers, topic)[0]
        assert [row[1:] for row in copy] == [row[1:] for row in source]
        (row,) = (row for row in said["groups"] if row["group"] == group)
        left = [rest[3] for rest in copy if rest[0] >= row["target_offset"]]
        assert left == [rest[3] for rest in source if rest[0] >= offset]
        done = subprocess.run(
            [*command, "--translate", json.dumps({topic: {"0": offset}})],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert json.loads(done.stdout) == {topic: {"0": row["target_offset"]}}


def test_mirror_copies_a_compacted_topic_with_offset_gaps(
    kafka: str, cluster: LocalCluster, topic: str, mirror: Mirror
) -> None:
    make_topic(
        kafka, topic, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01"
    )
    producer = ck.Producer({"bootstrap.servers": kafka, "linger.ms": 20})
    # No later record has the first record's key, so compaction keeps the first record. The records
    # after it are compacted away, which leaves a gap. Without the first record, compaction would
    # leave only records at the end of the log, without a gap.
    producer.produce(topic, b"first", b"stays")
    deadline = time.monotonic() + CLEAN_SECONDS
    rows: list[tuple[Any, ...]] = []
    while not rows or rows[1][0] == 1:
        assert time.monotonic() < deadline, f"the cleaner left all of {len(rows)} rows"
        for n in range(20):
            producer.produce(topic, uuid.uuid4().bytes, f"k{n % 7 if n % 2 else n}".encode())
        producer.flush()
        # Produce on, because the cleaner never compacts the active segment. The cleaner sends no
        # event that the test could wait for.
        time.sleep(0.3)
        rows = rows_at(kafka, topic)[0]
    assert rows[0][2:4] == (b"stays", b"first")
    group = f"readers-{topic}"
    commit(kafka, group, topic, {0: 1})
    said = mirror("--topics", topic)
    assert "compacted at the source" in said["said"]
    source, copy = rows_at(kafka, topic)[0], rows_at(cluster.bootstrap_servers, topic)[0]
    newest = {row[2]: row[3] for row in source}
    assert {row[2]: row[3] for row in copy} == newest
    assert said["partitions"][0]["source_offset"] > said["partitions"][0]["target_offset"]
    # The offset of a compacted record is translated to the next record after the gap.
    (row,) = (row for row in said["groups"] if row["group"] == group)
    assert newest.pop(b"stays") == b"first"
    assert {rest[2]: rest[3] for rest in copy if rest[0] >= row["target_offset"]} == newest


def test_repeatedly_killed_mirror_copies_each_record_once(
    kafka: str, cluster: LocalCluster, topic: str, mirror: Mirror, command: list[str]
) -> None:
    make_topic(kafka, topic, 2)
    admin = Admin(cluster.bootstrap_servers)
    tp = TopicPartition(topic, 0)
    end = 0
    for attempt in range(4):
        produce(kafka, topic, 4000, attempt * 4000, **{"batch.size": 2000})
        running = subprocess.Popen(
            [*command, "--topics", topic, "--session-timeout-ms", "2000"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + WAIT_SECONDS
            while (
                time.monotonic() < deadline
            ):  # Kill the mirror after it wrote a batch whose position it may not have stored.
                if topic in admin.cluster().topics:
                    newest = admin.list_offsets({tp: -1})[tp].offset
                    if newest > end:
                        end = newest
                        break
        finally:
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
    mirror("--topics", topic)
    assert rows_at(cluster.bootstrap_servers, topic, 2) == rows_at(kafka, topic, 2)


def test_mirror_copies_from_the_oldest_supported_kafka(
    old_class_path: str,
    cluster: LocalCluster,
    topic: str,
    tmp_path: Path,
    answered: Note,
    versions: dict[str, str],
) -> None:
    with kafka_running(old_class_path, tmp_path) as kafka:
        make_topic(kafka, topic, 2, retention_ms="-1")
        for at, codec in enumerate(CODECS):
            produce(kafka, topic, 100, at * 100, **{"compression.type": codec})
        commit(kafka, "readers-" + topic, topic, {0: 17, 1: 250})
        to = ["--from", kafka, "--to", cluster.bootstrap_servers, "--topics", topic]
        command = [sys.executable, "-P", "-m", "broker_lite", "mirror", *to, "--once"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert rows_at(cluster.bootstrap_servers, topic, 2) == rows_at(kafka, topic, 2)
    with connect(cluster.bootstrap_servers) as bus:
        offsets = bus.admin.committed("readers-" + topic)
    assert {tp.partition: at.offset for tp, at in offsets.items()} == {0: 17, 1: 250}
    answered(versions["old broker"], "the source of logbus mirror", "copied")


def test_spark_queries_on_kafka_resume_on_logbus_from_converted_checkpoints(
    kafka: str,
    cluster: LocalCluster,
    topic: str,
    mirror: Mirror,
    jars: list[str],
    tmp_path: Path,
    answered: Note,
    versions: dict[str, str],
) -> None:
    """The queries move from format("kafka") to format("logbus"): no row may be lost or duplicated.

    One query has an unfinished micro-batch. Copied records have other offsets than their originals.
    """
    make_topic(kafka, topic, 2)

    def fill(first: int, last: int) -> None:
        producer = ck.Producer({"bootstrap.servers": kafka})
        for n in range(first, last):
            producer.produce(topic, f"value {n}", f"key {n % 5}", partition=n % 2)
        assert producer.flush(WAIT_SECONDS) == 0

    def run(kind: str, servers: str, checkpoints: Path) -> Any:
        given = [kind, servers, topic, str(tmp_path), str(checkpoints), *jars]
        done = subprocess.run(
            [sys.executable, str(MOVED), *given],
            capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-5000:]
        return json.loads(done.stdout)

    def expected(last: int) -> Any:
        counts = {f"key {k}": len(range(20 + k, last, 5)) for k in range(5)}
        return {"counts": counts, "values": sorted(f"value {n}" for n in range(20, last))}

    fill(0, 100)
    admin = AdminClient({"bootstrap.servers": kafka})
    trimmed = [ck.TopicPartition(topic, partition, 10) for partition in range(2)]
    for done in admin.delete_records(trimmed).values():
        done.result(30)
    old, new = tmp_path / "old", tmp_path / "new"
    assert run("kafka", kafka, old) == expected(100)
    batches = sorted(int(each.name) for each in (old / "values/commits").glob("[0-9]*"))
    for name in (f"{batches[-1]}", f".{batches[-1]}.crc"):
        (old / "values/commits" / name).unlink()
    fill(100, 140)
    mirror("--topics", topic)
    for name in ("values", "keys"):
        carry = [sys.executable, "-P", "-m", "broker_lite", "checkpoint", "--from", kafka]
        carry += ["-b", cluster.bootstrap_servers, str(old / name), str(new / name)]
        said = subprocess.run(carry, capture_output=True, text=True, check=False, timeout=60)
        assert said.returncode == 0, said.stderr
        moved = {row["partition"]: row for row in json.loads(said.stdout)["offsets"]}
        assert (moved[1]["kafka"], moved[1]["logbus"]) == (50, 40)
        assert ("it repeats batch" in said.stderr) == (name == "values")
    assert run("logbus", cluster.bootstrap_servers, new) == expected(140)
    converted = "its checkpoints, converted by logbus checkpoint"
    answered(versions["spark"], converted, "the queries continue")


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_logbus_produce_falls_back_to_kafka_record_batches_at_a_kafka_broker(
    kafka: str, topic: str, codec: str
) -> None:
    make_topic(kafka, topic)
    produce = [sys.executable, "-P", "-m", "broker_lite", "produce", topic, "-K", ":", "-z", codec]
    done = subprocess.run(
        [*produce, "-b", kafka], input=b"a:1\nb:2\n", capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert b"does not accept logbus's columns" in done.stderr
    (rows,) = rows_at(kafka, topic)
    assert [(offset, key, value) for offset, _, key, value, _ in rows] == [
        (0, b"a", b"1"),
        (1, b"b", b"2"),
    ]
