"""Compare Spark batch reads of 1,000 small partitions with the same rows in 8 partitions.

``load_and_count`` is ``spark.read…load().count()`` in a session that has read before. ``plan`` and
``read`` run the source's planner and its tasks in this process, without Spark. There is one broker,
with one replica, on this machine. The script prints one JSON object: medians in ms, processor time
of this process and of the broker in ms, and ratios of 1,000 partitions to 8 partitions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from peers.meter import fine_cpu_seconds

import pyspark_logbus as logbus
from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster
from pyspark_logbus.batch_reader import LogbusReader
from pyspark_logbus.datasource import DefaultSource
from pyspark_logbus.schema import source_schema

Part = Callable[[], tuple[float, float]]
"""A function that does a part of the benchmark once, and returns its wall time and processor time
in seconds.

The processor time is that of this process and the broker.
"""


def fill(bus: Bus, topic: str, partitions: int, rows: int) -> None:
    """Send ``rows`` records to each partition, in exactly two batches even on a slow machine."""
    bus.create_topic(topic, partitions=partitions)
    with bus.producer(linger_ms=60_000) as producer:
        for first in (0, rows // 2):
            for number in range(first, first + rows // 2):
                producer.send(topic, b"row %d" % number, partition=number % partitions)
            producer.flush()


def measured(call: Callable[[], Any], broker: int) -> tuple[float, float]:
    began, used = time.perf_counter(), time.process_time() + fine_cpu_seconds(broker)
    call()
    return time.perf_counter() - began, time.process_time() + fine_cpu_seconds(broker) - used


def parts(bus: Bus, topic: str, rows: int, broker: int, spark: Any) -> dict[str, Part]:
    def reader() -> LogbusReader:
        given = {"bootstrap.servers": bus.bootstrap_servers, "subscribe": topic}
        source = DefaultSource(given)
        return source.reader(source_schema(include_headers=False))

    planned = reader()
    tasks = planned.partitions()

    def read() -> None:
        assert sum(one.num_rows for task in tasks for one in planned.read(task)) == rows

    def load_and_count() -> None:
        source = spark.read.format("logbus").option("bootstrap.servers", bus.bootstrap_servers)
        assert source.option("subscribe", topic).load().count() == rows

    calls: dict[str, Callable[[], Any]] = {"plan": lambda: reader().partitions(), "read": read}
    if spark is not None:
        calls["load_and_count"] = load_and_count
    return {name: partial(measured, call, broker) for name, call in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-spark", action="store_true", help="only plan and read")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(brokers=1, directory=Path(folder)) as cluster,
        logbus.connect(cluster.bootstrap_servers) as bus,
    ):
        spark = None if given.no_spark else session()
        broker = cluster.brokers[0].pid
        assert broker is not None
        sides = {}
        for topic, partitions in (("few", 8), ("many", given.partitions)):
            fill(bus, topic, partitions, given.rows)
            sides[topic] = parts(bus, topic, given.rows, broker, spark)
        print(json.dumps(compare(sides, given.rounds), indent=1))


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config(map=logbus.spark_conf())
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def compare(sides: dict[str, dict[str, Part]], rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in sides["few"]:
        runs: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for number in range(rounds + 2):
            for side in sorted(sides, reverse=bool(number % 2)):
                run = sides[side][part]()
                if number >= 2:  # Do not count the first runs, which warm caches and compilers.
                    runs[side].append(run)
        wall = {side: statistics.median(one for one, _ in each) for side, each in runs.items()}
        used = {side: statistics.median(one for _, one in each) for side, each in runs.items()}
        found[part] = {
            "few_ms": round(1000 * wall["few"], 1),
            "many_ms": round(1000 * wall["many"], 1),
            "ratio": round(wall["many"] / wall["few"], 2),
            "few_processor_ms": round(1000 * used["few"], 1),
            "many_processor_ms": round(1000 * used["many"], 1),
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
