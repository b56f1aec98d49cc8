"""Kill Spark's driver just before and just after the commit of an exactly-once batch.

The driver is a process that starts two queries. Spark commits the batches of each query in a Python
process below the driver. In this process the writer of one query waits just before the commit, and
the writer of the other just after it. After the kill of the driver and all processes below it, a
second driver with the same checkpoints runs both queries to their end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest
from support.spark_processes import QUICK_JVM, kill_with_descendants
from support.spark_queries import records

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BEFORE, AFTER = "before-commit", "after-commit"
VALUES = [f"{number:02}" for number in range(20)]

DRIVER = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
import pyspark_logbus as logbus
from pyspark_logbus.datasource import DefaultSource

servers, folder, stops = sys.argv[1], Path(sys.argv[2]), len(sys.argv) > 3
wait = time.sleep

class StoppingSource(DefaultSource):
    @classmethod
    def name(cls):
        return "stopping"

    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        point = self.options["topic"]

        def commit(messages, batchId):
            stop("before-commit")
            type(writer).commit(writer, messages, batchId)
            stop("after-commit")

        def stop(here):
            if stops and point == here:
                (folder / f"{point}.reached").touch()
                while True:
                    wait(1)

        writer.commit = commit
        return writer

conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
spark = SparkSession.builder.master("local[2]").config(map=logbus.spark_conf() | conf).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(StoppingSource)
for topic in ("before-commit", "after-commit"):
    read = (spark.readStream.format("logbus").option("bootstrap.servers", servers)
            .option("subscribe", "driver-in").option("startingOffsets", "earliest").load())
    query = (read.select("value").writeStream.format("stopping")
        .option("bootstrap.servers", servers).option("topic", topic)
        .option("deliveryGuarantee", "exactly_once")
        .option("checkpointLocation", str(folder / topic)).trigger(availableNow=True).start())
    if not stops:
        query.awaitTermination()
    while stops and not (folder / f"{topic}.reached").exists():
        assert query.isActive, query.exception()
        wait(0.05)
if stops:
    print("stopped", flush=True)
    wait(600)
print("done", flush=True)
spark.stop()
"""


class Seen(NamedTuple):
    """The values that a consumer reads from each output topic, at two times.

    * ``at_the_kill``: while the first driver is held shortly before or after a commit.
    * ``after_restart``: after a second driver has finished the queries of the first.
    """

    at_the_kill: Mapping[str, list[str]]
    after_restart: Mapping[str, list[str]]


def visible(bus: Bus) -> dict[str, list[str]]:
    return {
        topic: sorted(record.value.decode() for record in records(bus, topic))
        for topic in (BEFORE, AFTER)
    }


@pytest.fixture(scope="module")
def seen(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Kill a driver while its two queries wait, one before and one after the commit of a batch.
    Then let a second driver finish both queries.
    """
    folder, servers = tmp_path_factory.mktemp("drivers"), cluster.bootstrap_servers
    command = [sys.executable, "-P", "-c", DRIVER, servers, str(folder)]
    environment = {name: value for name, value in os.environ.items() if name[:6] != "SPARK_"}
    environment |= QUICK_JVM | {"PYSPARK_PYTHON": sys.executable}
    with connect(servers) as bus:
        for topic in ("driver-in", BEFORE, AFTER):
            bus.create_topic(topic, partitions=2)
        with bus.producer() as producer:
            for number, value in enumerate(VALUES):
                producer.send("driver-in", value.encode(), partition=number % 2)
        with (folder / "log").open("w") as log:
            first = subprocess.Popen(
                [*command, "stops"],
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment,
            )  # fmt: skip
        try:
            assert first.stdout is not None
            line = first.stdout.readline()
            assert line == "stopped\n", (folder / "log").read_text("utf-8")[-4000:]
            at_the_kill = visible(bus)
        finally:
            kill_with_descendants(first.pid)
            first.communicate()
        second = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=environment, check=False
        )
        assert second.stdout.split() == ["done"], second.stderr[-4000:]
        yield Seen(at_the_kill, visible(bus))


def test_batch_is_written_once_if_the_driver_is_killed_before_the_commit(seen: Seen) -> None:
    assert seen.at_the_kill[BEFORE] == []
    assert seen.after_restart[BEFORE] == VALUES


def test_batch_is_not_written_again_if_the_driver_is_killed_after_the_commit(
    seen: Seen,
) -> None:
    """Spark's commit log lacks the batch, so the next driver runs the batch again."""
    assert seen.at_the_kill[AFTER] == VALUES
    assert seen.after_restart[AFTER] == VALUES
