"""Compare Spark batch reads of 1,000 small partitions with the same rows in 8 partitions.

``load_and_count`` is ``spark.read…load().count()`` in a session that has read before. ``plan`` and
``read`` run the source's planner and its tasks in this process, without Spark. There is one broker,
with one replica, on this machine. The script prints one JSON object: medians in ms, processor time
of this process and of the broker in ms, and ratios of 1,000 partitions to 8 partitions.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from peers import figures
from peers.meter import fine_cpu_seconds
from peers.servers import LogbusServers
from peers.spark_host import start_session

import pyspark_logbus as logbus
from broker_lite.bus import Bus
from pyspark_logbus.batch_reader import LogbusReader
from pyspark_logbus.datasource import DefaultSource
from pyspark_logbus.schema import source_schema

PARTITIONS = {"few": 8, "many": 1000}
ROWS = 10_000


def fill(bus: Bus, topic: str, partitions: int, rows: int) -> None:
    """Send ``rows`` records in all, in two batches a partition even on a slow machine."""
    bus.create_topic(topic, partitions=partitions)
    with bus.producer(linger_ms=60_000) as producer:
        for first in (0, rows // 2):
            for number in range(first, first + rows // 2):
                producer.send(topic, b"row %d" % number, partition=number % partitions)
            producer.flush()


def parts(bus: Bus, topic: str, rows: int, spark: Any) -> dict[str, Callable[[], Any]]:
    """Return, by name, functions that each run one part of the benchmark once."""

    def reader() -> LogbusReader:
        given = {"bootstrap.servers": bus.bootstrap_servers, "subscribe": topic}
        return DefaultSource(given).reader(source_schema(include_headers=False))

    planned = reader()
    tasks = planned.partitions()

    def read() -> None:
        assert sum(one.num_rows for task in tasks for one in planned.read(task)) == rows

    def load_and_count() -> None:
        source = spark.read.format("logbus").option("bootstrap.servers", bus.bootstrap_servers)
        assert source.option("subscribe", topic).load().count() == rows

    return {
        "plan": lambda: reader().partitions(),
        "read": read,
        "load_and_count": load_and_count,
    }


def measure(rounds: int = 15) -> dict[str, Any]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with LogbusServers() as servers:
        spark = start_session({**logbus.spark_conf(), "spark.ui.enabled": "false"})
        broker = servers.cluster.brokers[0].pid
        calls = {}
        for topic, partitions in PARTITIONS.items():
            fill(servers.bus, topic, partitions, ROWS)
            for part, call in parts(servers.bus, topic, ROWS, spark).items():
                calls[part, topic] = call

        def run(case: tuple[str, str]) -> tuple[float, float]:
            used = time.process_time() + fine_cpu_seconds(broker)
            wall = figures.timed(calls[case])
            used = time.process_time() + fine_cpu_seconds(broker) - used
            return 1000 * wall, 1000 * used

        runs = figures.in_turns(calls, run, rounds)
    found: dict[str, Any] = {}
    for part in dict.fromkeys(part for part, _ in calls):
        (few, few_used), (many, many_used) = (zip(*runs[part, topic]) for topic in PARTITIONS)
        found[part] = {
            "few_ms": figures.median(few),
            "many_ms": figures.median(many),
            "ratio": figures.ratio(many, few),
            "few_processor_ms": figures.median(few_used),
            "many_processor_ms": figures.median(many_used),
        }
    return found


if __name__ == "__main__":
    figures.main(measure)
