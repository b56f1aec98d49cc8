"""Test Apache Kafka's transactional programs, unchanged.

TransactionalMessageCopier runs while brokers die. kafka-transactions.sh lists, describes and aborts
transactions.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from support.client_programs import JAVA, Note, OwnNote

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import find_java

pytestmark = [pytest.mark.compat, pytest.mark.timeout(500)]

TOOLS = "org.apache.kafka.tools."
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m")
SETTINGS = {"zookeeper.session.timeout.ms": "2000"}
WAIT_S = 60.0
COPY_S = 180.0
RECORDS = 6000
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return make_module_cluster(3, config=SETTINGS)


@pytest.fixture
def name() -> str:
    return f"java-{os.getpid()}-{next(NUMBERS)}"


@pytest.fixture
def note(answered: Note, versions: dict[str, str]) -> OwnNote:
    return lambda asked, answer: answered(versions["java"], asked, answer)


@pytest.fixture
def java(class_path: str) -> list[str]:
    log = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
    return [find_java(), *JVM, log, "-cp", class_path]


def transactions(java: list[str], servers: str, *words: str, code: int = 0) -> str:
    """Run kafka-transactions.sh and return its output."""
    command = [*java, f"{TOOLS}TransactionsCommand", "--bootstrap-server", servers, *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=90,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def committed(bus: Bus, topic: str, count: int) -> list[int]:
    """Wait until a topic has ``count`` committed values; return them."""
    found: list[int] = []
    until = time.monotonic() + WAIT_S
    with bus.consumer(topic, start="earliest") as consumer:
        while len(found) < count:
            assert time.monotonic() < until, f"{len(found)} of {count} records"
            found += [int(row.value or b"") for row in consumer.poll(1.0)]
        found += [int(row.value or b"") for row in consumer.poll(0.5)]
    return sorted(found)


def progress(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


@pytest.mark.parametrize("mode", ["assigned", "group"])
def test_message_copier_copies_each_record_once_while_brokers_are_killed(
    cluster: LocalCluster, bus: Bus, java: list[str], name: str, note: OwnNote, mode: str
) -> None:
    source, copy = f"{name}-in", f"{name}-out"
    bus.create_topic(source, partitions=1, replication_factor=3)
    bus.create_topic(copy, partitions=3, replication_factor=3)
    with bus.producer() as producer:
        for number in range(RECORDS):
            producer.send(source, b"%d" % number, key=b"%d" % number)
    options = ["--group-mode", "--use-group-metadata"] if mode == "group" else []
    command = [
        *java, f"{TOOLS}TransactionalMessageCopier", "--transactional-id", name,
        "--consumer-group", name, "--input-topic", source, "--input-partition", "0",
        "--output-topic", copy, "--broker-list", cluster.bootstrap_servers,
        "--transaction-size", "100", "--transaction-timeout", "20000", "--enable-random-aborts",
        *options,
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            victims = iter(cluster.brokers)
            due, ended, until = RECORDS // 5, False, time.monotonic() + COPY_S
            for row in progress(process):
                assert time.monotonic() < until, row
                # Kill each broker once: after a fifth, two fifths and three fifths of the records.
                if row.get("totalProcessed", 0) >= due and (victim := next(victims, None)):
                    due += RECORDS // 5
                    victim.kill()
                    victim.start()
                if row.get("stage") == "ShutdownComplete":
                    ended = True
                    break
            assert ended, process.wait(10)
        finally:
            process.kill()
    assert next(victims, None) is None, "the copier ended before each broker was killed"
    assert committed(bus, copy, RECORDS) == list(range(RECORDS))
    note(f"TransactionalMessageCopier ({mode}), random aborts, each broker killed", "served")


def test_kafka_transactions_tool_lists_describes_and_aborts_transactions(
    cluster: LocalCluster, bus: Bus, java: list[str], name: str, note: OwnNote
) -> None:
    servers = cluster.bootstrap_servers
    bus.create_topic(name, partitions=1, replication_factor=3)
    producer = ck.Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(name, b"1", partition=0)
    assert producer.flush(WAIT_S) == 0
    assert re.search(rf"^{name}\s+\d+\s+\d+\s+Ongoing", transactions(java, servers, "list"), re.M)
    said = transactions(java, servers, "describe", "--transactional-id", name)
    assert re.search(rf"{name}\s+\d+\s+0\s+Ongoing\s+60000\s.*{name}-0", said), said
    where = ("--topic", name, "--partition", "0")
    found = transactions(java, servers, "find-hanging", "--topic", name)
    assert not re.search(rf"^{name}\s", found, re.M), found
    transactions(java, servers, "abort", *where, "--start-offset", "0")
    assert committed(bus, name, 0) == []
    said = transactions(java, servers, "describe-producers", *where)
    assert re.search(r"^\d+\s+0\s+\d+\s+0\s+\d{13}\s+None", said, re.M), said
    transactions(java, servers, "forceTerminateTransaction", "--transactionalId", name)
    assert "Ongoing" not in transactions(java, servers, "describe", "--transactional-id", name)
    note("kafka-transactions: list, describe, find-hanging, abort, forceTerminate", "served")
