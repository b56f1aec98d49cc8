"""Start a real Apache Kafka broker for tests: one KRaft node on loopback."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from broker_lite.local.zookeeper import find_java
from support.client_programs import JAVA

JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx512m")
START_SECONDS = 60

SERVER = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=100
log.initial.task.delay.ms=100
auto.create.topics.enable=false
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def kafka_running(class_path: str, folder: Path, *features: str) -> Iterator[str]:
    """Start a Kafka broker with ``features`` (``name=level``); yield its address."""
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(SERVER.format(port=port, controller=controller, folder=folder))
    log = f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}"
    java = [find_java(), *JVM, log, "-cp", class_path]
    made = ["format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", str(settings)]
    made += [word for feature in features for word in ("--feature", feature)]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", *made], check=True, capture_output=True, timeout=60
    )
    with (folder / "out").open("wb") as out:
        broker = subprocess.Popen(
            [*java, "kafka.Kafka", str(settings)], stdout=out, stderr=out, cwd=folder
        )
    try:
        address = f"127.0.0.1:{port}"
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                admin.list_topics(timeout=2)
                break
            except ck.KafkaException:
                assert broker.poll() is None, (folder / "out").read_text()
                assert time.monotonic() < deadline, (folder / "out").read_text()
        yield address
    finally:
        broker.kill()
        broker.wait()
