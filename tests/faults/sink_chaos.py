"""Copy a topic with Spark's exactly-once sink while brokers, executors and drivers are killed.

    make chaos KILLS=0 CUTS=0 SINK_KILLS=50

The driver is a process with its own Spark and two executors; after each death it restarts with the
same checkpoint. A writer adds numbers to the source topic all the time. SIGKILL hits in turn the
leader of an output partition, the sink's transaction coordinator, an executor, the driver and all
brokers. The next kill waits until the output topic has grown. A read_committed reader reads the
output topic; at the end it must have read each number once.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from support.patience import until
from support.spark_processes import QUICK_JVM, arguments, descendants, kill_with_descendants

from broker_lite.bus import Bus, connect
from broker_lite.client.operations.group_requests import find_coordinator
from broker_lite.errors import LogbusError
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.wire.calls.groups import KEY_TYPE_TRANSACTION

SOURCE, OUTPUT = "numbers", "copies"
PARTITIONS = 2
PATIENCE_S = 300.0
"""Seconds in which the output must grow after a kill, and seconds between two looks at it.

A driver and two executors may have to start in this time.
"""
PAUSE_S = 3.0
"""Maximum seconds between a restart and the next kill."""
KINDS = ("output leader", "coordinator", "executor", "driver", "all brokers")
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"

DRIVER = """
import sys
from pyspark.sql import SparkSession
import pyspark_logbus as logbus

servers, checkpoint = sys.argv[1:]
conf = {
    "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m", "spark.deploy.maxExecutorRetries": "-1",
}
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
spark = builder.config(map=logbus.spark_conf() | conf).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
while True:
    query = (
        spark.readStream.format("logbus")
        .option("bootstrap.servers", servers)
        .option("subscribe", "numbers")
        .option("startingOffsets", "earliest")
        .load()
        .select("value", "partition")
        .writeStream.format("logbus")
        .option("bootstrap.servers", servers)
        .option("topic", "copies")
        .option("deliveryGuarantee", "exactly_once")
        .option("transaction.timeout.ms", "30000")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception as error:
        print(str(error).splitlines()[0], flush=True)
"""


class Driver:
    """The driver process of the query; ``start`` starts it again after a kill."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.command = [sys.executable, "-c", DRIVER, servers, str(folder / "checkpoint")]
        self.log = folder / "driver.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                env=os.environ | QUICK_JVM | {"PYSPARK_PYTHON": sys.executable},
            )

    def kill(self) -> None:
        """Kill the driver, its JVM and all their children."""
        assert self.process is not None
        kill_with_descendants(self.process.pid)
        self.process.wait()

    def kill_executor(self, chance: random.Random) -> bool:
        """Kill an executor and its Python workers; return False if none is running."""
        assert self.process is not None
        executors = [pid for pid in descendants(self.process.pid) if _runs(pid, EXECUTOR)]
        if not executors:
            return False
        kill_with_descendants(chance.choice(executors))
        return True


def _wait(call: Callable[[], Any], what: str) -> None:
    until(call, what=what, within_s=PATIENCE_S)


def _runs(pid: int, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return name in arguments(pid)
    return False


class Writer(threading.Thread):
    """A thread that writes the numbers 0, 1, 2 … to the source topic until stopped."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(daemon=True)
        self.bus = bus
        self.count = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        with self.bus.producer(delivery_timeout_ms=600_000) as producer:
            while not self.stopped.wait(0.02):
                for _ in range(20):
                    producer.send(SOURCE, str(self.count), partition=self.count % PARTITIONS)
                    self.count += 1
                producer.flush(600)


class Reader(threading.Thread):
    """A thread that counts how often a read_committed consumer returns each number."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(daemon=True)
        self.bus = bus
        self.seen: Counter[int] = Counter()
        self.stopped = threading.Event()

    def run(self) -> None:
        with self.bus.consumer(OUTPUT, start="earliest") as consumer:
            while not self.stopped.is_set():
                try:
                    records = consumer.poll(0.2)
                except LogbusError:
                    continue  # All brokers are down.
                self.seen.update(int(record.value) for record in records)


class SinkChaos:
    """Kills processes of a cluster and of a query, each of ``kinds`` in turn."""

    kinds: ClassVar = KINDS
    copying: ClassVar[type[Driver]] = Driver
    """The process that copies."""

    def __init__(self, cluster: LocalCluster, bus: Bus, driver: Driver, chance: random.Random):
        self.cluster, self.bus, self.driver, self.random = cluster, bus, driver, chance
        self.kills: Counter[str] = Counter()

    def run(self, kills: int, reader: Reader) -> None:
        """Kill a process of each kind in ``kinds`` in turn, until each kind was killed ``kills``
        times."""
        while min(self.kills[kind] for kind in self.kinds) < kills:
            for kind in self.kinds:
                time.sleep(self.random.random() * PAUSE_S)
                self.strike(kind)
                before = len(reader.seen)
                _wait(lambda before=before: len(reader.seen) > before, "the query stands")
                print(f"{dict(self.kills)} {before}", file=sys.stderr, flush=True)

    def start_all(self) -> None:
        """Start the processes that are still stopped because Ctrl-C interrupted a kill."""
        for broker in self.cluster.brokers:
            broker.start()
        if self.driver.process is None or self.driver.process.poll() is not None:
            self.driver.start()

    def strike(self, kind: str) -> None:
        """Kill the process that ``kind`` names; restart it after a while."""
        if kind == "driver":
            self.driver.kill()
            self.driver.start()
        elif kind == "executor":
            if not self.driver.kill_executor(self.random):
                return
        else:
            victims = self.cluster.brokers if kind == "all brokers" else [self.victim(kind)]
            for broker in victims:
                broker.kill()
            time.sleep(self.random.random())
            for broker in victims:
                broker.start(wait=False)
            for broker in victims:
                broker.wait_ready(PATIENCE_S)
        self.kills[kind] += 1

    def victim(self, kind: str) -> LocalBroker:
        if kind == "coordinator":
            sink = json.loads((self.checkpoint / "metadata").read_text())["id"]
            return self.coordinator(sink, KEY_TYPE_TRANSACTION)
        tp = TopicPartition(OUTPUT, self.random.randrange(PARTITIONS))
        view = self.bus.cluster().partition(tp)
        leader = view.leader if view is not None else -1
        found_leader = [each for each in self.cluster.brokers if each.id == leader]
        return found_leader[0] if found_leader else self.random.choice(self.cluster.brokers)

    def coordinator(self, key: str, key_type: int) -> LocalBroker:
        found = self.bus.admin.run(lambda cluster, ms: find_coordinator(cluster, key, ms, key_type))
        address = f"{found.host}:{found.port}"
        return next(each for each in self.cluster.brokers if each.endpoint == address)

    @property
    def checkpoint(self) -> Path:
        return Path(self.driver.command[-1])


def run(
    folder: Path, chance: random.Random, kills: int, chaos_type: type[SinkChaos] = SinkChaos
) -> dict[str, Any]:
    """Make ``kills`` kills of each kind; raise AssertionError if a row is lost or repeated."""
    began = time.monotonic()
    config = {"zookeeper.session.timeout.ms": "2000"}
    with (
        LocalCluster(3, directory=folder / "cluster", config=config) as cluster,
        connect(cluster.bootstrap_servers) as bus,
    ):
        for topic in (SOURCE, OUTPUT):
            bus.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        driver = chaos_type.copying(cluster.bootstrap_servers, folder)
        writer, reader = Writer(bus), Reader(bus)
        chaos = chaos_type(cluster, bus, driver, chance)
        driver.start()
        try:
            writer.start()
            reader.start()
            _wait(lambda: reader.seen, "the query does not begin")
            with contextlib.suppress(KeyboardInterrupt):
                chaos.run(kills, reader)
            chaos.start_all()
            writer.stopped.set()
            writer.join()
            _wait(lambda: len(reader.seen) >= writer.count, "numbers are missing")
            doubled = {number: n for number, n in reader.seen.items() if n > 1}
            assert not doubled, f"seen more than once: {sorted(doubled)[:20]}"
            assert set(reader.seen) == set(range(writer.count))
        except AssertionError:
            print(driver.log.read_text("utf-8")[-4000:], file=sys.stderr)
            raise
        finally:
            reader.stopped.set()
            writer.stopped.set()
            driver.kill()
            reader.join(30)
    return {
        "kills": dict(chaos.kills),
        "rows": writer.count,
        "lost_doubled_or_read_uncommitted": 0,
        "seconds": round(time.monotonic() - began),
    }
