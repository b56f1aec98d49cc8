"""Benchmark 15: the time from the start command to the first acknowledged record."""

from __future__ import annotations

import contextlib
import signal
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
from peers.row import FLOOR, KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.servers import format_storage, free_ports, kafka_java, kafka_settings

START_SECONDS = 60
STOP_SECONDS = 30
HASTY = {
    "topic.metadata.refresh.fast.interval.ms": 10,
    "retry.backoff.ms": 10,
    "reconnect.backoff.ms": 10,
}
FIRST, AGAIN, TUNED = "first start", "started again", "started again, tuned"
HASTY_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
HEAP = "-Xmx1G -Xms1G"
BARE = "a ZooKeeper as logbus starts it, and a Python process with a session; no record"
NOTE = (
    "the same client on both sides (confluent-kafka) waits for the port, makes a topic and "
    "produces one record with acks=all; logbus starts ZooKeeper and a broker, Kafka one broker "
    "that is its own controller. First start: empty folders, Kafka's format command counted. "
    "logbus up always gives ZooKeeper's JVM a serial collector and the first compiler alone, which "
    "Kafka's start script does not; tuned gives Kafka both, and an archive of its classes. "
    "Processor time is of servers and client together, stopping included"
)


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


def _timed(bench: Bench, command: list[str], folder: Path, address: str, topic: str) -> Measures:
    """Run a server until it acknowledges a record, then end it; return the measures."""
    began = time.perf_counter()
    with (folder / "out").open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)
    with bench.counting(lambda: {"server": [server.pid]}):
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


def logbus_once(bench: Bench, folder: Path, number: int) -> Measures:
    (port,) = free_ports(1)
    command = [sys.executable, "-P", "-m", "broker_lite", "up", "--dir", str(folder / "cluster"),
               "--port", str(port)]  # fmt: skip
    return _timed(bench, command, folder, f"127.0.0.1:{port}", f"t{number}")


def bare_once(bench: Bench, folder: Path) -> Measures:
    """Start once a ZooKeeper and a Python process that opens a session; return the measures."""
    began = time.perf_counter()
    command = [sys.executable, "-P", "-m", "peers.bare", "start", str(folder)]
    with (
        (folder / "out").open("wb") as out,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out
        ) as server,
        bench.counting(lambda: {"server": [server.pid]}),
    ):
        assert server.stdin is not None and server.stdout is not None
        said = server.stdout.readline()
        took = time.perf_counter() - began
        server.stdin.close()
        server.wait(STOP_SECONDS)
    if not said:
        raise RuntimeError(
            f"the server did not start: {(folder / 'out').read_text('utf-8')[-600:]}"
        )
    return {"first_ack_s": round(took, 3)}


class Kafka:
    """Starts Kafka repeatedly. The first start in a folder includes formatting its storage."""

    def __init__(self, bench: Bench, *, is_tuned: bool, archive: Path) -> None:
        self._bench = bench
        self._archive = archive
        self._jvm = [*kafka_java(HEAP)]
        if is_tuned:
            self._jvm = kafka_java(HEAP, jvm=[*HASTY_JVM, f"-XX:SharedArchiveFile={archive}"])

    def prepare(self, folder: Path) -> None:
        """Start Kafka once, so that the JVM creates its class data archive."""
        folder.mkdir()
        (settings,) = kafka_settings(folder, free_ports(2), {})
        format_storage(settings)
        java = kafka_java(HEAP, jvm=[*HASTY_JVM, f"-XX:ArchiveClassesAtExit={self._archive}"])
        self._start(java, settings, "prepared")
        if not self._archive.is_file():
            raise RuntimeError("Kafka's JVM wrote no class data archive")

    def once(self, folder: Path, number: int) -> Measures:
        settings = folder / "1" / "server.properties"
        is_first = not settings.exists()
        if is_first:
            (settings,) = kafka_settings(folder, free_ports(2), {})
        began = time.perf_counter()
        if is_first:
            format_storage(settings)
        spent = time.perf_counter() - began
        found = self._start(self._jvm, settings, f"t{number}")
        return {"first_ack_s": round(found["first_ack_s"] + spent, 3)}

    def _start(self, java: list[str], settings: Path, topic: str) -> Measures:
        text = settings.read_text("utf-8")
        address = text.partition("advertised.listeners=PLAINTEXT://")[2].split("\n")[0]
        command = [*java, "kafka.Kafka", str(settings)]
        return _timed(self._bench, command, settings.parents[1], address, topic)


@contextlib.contextmanager
def open_sides(bench: Bench, variant: Variant) -> Iterator[Mapping[str, Side]]:
    bench.stop_all()
    kafka_java(HEAP)  # Download Kafka before the measurement begins.
    numbers = iter(range(1_000_000))
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder:
        is_tuned = variant.name == TUNED
        kafka = Kafka(bench, is_tuned=is_tuned, archive=Path(folder) / "classes.jsa")
        if is_tuned:
            kafka.prepare(Path(folder) / "prepared")

        def home(side: str, number: int) -> Path:
            path = Path(folder) / (f"{side}-{number}" if variant.name == FIRST else side)
            path.mkdir(exist_ok=True)
            return path

        def run_logbus() -> Measures:
            number = next(numbers)
            return logbus_once(bench, home(LOGBUS, number), number)

        def run_kafka() -> Measures:
            number = next(numbers)
            return kafka.once(home(KAFKA, number), number)

        def run_bare() -> Measures:
            return bare_once(bench, home(FLOOR, next(numbers)))

        jvm = f"{' '.join(HASTY_JVM[:2])}, an archive of its classes" if is_tuned else "as it ships"
        yield {
            LOGBUS: Side(run_logbus, settings="logbus up, defaults", within=bench.within),
            KAFKA: Side(run_kafka, settings=f"KRaft, {HEAP}, {jvm}", within=bench.within),
            FLOOR: Side(run_bare, settings=BARE, within=bench.within),
        }


ROWS = (
    Row(
        "start",
        15,
        "From the command to the first acknowledged record",
        goals=(Goal("first_ack_s", 0.7, "less"),),
        open=open_sides,
        variants=(Variant(FIRST), Variant(AGAIN), Variant(TUNED)),
        note=NOTE,
        bound=(
            "a JVM and two Python processes on two cores. *At least*: a ZooKeeper and one Python "
            "process with a session, without a broker (the side floor)"
        ),
        quick=False,
    ),
)
