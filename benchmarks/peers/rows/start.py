"""Row 15: from the command to the first acknowledged record, with nothing running before."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

from peers.bench import Bench
from peers.row import KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.servers import format_storage, free_ports, kafka_java, kafka_settings

START_SECONDS = 60
STOP_SECONDS = 30
HASTY = {
    "topic.metadata.refresh.fast.interval.ms": 10,
    "retry.backoff.ms": 10,
    "reconnect.backoff.ms": 10,
}
FIRST, AGAIN = "first start", "started again"
NOTE = (
    "the same client on both sides (confluent-kafka) waits for the port, makes a topic and "
    "produces one record with acks=all; logbus starts ZooKeeper and a broker, Kafka one broker "
    "that is its own controller. First start: empty folders, Kafka's format command counted. "
    "Processor time is of servers and client together, stopping included"
)


def first_ack(address: str, topic: str, server: subprocess.Popen[bytes]) -> None:
    """Return as soon as a record is acknowledged there."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            break
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"nothing listens on {address}")
        time.sleep(0.005)
    where = {"bootstrap.servers": address, "log_level": 0, **HASTY}
    admin = AdminClient(where)
    while True:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(START_SECONDS)
            break
        except ck.KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    failed: list[object] = []
    producer = ck.Producer({**where, "linger.ms": 0})
    producer.produce(topic, b"first", on_delivery=lambda error, _: failed.append(error))
    left = producer.flush(START_SECONDS)
    if left or failed != [None]:
        raise RuntimeError(f"the first record was not acknowledged: {failed}")


def _timed(commands: list[list[str]], folder: Path, address: str, topic: str) -> Measures:
    """Run commands one after the other, the last of them until a record is acknowledged."""
    began = time.perf_counter()
    *before, last = commands
    for command in before:
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
    with (folder / "out").open("wb") as out:
        server = subprocess.Popen(last, stdout=out, stderr=out, cwd=folder)
    try:
        first_ack(address, topic, server)
        return {"first_ack_s": round(time.perf_counter() - began, 3)}
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def logbus_once(folder: Path, number: int) -> Measures:
    (port,) = free_ports(1)
    command = [sys.executable, "-P", "-m", "broker_lite", "up", "--dir", str(folder / "cluster"),
               "--port", str(port)]  # fmt: skip
    return _timed([command], folder, f"127.0.0.1:{port}", f"t{number}")


def kafka_once(folder: Path, number: int, *, is_first: bool) -> Measures:
    settings = folder / "1" / "server.properties"
    if is_first:
        (settings,) = kafka_settings(folder, free_ports(2), {})
    text = settings.read_text("utf-8")
    address = text.partition("advertised.listeners=PLAINTEXT://")[2].split("\n")[0]
    began = time.perf_counter()
    if is_first:
        format_storage(settings)
    spent = time.perf_counter() - began
    command = [*kafka_java("-Xmx1G -Xms1G"), "kafka.Kafka", str(settings)]
    found = _timed([command], folder, address, f"t{number}")
    return {"first_ack_s": round(found["first_ack_s"] + spent, 3)}


@contextlib.contextmanager
def open_sides(bench: Bench, variant: Variant) -> Iterator[Mapping[str, Side]]:
    bench.stop_all()
    kafka_java("-Xmx1G")  # fetched before anything is timed
    numbers = iter(range(1_000_000))
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder:

        def home(side: str, number: int) -> Path:
            path = Path(folder) / (f"{side}-{number}" if variant.name == FIRST else side)
            path.mkdir(exist_ok=True)
            return path

        def run_logbus() -> Measures:
            number = next(numbers)
            return logbus_once(home(LOGBUS, number), number)

        def run_kafka() -> Measures:
            number = next(numbers)
            own = home(KAFKA, number)
            return kafka_once(own, number, is_first=not (own / "1").exists())

        none: Mapping[str, list[int]] = {}
        yield {
            LOGBUS: Side(run_logbus, partial(dict, none), "logbus up, defaults"),
            KAFKA: Side(run_kafka, partial(dict, none), "KRaft, -Xmx1G -Xms1G, as it ships"),
        }


ROWS = (
    Row(
        "start",
        15,
        "From the command to the first acknowledged record",
        goals=(Goal("first_ack_s", 0.7, "less"),),
        open=open_sides,
        variants=(Variant(FIRST), Variant(AGAIN)),
        note=NOTE,
        quick=False,
    ),
)
