"""Test the exactly-once sink with separate executor processes, of which one dies or is too slow.

Spark's master and workers run in the driver's JVM, as with ``local-cluster[2,1,1024]``. Each worker
has its own host name, because Spark starts speculative attempts only on another host. The driver is
a separate process, because the test process already has a Spark session with a local master.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.patience import until
from support.spark_processes import QUICK_JVM
from support.spark_queries import records

from broker_lite.bus import Bus, connect
from broker_lite.client.administration.transactions import open_in_logs
from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

VALUES = [f"{number:02}" for number in range(20)]

DRIVER = """
import os, sys, time
from pathlib import Path
from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.sql import SparkSession
import pyspark_logbus as logbus

servers, folder = sys.argv[1:]
folder = Path(folder)
conf = SparkConf().setAll({
    **logbus.spark_conf(),
    "spark.ui.enabled": "false", "spark.master.rest.enabled": "false",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.speculation": "true", "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s", "spark.worker.timeout": "600",
}.items())
SparkContext._ensure_initialized(conf=conf)
jvm, gateway = SparkContext._jvm, SparkContext._gateway
deploy, settings = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf()
master = getattr(deploy.master, "Master$").__getattr__("MODULE$").startRpcEnvAndEndpoint(
    "127.0.0.1", 0, 0, settings)._1()
address = f"spark://127.0.0.1:{master.address().port()}"
masters = gateway.new_array(jvm.java.lang.String, 1)
masters[0] = address
workers = getattr(deploy.worker, "Worker$").__getattr__("MODULE$")
for number in (1, 2):
    workers.startRpcEnvAndEndpoint(f"127.0.0.{number}", 0, 0, 1, 1024, masters,
        str(folder / f"worker-{number}"), jvm.scala.Option.apply(number), settings,
        jvm.scala.Option.apply(None))
conf.setMaster(address)
spark = SparkSession(SparkContext(conf=conf))
spark.sparkContext.setLogLevel("OFF")

def run(name):
    def meet(batches):
        # Let each executor run one of the two map tasks, so that each holds shuffle output.
        (folder / f"{name}.map-{TaskContext.get().partitionId()}").touch()
        while len(list(folder.glob(f"{name}.map-*"))) < 2:
            time.sleep(0.01)
        yield from batches

    def look(batches):
        context = TaskContext.get()
        waiting = folder / f"{name}.waiting-{context.partitionId()}"
        for number, batch in enumerate(batches):
            yield batch
            # Spark's workers buffer 64 KB: the first row, but not the second, is with the sink.
            if context.partitionId() not in (0, 2) or number != 1:
                continue
            # A repeated stage numbers its task attempts from 0 again.
            if context.attemptNumber() or waiting.exists():
                # The first attempt may be later: an executor that has just started is slow.
                while not waiting.exists():
                    time.sleep(0.01)
                continue
            status = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2]
            new = waiting.with_suffix(".new")
            new.write_text(f"{status.split()[1]} {context.stageId()}")
            new.rename(waiting)
            while not (folder / f"{name}.go").exists():
                time.sleep(0.01)

    read = (spark.readStream.format("logbus").option("bootstrap.servers", servers)
            .option("subscribe", "executors-in").option("startingOffsets", "earliest").load())
    rows = read.selectExpr("string(value) AS value")
    if name == "shuffled":
        rows = rows.mapInArrow(meet, "value string").repartition(3, "value")
    query = (rows.selectExpr("repeat(value, 50000) AS value").mapInArrow(look, "value string")
             .writeStream.format("logbus").option("bootstrap.servers", servers)
             .option("topic", f"executors-{name}").option("deliveryGuarantee", "exactly_once")
             .option("checkpointLocation", str(folder / name)).trigger(availableNow=True).start())
    query.awaitTermination()
    stage = int((folder / f"{name}.waiting-0").read_text().split()[1])
    attempt = spark.sparkContext.statusTracker().getStageInfo(stage).currentAttemptId
    print("done", name, query.exception() is None, "stage attempt", attempt, flush=True)

print("ready", flush=True)
for name in map(str.strip, sys.stdin):
    run(name)
spark.stop()
"""


class Driver:
    """A driver process with Spark; files in ``folder`` stop its tasks and let them continue."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self.folder = folder

    def begin(self, name: str) -> int:
        """Start copying; return the pid of the executor whose task waits until ``let_go`` runs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return self.executor(name, 0)

    def executor(self, name: str, partition: int) -> int:
        """Wait until the partition's task is blocked; return the pid of its executor."""
        waiting = self.folder / f"{name}.waiting-{partition}"
        # Spark starts executors and their Python workers, which takes a busy machine minutes.
        until(lambda: waiting.exists() or self._process.poll() is not None, within_s=240)
        return int(waiting.read_text().split()[0])

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def let_go(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()


@pytest.fixture(scope="module")
def driver(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder, servers = tmp_path_factory.mktemp("executors"), cluster.bootstrap_servers
    with connect(servers) as bus:
        bus.create_topic("executors-in", partitions=2)
        with bus.producer() as producer:
            for number, value in enumerate(VALUES):
                producer.send("executors-in", value.encode(), partition=number % 2)
    environment = {name: value for name, value in os.environ.items() if name[:6] != "SPARK_"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", DRIVER, servers, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder,
            env=environment | QUICK_JVM,
        )  # fmt: skip
        with process:
            made = Driver(process, folder)
            assert made.line() == "ready", (folder / "log").read_text()[-4000:]
            yield made
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def output(bus: Bus, name: str) -> str:
    topic = f"executors-{name}"
    bus.create_topic(topic, partitions=2)
    return topic


def visible(bus: Bus, topic: str) -> list[Any]:
    """Return the number at the start of each value that a read_committed consumer reads, sorted."""
    found = [record.value.decode() for record in records(bus, topic)]
    assert {len(value) for value in found} <= {100_000}
    return sorted(value[:2] for value in found)


def open_attempts(bus: Bus, topic: str) -> set[int]:
    """Return the producer ids of the task attempts that have open transactions in the topic."""
    tps = bus.admin.cluster((topic,)).partitions_of(topic)
    held = bus.admin.run(open_in_logs, tps)
    return {row.producer_id for row in held}


def test_rows_of_a_killed_executor_are_written_once(bus: Bus, driver: Driver) -> None:
    topic = output(bus, "killed")
    executor = driver.begin("killed")
    until(lambda: open_attempts(bus, topic), lambda found: len(found) > 1)
    os.kill(executor, signal.SIGKILL)
    assert driver.line() == "done killed True stage attempt 0"
    assert visible(bus, topic) == VALUES


def test_rows_of_a_speculative_task_attempt_are_visible_once(bus: Bus, driver: Driver) -> None:
    topic = output(bus, "slow")
    driver.begin("slow")
    # Wait until a speculative attempt of the task has overtaken the waiting attempt.
    assert driver.line() == "done slow True stage attempt 0"
    driver.let_go("slow")
    assert visible(bus, topic) == VALUES


def test_rows_of_a_stage_that_is_repeated_after_a_failed_shuffle_fetch_are_written_once(
    bus: Bus, driver: Driver
) -> None:
    """The killed executor held shuffle output, so Spark repeats the sink's stage.

    Task 1 of the stage's first attempt has ended; task 2 runs on as a zombie.
    """
    topic = output(bus, "shuffled")
    executor = driver.begin("shuffled")
    assert driver.executor("shuffled", 2) != executor
    until(lambda: open_attempts(bus, topic), lambda found: len(found) == 3)
    os.kill(executor, signal.SIGKILL)
    assert driver.line() == "done shuffled True stage attempt 1"
    assert visible(bus, topic) == VALUES
    driver.let_go("shuffled")
    assert visible(bus, topic) == VALUES
