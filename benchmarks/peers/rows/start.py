"""Benchmark 15: the time from the start command to the first acknowledged record.

The same client on both sides (confluent-kafka) waits for the port, makes a topic and produces one
record with acks=all. logbus starts ZooKeeper and a broker, Kafka one broker that is its own
controller. A first start has empty folders, and includes Kafka's format command. ``logbus up``
always gives ZooKeeper's JVM the serial garbage collector and only the C1 compiler, which Kafka's
start script does not. *tuned* gives Kafka both, and an archive of its classes.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

from peers.bench import Bench
from peers.figures import timed
from peers.row import KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.servers import (
    HEAP,
    format_storage,
    free_ports,
    kafka_java,
    kafka_settings,
    send_all,
    stop,
)

START_SECONDS = 60
HASTY = {
    "topic.metadata.refresh.fast.interval.ms": 10,
    "retry.backoff.ms": 10,
    "reconnect.backoff.ms": 10,
}
FIRST, AGAIN, TUNED = "first start", "started again", "started again, tuned"
HASTY_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")


def first_ack(address: str, topic: str, server: subprocess.Popen[bytes]) -> None:
    """Send a record repeatedly; return once a broker at this address has acknowledged it."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            break
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"nothing listens on {address}")
        time.sleep(0.005)
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0, **HASTY})
    while True:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(START_SECONDS)
            break
        except ck.KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    failed: list[object] = []
    record = {
        "topic": topic,
        "value": b"first",
        "on_delivery": lambda error, _: failed.append(error),
    }
    send_all(address, [record], linger_ms=0, **HASTY)
    if failed != [None]:
        raise RuntimeError(f"the first record was not acknowledged: {failed}")


def first_ack_s(bench: Bench, command: list[str], folder: Path, port: int, topic: str) -> float:
    """Run a server until it acknowledges a record, then end it; return the seconds."""
    began = time.perf_counter()
    with (folder / "out").open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)
    with bench.counting(lambda: {"server": [server.pid]}):
        try:
            first_ack(f"127.0.0.1:{port}", topic, server)
            return time.perf_counter() - began
        finally:
            stop(server)


class Kafka:
    """Kafka in one folder, whose storage is formatted before the first start."""

    def __init__(self, bench: Bench, folder: Path, java: list[str]) -> None:
        self._bench = bench
        self._folder = folder
        self._java = java
        self._settings: Path | None = None

    def first_ack_s(self, topic: str) -> float:
        """Start Kafka; return the seconds until the first acknowledgement. The first start includes
        the format command."""
        formatting = 0.0
        if self._settings is None:
            self._ports = free_ports(2)
            (self._settings,) = kafka_settings(self._folder, self._ports, {})
            settings = self._settings
            formatting = timed(lambda: format_storage(settings))
        command = [*self._java, "kafka.Kafka", str(self._settings)]
        return formatting + first_ack_s(self._bench, command, self._folder, self._ports[0], topic)


@contextlib.contextmanager
def open_sides(bench: Bench, variant: Variant) -> Iterator[Mapping[str, Side]]:
    bench.stop_all()
    java = kafka_java(HEAP)  # Download Kafka before the measurement begins.
    numbers = map("t{}".format, itertools.count())
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as base:

        def home() -> Path:
            return Path(tempfile.mkdtemp(dir=base))

        if variant.name == TUNED:
            archive = home() / "classes.jsa"
            writes = kafka_java(HEAP, jvm=[*HASTY_JVM, f"-XX:ArchiveClassesAtExit={archive}"])
            Kafka(bench, home(), writes).first_ack_s("prepared")
            if not archive.is_file():
                raise RuntimeError("Kafka's JVM wrote no class data archive")
            java = kafka_java(HEAP, jvm=[*HASTY_JVM, f"-XX:SharedArchiveFile={archive}"])
        folder, kafka = home(), Kafka(bench, home(), java)

        def run_logbus() -> Measures:
            own = home() if variant.name == FIRST else folder
            (port,) = free_ports(1)
            command = [sys.executable, "-P", "-m", "broker_lite", "up", "--dir",
                       str(own / "cluster"), "--port", str(port)]  # fmt: skip
            return {"first_ack_s": first_ack_s(bench, command, own, port, next(numbers))}

        def run_kafka() -> Measures:
            own = Kafka(bench, home(), java) if variant.name == FIRST else kafka
            return {"first_ack_s": own.first_ack_s(next(numbers))}

        yield {
            LOGBUS: Side(run_logbus, settings="logbus up, defaults", within=bench.within),
            KAFKA: Side(run_kafka, settings=f"KRaft, {HEAP}", within=bench.within),
        }


ROWS = (
    Row(
        "start",
        15,
        "From the command to the first acknowledged record",
        goals=(Goal("first_ack_s", 0.7, "less"),),
        open=open_sides,
        variants=(Variant(FIRST), Variant(AGAIN), Variant(TUNED)),
        bound="a JVM and two Python processes on two cores",
        quick=False,
    ),
)
