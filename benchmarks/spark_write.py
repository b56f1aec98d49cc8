"""Batch write of real log lines of 200 B, beside a sink that only drains the same Arrow batches.

    python benchmarks/spark_write.py [--rows N] [--rounds N] [--compression none,lz4,zstd]
                                     [--full-page-cache] [--input FILE] [--output FILE]

Each codec is a side of its own; the sides take turns. ``--full-page-cache`` makes the machine like
one that has run for a while before every run (``page_cache``): the ratio counts that state, which
the sink that drains never notices. The rows come from Spark's own cache. ``cpu`` is the processor
time of a run by process; with two cores busy all the time, the ratio is that of their sums.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

from page_cache import FullPageCache
from peers.lines import Lines
from spark_bench import Cpu, median, median_cpu, parser, report, session, spent, timed

import pyspark_logbus as logbus

Run = tuple[float, Cpu]


def figures(floors: list[Run], runs: list[Run], rows: int, stored_mb: float) -> dict[str, Any]:
    """One codec's, against the floor of the same round."""
    taken = median([time for time, _ in runs])
    cpu = median_cpu([cost for _, cost in runs])
    return {
        "s": taken,
        "rows_per_s": round(rows / taken),
        "ratio": median([low / high for (low, _), (high, _) in zip(floors, runs)]),
        "stored_mb": round(stored_mb, 1),
        "cpu_s": total(cpu),
        "cpu_ratio": round(total(median_cpu([cost for _, cost in floors])) / total(cpu), 3),
        "cpu": cpu,
    }


def total(cpu: dict[str, dict[str, float]]) -> float:
    return round(sum(sum(modes.values()) for modes in cpu.values()), 3)


def cached_rows(spark: Any, args: argparse.Namespace, folder: Path) -> Any:
    """The input in Spark's memory, so that reading it costs next to nothing."""
    path = folder / "lines.txt"
    with path.open("wb") as file:
        for line in Lines(args.input).sized(args.rows, args.value_bytes):
            file.write(line.decode("ascii", "replace").encode("ascii", "replace") + b"\n")
    frame = spark.read.text(str(path)).repartition(args.partitions).persist()
    assert frame.count() == args.rows
    return frame


def main() -> None:
    asked = parser(__doc__, rows=2_000_000)
    asked.add_argument("--compression", default="none,lz4")
    asked.add_argument("--full-page-cache", action="store_true")
    asked.add_argument("--input", type=Path)
    args = asked.parse_args()
    codecs = args.compression.split(",")
    spark = session("write")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(logbus.LocalCluster(brokers=1))
        bus = stack.enter_context(logbus.connect(cluster.bootstrap_servers))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows = cached_rows(spark, args, folder)
        cache = stack.enter_context(FullPageCache()) if args.full_page_cache else None
        for codec in codecs:
            bus.create_topic(codec, partitions=args.partitions)

        def write(codec: str) -> float:
            writer = rows.write.format("logbus").mode("append").option("topic", codec)
            writer = writer.option("bootstrap.servers", cluster.bootstrap_servers)
            return timed(writer.option("compression.type", codec).save)

        def floor() -> float:
            return timed(rows.write.format("floor").mode("append").save)

        def run(action: Any) -> Run:
            if cache is not None:
                cache.fill()
            return spent(cluster, action)

        first = write(codecs[0])
        floor()
        for codec in codecs:
            write(codec)
        floors: list[Run] = []
        runs: dict[str, list[Run]] = {codec: [] for codec in codecs}
        for _ in range(args.rounds):
            floors.append(run(floor))
            for codec in codecs:
                runs[codec].append(run(lambda codec=codec: write(codec)))
        stored = {}
        for at, codec in enumerate(codecs):
            ends = bus.admin.list_offsets(dict.fromkeys(bus.cluster().partitions_of(codec), -1))
            written = sum(end.offset for end in ends.values())
            assert written == args.rows * (args.rounds + 1 + (at == 0)), written
            stored[codec] = stored_mb(cluster, bus, codec) * args.rows / written
    spark.stop()
    low = median([time for time, _ in floors])
    costs = median_cpu([cost for _, cost in floors])
    report(
        "spark_write",
        {
            "rows": args.rows,
            "value_bytes": args.value_bytes,
            "full_page_cache": args.full_page_cache,
            "page_cache_filled_s": round(cache.seconds, 1) if cache else 0.0,
            "first_s": round(first, 3),
            "floor": {
                "s": low,
                "rows_per_s": round(args.rows / low),
                "cpu_s": total(costs),
                "cpu": costs,
            },
            **{codec: figures(floors, runs[codec], args.rows, stored[codec]) for codec in codecs},
            "goal": 0.55,
        },
        args.output,
    )


def stored_mb(cluster: logbus.LocalCluster, bus: Any, topic: str) -> float:
    """Of a topic's log files."""
    topic_id = bus.cluster().topic_id(topic)
    folders = Path(cluster.directory).glob(f"**/{topic_id}*/*.log")
    return sum(path.stat().st_size for path in folders) / 1e6


if __name__ == "__main__":
    main()
