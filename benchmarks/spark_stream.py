"""A stream works off a backlog and ends (availableNow), beside Python sources that have it ready.

``floor`` hands over one batch of rows again and again, which stays in the processor's cache;
``memory`` as many different ones as do not fit there, which is what rows from anywhere are;
``disk`` is logbus with its backlog dropped from the page cache, ``cached`` with all of it there.
``net`` is without what the same query takes with nothing to read.

python benchmarks/spark_stream.py [--rows N] [--rounds N] [--output FILE]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_bench import fill, median, median_cpu, parser, report, session, spent, timed

import pyspark_logbus as logbus

BATCH_BYTES = 2_000_000
"""Of the sources that are ready; the sink's batches are of about so much."""
MEMORY_BYTES = 64 << 20
"""Of a worker's different batches."""


def main() -> None:
    args = parser(__doc__, rows=4_000_000).parse_args()
    spark = session("stream")
    with (
        tempfile.TemporaryDirectory() as work,
        logbus.LocalCluster(brokers=1) as cluster,
        logbus.connect(cluster.bootstrap_servers) as bus,
    ):
        for topic in ("empty", "lines"):
            bus.create_topic(topic, partitions=args.partitions)
        fill(bus, "lines", args.rows, args.value_bytes, args.partitions)
        files = segments(cluster, bus, "lines")
        sides = sources(spark, Path(work), cluster.bootstrap_servers, files, args)
        for run in sides.values():
            run()
        found: dict[str, list[Any]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, run in sides.items():
                found[name].append(spent(cluster, run))
    spark.stop()
    report("spark_stream", result(found, args), args.output)


def sources(
    spark: Any, work: Path, address: str, files: list[Path], args: argparse.Namespace
) -> dict[str, Callable[[], float]]:
    """Each side's query, by name, as what runs it once and tells its seconds."""
    from spark_floor import Nothing

    spark.dataSource.register(Nothing)
    batch_rows = BATCH_BYTES // args.value_bytes
    checkpoints = iter(range(1_000_000))

    def run(frame: Any, rows: int) -> float:
        def to_the_end() -> None:
            query = frame.writeStream.format("noop").trigger(availableNow=True)
            query = query.option("checkpointLocation", f"{work}/{next(checkpoints)}").start()
            query.awaitTermination()
            read = sum(each.numInputRows for each in query.recentProgress)
            assert read == rows, (read, rows)

        return timed(to_the_end)

    def ready(rows: int, batches: int = 1) -> float:
        reader = spark.readStream.format("nothing").option("rows", rows)
        reader = reader.options(batchrows=batch_rows, valuebytes=args.value_bytes)
        return run(reader.options(batches=batches, tasks=args.partitions).load(), rows)

    def stored(topic: str, rows: int, keep: bool) -> float:
        for path in files:
            set_cached(path, keep)
        reader = spark.readStream.format("logbus").option("bootstrap.servers", address)
        reader = reader.option("startingOffsets", "earliest").option("subscribe", topic)
        return run(reader.load(), rows)

    return {
        "floor_empty": lambda: ready(0),
        "logbus_empty": lambda: stored("empty", 0, True),
        "floor": lambda: ready(args.rows),
        "memory": lambda: ready(args.rows, MEMORY_BYTES // BATCH_BYTES),
        "disk": lambda: stored("lines", args.rows, False),
        "cached": lambda: stored("lines", args.rows, True),
    }


def segments(cluster: logbus.LocalCluster, bus: Any, topic: str) -> list[Path]:
    topic_id = bus.cluster().topic_id(topic)
    return sorted(Path(cluster.directory).glob(f"**/{topic_id}*/*.log"))


def set_cached(path: Path, keep: bool) -> None:
    """Bring a file into the page cache, or have it dropped from there."""
    with path.open("rb", buffering=0) as file:
        if keep:
            buffer = bytearray(1 << 20)
            while file.readinto(buffer):
                pass
        else:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def result(found: dict[str, list[Any]], args: argparse.Namespace) -> dict[str, Any]:
    def empty(name: str) -> dict[str, Any]:
        cpu = median_cpu([cost for _, cost in found[name]])
        return {"s": median([time for time, _ in found[name]]), "cpu_s": total(cpu), "cpu": cpu}

    def side(name: str, nothing: dict[str, Any]) -> dict[str, Any]:
        whole = empty(name)
        seconds = whole["s"] - nothing["s"]
        net = {"net_s": round(seconds, 3), "net_cpu_s": round(whole["cpu_s"] - nothing["cpu_s"], 3)}
        return {**whole, **net, "net_rows_per_s": round(args.rows / seconds)}

    floor_empty, logbus_empty = empty("floor_empty"), empty("logbus_empty")
    return {
        "rows": args.rows,
        "value_bytes": args.value_bytes,
        "floor_empty": floor_empty,
        "logbus_empty": logbus_empty,
        "floor": side("floor", floor_empty),
        "memory": side("memory", floor_empty),
        "disk": side("disk", logbus_empty),
        "cached": side("cached", logbus_empty),
    }


def total(cpu: dict[str, dict[str, float]]) -> float:
    return round(sum(sum(modes.values()) for modes in cpu.values()), 3)


if __name__ == "__main__":
    main()
