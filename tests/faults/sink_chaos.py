"""Copy a topic with Spark's exactly-once sink while brokers, executors and drivers are killed.

    PYTHONPATH=tests .venv/bin/python -P -m faults.sink_chaos [--seconds 120] [--seed N]

The driver is a process with its own Spark; it begins again after each death, with the same
checkpoint. Numbers are written to the source all the while. In turn the leader of an output, the
coordinator of the sink, the workers of Spark, the driver and all brokers are killed with SIGKILL.
A reader with read_committed follows the output and fails at a number that is seen twice. At the end
the output must hold each number once. The result goes to ``benchmarks/results/sink-chaos.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from patience import until
from spark_processes import QUICK_JVM, arguments, children

from broker_lite.bus import Bus, connect
from broker_lite.client.operations.group_requests import find_coordinator
from broker_lite.errors import LogbusError
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.wire.calls.groups import KEY_TYPE_TRANSACTION

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "sink-chaos.json"
SOURCE, OUTPUT = "numbers", "copies"
PARTITIONS = 2
PAUSE_S = 3.0
"""Maximum seconds between a restart and the next kill."""
KINDS = ("output leader", "coordinator", "workers", "driver", "all brokers")

DRIVER = """
import sys
from pyspark.sql import SparkSession
import pyspark_logbus as logbus

servers, checkpoint = sys.argv[1:]
conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
spark = SparkSession.builder.master("local[2]").config(map=logbus.spark_conf() | conf).getOrCreate()
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
    """The process of the query; ``start`` begins it again."""

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
        for pid in [self.process.pid, *self._descendants(self.process.pid)]:
            _kill(pid)
        self.process.wait()

    def kill_workers(self) -> int:
        """Kill the driver's Python workers; return their number."""
        assert self.process is not None
        found = [
            worker
            for pid in self._descendants(self.process.pid)
            if arguments(pid)[-1] == "pyspark.worker"
            for worker in children(pid)
        ]
        for pid in found:
            _kill(pid)
        return len(found)

    def _descendants(self, pid: int) -> list[int]:
        found = []
        with contextlib.suppress(FileNotFoundError):
            for child in children(pid):
                found += [*self._descendants(child), child]
        return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Writer(threading.Thread):
    """Writes the numbers 0, 1, 2 … to the source until it is stopped."""

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
    """Counts the numbers that read_committed shows."""

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
                    continue  # all brokers are away
                self.seen.update(int(record.value) for record in records)


class SinkChaos:
    """The cluster, the driver, and one kill after the other."""

    def __init__(self, cluster: LocalCluster, bus: Bus, driver: Driver, chance: random.Random):
        self.cluster, self.bus, self.driver, self.random = cluster, bus, driver, chance
        self.kills: Counter[str] = Counter()

    def strike(self, kind: str) -> None:
        """Kill what ``kind`` names, and start it again after a while."""
        if kind == "driver":
            self.driver.kill()
            self.driver.start()
        elif kind == "workers":
            if not self.driver.kill_workers():
                return
        else:
            victims = self.cluster.brokers if kind == "all brokers" else [self.victim(kind)]
            for broker in victims:
                broker.kill()
            time.sleep(self.random.random())
            for broker in victims:
                broker.start(wait=False)
            for broker in victims:
                broker.wait_ready()
        self.kills[kind] += 1

    def victim(self, kind: str) -> LocalBroker:
        if kind == "coordinator":
            sink = json.loads((self.checkpoint / "metadata").read_text())["id"]
            found = self.bus.admin.run(
                lambda cluster, ms: find_coordinator(cluster, sink, ms, KEY_TYPE_TRANSACTION)
            )
            address = f"{found.host}:{found.port}"
            return next(each for each in self.cluster.brokers if each.endpoint == address)
        where = TopicPartition(OUTPUT, self.random.randrange(PARTITIONS))
        view = self.bus.cluster().partition(where)
        leader = view.leader if view is not None else -1
        found_leader = [each for each in self.cluster.brokers if each.id == leader]
        return found_leader[0] if found_leader else self.random.choice(self.cluster.brokers)

    @property
    def checkpoint(self) -> Path:
        return Path(self.driver.command[-1])


def run(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Run the kills for a while; raise AssertionError for a lost or doubled number."""
    config = {"zookeeper.session.timeout.ms": "2000"}
    with (
        LocalCluster(3, directory=folder / "cluster", config=config) as cluster,
        connect(cluster.bootstrap_servers) as bus,
    ):
        for topic in (SOURCE, OUTPUT):
            bus.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        driver = Driver(cluster.bootstrap_servers, folder)
        writer, reader = Writer(bus), Reader(bus)
        chaos = SinkChaos(cluster, bus, driver, random.Random(seed))
        driver.start()
        try:
            writer.start()
            reader.start()
            until(lambda: reader.seen)
            ends = time.monotonic() + seconds
            turn = 0
            while time.monotonic() < ends:
                before = len(reader.seen)
                time.sleep(chaos.random.random() * PAUSE_S)
                chaos.strike(KINDS[turn % len(KINDS)])
                turn += 1
                until(lambda before=before: len(reader.seen) > before, what="the query stands")
                print(f"{dict(chaos.kills)} {len(reader.seen)}", file=sys.stderr, flush=True)
            writer.stopped.set()
            writer.join()
            until(lambda: len(reader.seen) >= writer.count, what="numbers are missing")
            doubled = {number: n for number, n in reader.seen.items() if n > 1}
            assert not doubled, f"seen more than once: {sorted(doubled)[:20]}"
            assert set(reader.seen) == set(range(writer.count))
        finally:
            reader.stopped.set()
            writer.stopped.set()
            driver.kill()
            reader.join(30)
    return {
        "seed": seed,
        "seconds": seconds,
        "kills": dict(chaos.kills),
        "rows": writer.count,
        "lost_or_doubled": 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="logbus-sink-chaos-") as directory:
        result = run(Path(directory), options.seconds, options.seed)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
