"""Run the brokers of logbus and Kafka, each in a temporary folder, removed when the context ends.

Kafka runs in KRaft's combined mode, with the heap and the garbage collector of its start script,
and the settings of its ``server.properties``. ``tuned`` adds settings that Kafka's users change on
a machine of this size. logbus always runs with its defaults.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

from broker_lite.bus import connect
from broker_lite.local.cluster import LocalCluster
from peers import fetch
from peers.row import words

START_SECONDS = 120
STOP_SECONDS = 20
WAIT_SECONDS = 120.0
HERE = Path(__file__).parent / "kafka"
KAFKA_VERSION = "4.3.0"
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
HEAP = "-Xmx1G -Xms1G"
"""The heap options of Kafka's start script."""

_JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_SHIPPED = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "2",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
    # Kafka's config/server.properties sets this rebalance delay to 0, too. With the default, the
    # first member of every group would wait 3 s for further members.
    "group.initial.rebalance.delay.ms": "0",
}
_TUNED = {
    "num.network.threads": "2",
    "num.io.threads": "2",
    "socket.send.buffer.bytes": "1048576",
    "socket.receive.buffer.bytes": "1048576",
    "num.replica.fetchers": "2",
    "replica.fetch.max.bytes": "8388608",
}


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback interface."""
    with contextlib.ExitStack() as stack:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        for each in sockets:
            stack.enter_context(each)
        return [each.getsockname()[1] for each in sockets]


def stop(process: subprocess.Popen[Any]) -> None:
    """Stop a process: close its stdin if that is a pipe, else send SIGTERM. Kill the process after
    STOP_SECONDS."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    else:
        process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kafka_java(heap: str, *, jvm: Sequence[str] = _JVM) -> list[str]:
    """Return the beginning of a command that runs a class of Kafka; the class name follows."""
    folder = fetch.jars("kafka", HERE / "pom.xml")
    log = f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}"
    return [fetch.java(), *heap.split(), *jvm, log, "-cp", f"{folder}/*"]


def send_all(servers: str, sends: Iterable[Mapping[str, Any]], **options: Any) -> None:
    """Send records with confluent-kafka and wait until all are acknowledged.

    ``sends`` has the arguments of ``Producer.produce`` for each record. In ``options``, "_" stands
    for ".".
    """
    producer = ck.Producer({"bootstrap.servers": servers, "log_level": 0, **dotted(options)})
    for each in sends:
        while True:
            try:
                producer.produce(**each)
                break
            except BufferError:
                producer.poll(0.01)
    assert not producer.flush(WAIT_SECONDS)


class Servers:
    """The brokers of one system, with ``bootstrap_servers`` and ``processes`` (pids by role)."""

    peer: str
    shipped: str
    bootstrap_servers: str

    def __init__(self, brokers: int, config: Mapping[str, str] | None) -> None:
        self._count = brokers
        self._config = dict(config or {})
        self._names = map("bench-{}".format, itertools.count())

    @property
    def settings(self) -> str:
        return f"{self._count} broker(s), {self.shipped}, {words(self._config)}"

    def stored_mb(self) -> float:
        """Return the MB of all segments of all topics."""
        segments = (path for each in self.data_folders() for path in each.rglob("*.log"))
        return sum(path.stat().st_size for path in segments) / 1e6

    @contextlib.contextmanager
    def topic(self, *arguments: Any, **config: str) -> Iterator[str]:
        """Create a topic as ``new_topic`` does, and delete it when the context ends."""
        name = self.new_topic(*arguments, **config)
        try:
            yield name
        finally:
            self.delete_topic(name)


class LogbusServers(Servers):
    """Runs a LocalCluster: ZooKeeper, and brokers that acknowledge after a flush on every in-sync
    replica."""

    peer = "logbus"
    shipped = "a ZooKeeper"

    def __init__(self, brokers: int = 1, config: Mapping[str, str] | None = None) -> None:
        super().__init__(brokers, config)
        self.cluster = LocalCluster(brokers, config=config)

    def __enter__(self) -> LogbusServers:
        self.cluster.start()
        self.bootstrap_servers = self.cluster.bootstrap_servers
        self.bus = connect(self.bootstrap_servers)
        return self

    def __exit__(self, *_: object) -> None:
        self.bus.close()
        self.cluster.stop()

    def processes(self) -> dict[str, list[int]]:
        zookeeper = self.cluster.zookeeper_server
        return {
            "broker": [broker.pid for broker in self.cluster.brokers if broker.pid],
            "zookeeper": [zookeeper.pid] if zookeeper and zookeeper.pid else [],
        }

    def new_topic(self, partitions: int = 1, replicas: int = 1, **config: str) -> str:
        """Create a topic; wait until every partition has a leader; return its name.

        In the names of ``config``, "_" stands for ".".
        """
        name = next(self._names)
        self.bus.create_topic(name, partitions, replicas, config=dotted(config))
        time.sleep(0.2)  # Wait until the partition's leader has the topic in its metadata.
        return name

    def delete_topic(self, name: str) -> None:
        self.bus.delete_topic(name)

    def data_folders(self) -> list[Path]:
        return [broker.directory / "data" for broker in self.cluster.brokers]


class KafkaServers(Servers):
    """Apache Kafka's brokers, each also a controller."""

    peer = "kafka"

    def __init__(
        self,
        brokers: int = 1,
        *,
        tuned: bool = False,
        heap: str = HEAP,
        config: Mapping[str, str] | None = None,
        further: str = "",
    ) -> None:
        """Prepare to run Kafka's brokers.

        ``further`` is the name of one more listener, on ``further_port``, for a single broker.
        """
        super().__init__(brokers, {**(_TUNED if tuned else {}), **(config or {})})
        self.shipped = f"KRaft, {heap}, no wait for more members of a group"
        self._further = further
        self._heap = heap
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> KafkaServers:
        self._folder = Path(tempfile.mkdtemp(prefix="logbus-bench-kafka-"))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            stop(process)
        shutil.rmtree(self._folder, ignore_errors=True)

    def processes(self) -> dict[str, list[int]]:
        return {"broker": [process.pid for process in self._processes]}

    def new_topic(self, partitions: int = 1, replicas: int = 1, **config: str) -> str:
        """Create a topic; wait until every partition has a leader; return its name.

        In the names of ``config``, "_" stands for ".".
        """
        name = next(self._names)
        topic = NewTopic(name, partitions, replicas, config=dotted(config))
        self._admin.create_topics([topic])[name].result(START_SECONDS)
        deadline = time.monotonic() + START_SECONDS
        while True:
            found = self._admin.list_topics(name, timeout=10).topics[name].partitions
            if len(found) == partitions and all(each.leader >= 0 for each in found.values()):
                break
            assert time.monotonic() < deadline, f"{name} has no leader"
            time.sleep(0.02)
        time.sleep(0.2)
        return name

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(START_SECONDS)

    def data_folders(self) -> list[Path]:
        return [self._folder / f"{number}" / "log" for number in range(1, self._count + 1)]

    def _start(self) -> None:
        java = kafka_java(self._heap)
        *ports, self.further_port = free_ports(2 * self._count + 1)
        further = f"{self._further}://127.0.0.1:{self.further_port}" if self._further else ""
        settings = list(kafka_settings(self._folder, ports, self._config, further))
        for each in settings:
            format_storage(each)
        for each in settings:
            with (each.parent / "out").open("wb") as out:
                self._processes.append(
                    subprocess.Popen(
                        [*java, "kafka.Kafka", str(each)], stdout=out, stderr=out, cwd=each.parent
                    )
                )
        self.bootstrap_servers = ",".join(f"127.0.0.1:{p}" for p in ports[: self._count])
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(ck.KafkaException):
                if len(self._admin.list_topics(timeout=2).brokers) == self._count:
                    return
            ended = any(process.poll() is not None for process in self._processes)
            if ended or time.monotonic() > deadline:
                said = (settings[0].parent / "out").read_text("utf-8", "replace")
                raise fetch.Cannot(f"Kafka did not start: {said[-500:]}")
            time.sleep(0.05)


def kafka_settings(
    folder: Path, ports: list[int], config: Mapping[str, str], further: str = ""
) -> Iterator[Path]:
    """Yield the path of each broker's file of settings. The first half of ``ports`` are the ports
    of the brokers, the second half those of the controllers."""
    count = len(ports) // 2
    voters = ",".join(f"{n + 1}@127.0.0.1:{ports[count + n]}" for n in range(count))
    for number in range(1, count + 1):
        own = folder / str(number)
        own.mkdir(parents=True)
        port, controller = ports[number - 1], ports[count + number - 1]
        own_listeners = ",".join(filter(None, (f"PLAINTEXT://127.0.0.1:{port}", further)))
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "listeners": f"{own_listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": own_listeners,
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(own / "log"),
            "offsets.topic.replication.factor": str(count),
            "transaction.state.log.replication.factor": str(count),
            "transaction.state.log.min.isr": str(count // 2 + 1),
            "share.coordinator.state.topic.replication.factor": str(count),
            "share.coordinator.state.topic.min.isr": str(count // 2 + 1),
            **_SHIPPED,
            **config,
        }
        path = own / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
        yield path


def format_storage(settings: Path) -> None:
    """Format the storage of a broker. A Kafka user does this once, before the first start."""
    java = kafka_java("-Xmx256M", jvm=["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
    command = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)]
    subprocess.run(
        command, check=True, capture_output=True, timeout=START_SECONDS, cwd=settings.parent
    )


def dotted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with each "_" in their names replaced by "."."""
    return {key.replace("_", "."): value for key, value in config.items()}
