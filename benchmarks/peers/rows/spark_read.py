"""Benchmarks 1 and 2: Spark reads a topic as a table, all seven columns or only two."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial

from peers.bench import Bench
from peers.row import FLOOR, KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.spark import ALL, LINES, Ending, both, rate
from peers.spark_session import SparkHost
from peers.spark_variants import LZ4, SOURCE, TUNED_BOUND, is_advised, reading, variants


@contextlib.contextmanager
def open_read(
    bench: Bench, chosen: Variant, *, columns: list[str], by: str = "spark"
) -> Iterator[Mapping[str, Side]]:
    count = bench.size(LINES)
    with both(bench, chosen) as sides:
        topics = sides.filled(count, chosen.compression[LOGBUS], by)

        def run(name: str) -> Measures:
            source = sides.end(name, topics[name], reading(chosen, name))
            done = sides.spark.call("read", source=source, columns=columns)
            return rate(count, done["seconds"])

        floor = sides.floor(count, "read", source=sides.ready(count), columns=columns)
        yield {name: sides.side(name, partial(run, name)) for name in (LOGBUS, KAFKA)} | floor


@contextlib.contextmanager
def open_first(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    """Open the variant of the benchmark in which each run starts a new Spark session."""
    count = bench.size(LINES)
    with both(bench, chosen) as sides:
        topics = sides.filled(count, chosen.compression[LOGBUS])

        def run(source: Ending) -> Measures:
            session = SparkHost(is_advised(chosen))
            with bench.counting(session.processes), session as spark:
                done = spark.call("read", source=source, columns=ALL)
            return rate(count, done["seconds"])

        found = sides.floor(count, "read", source=sides.ready(count), columns=ALL)
        runs = {FLOOR: partial(run, sides.ready(count))}
        for name, topic in topics.items():
            runs[name] = partial(run, sides.end(name, topic, reading(chosen, name)))
            found[name] = sides.side(name, runs[name])
        yield {
            name: dataclasses.replace(found[name], run=runs[name], within=bench.within)
            for name in (LOGBUS, KAFKA, FLOOR)
        }


FILLED = "each side's topic was written by its own Spark sink, on the sink's defaults"
VARIANTS = variants(source=SOURCE)
ROWS = (
    Row(
        "spark-read",
        1,
        "Spark batch read of log lines, seven columns, warm",
        goals=(Goal("rows_per_s", 3.0),),
        open=partial(open_read, columns=ALL),
        variants=VARIANTS,
        note=FILLED,
        bound=TUNED_BOUND,
    ),
    Row(
        "spark-read-first",
        1,
        "Spark batch read of log lines, the first thing that a new session does",
        goals=(Goal("rows_per_s", 1.2),),
        open=open_first,
        variants=tuple(each for each in VARIANTS if each.name != LZ4),
        note=f"{FILLED}; times run from load() to the end, without the start of the session; "
        "processor seconds include this start",
        bound="Spark starts four Python processes before the first row: lookup, reader, planner, "
        "task. *At most*: a Python source that does nothing (the side floor)",
        quick=False,
    ),
    Row(
        "spark-read-two-columns",
        2,
        "Spark batch read, only value and offset",
        goals=(Goal("rows_per_s", 4.0),),
        open=partial(open_read, columns=["value", "offset"]),
        variants=VARIANTS,
        note="Kafka's connector has one schema, so it creates all columns and Spark drops some",
        bound=TUNED_BOUND,
    ),
    Row(
        "spark-read-rows",
        2,
        "Spark batch read of a topic that a Kafka client wrote, seven columns",
        goals=(Goal("rows_per_s", 1.5),),
        open=partial(open_read, columns=ALL, by="client"),
        variants=VARIANTS,
        note="confluent-kafka writes on both sides (batches of 256 KB): logbus stores these "
        "batches unchanged, as rows, and converts them to columns when they are read",
        bound=TUNED_BOUND,
        quick=False,
    ),
)
