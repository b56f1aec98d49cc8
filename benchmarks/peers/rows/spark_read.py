"""Benchmarks 1 and 2: Spark reads a topic as a table, all seven columns or only two.

Each side's own Spark sink wrote its topic, with the sink's defaults. In spark-read-rows,
confluent-kafka wrote both topics, in batches of 256 KB: logbus stores these batches unchanged, as
rows, and converts them to columns when they are read. Kafka's connector has one schema, so it
creates all columns and Spark drops some.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from peers.bench import Bench
from peers.row import FLOOR, Goal, Measures, Row, Side, Variant
from peers.spark import ALL, LINES, Both, rate
from peers.spark_session import SparkHost
from peers.spark_variants import LZ4, SOURCE, TUNED_BOUND, is_advised, variants


@contextlib.contextmanager
def open_read(
    bench: Bench, chosen: Variant, *, columns: list[str], by: str = "spark"
) -> Iterator[Mapping[str, Side]]:
    count, sides = bench.size(LINES), Both(bench, chosen)
    topics = sides.filled(count, by)

    def run(name: str) -> Measures:
        source = sides.source(name, topics[name])
        return rate(count, sides.spark.call("read", source=source, columns=columns)["seconds"])

    yield sides.sides(run) | sides.floor(count, "read", source=sides.ready(count), columns=columns)


@contextlib.contextmanager
def open_first(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    """Open the variant of the benchmark in which each run starts a new Spark session.

    Times run from load() to the end, without the start of the session. Processor seconds include
    this start.
    """
    count, sides = bench.size(LINES), Both(bench, chosen)
    topics = sides.filled(count)

    def run(source: Mapping[str, Any]) -> Measures:
        session = SparkHost(is_advised(chosen))
        with bench.counting(session.processes), session as spark:
            return rate(count, spark.call("read", source=source, columns=ALL)["seconds"])

    opened = sides.sides(lambda name: run(sides.source(name, topics[name])))
    opened[FLOOR] = Side(partial(run, sides.ready(count)), sides.spark.processes)
    yield {name: dataclasses.replace(side, within=bench.within) for name, side in opened.items()}


VARIANTS = variants(source=SOURCE)
ROWS = (
    Row(
        "spark-read",
        1,
        "Spark batch read of log lines, seven columns, warm",
        goals=(Goal("rows_per_s", 3.0),),
        open=partial(open_read, columns=ALL),
        variants=VARIANTS,
        bound=TUNED_BOUND,
    ),
    Row(
        "spark-read-first",
        1,
        "Spark batch read of log lines, the first thing that a new session does",
        goals=(Goal("rows_per_s", 1.2),),
        open=open_first,
        variants=tuple(each for each in VARIANTS if each.name != LZ4),
        bound="Spark starts four Python processes before the first row: to find the "
        "format, create the reader, plan, and read. *At most*: a Python source that does nothing "
        "(the side floor)",
        quick=False,
    ),
    Row(
        "spark-read-two-columns",
        2,
        "Spark batch read, only value and offset",
        goals=(Goal("rows_per_s", 4.0),),
        open=partial(open_read, columns=["value", "offset"]),
        variants=VARIANTS,
        bound=TUNED_BOUND,
    ),
    Row(
        "spark-read-rows",
        2,
        "Spark batch read of a topic that a Kafka client wrote, seven columns",
        goals=(Goal("rows_per_s", 1.5),),
        open=partial(open_read, columns=ALL, by="client"),
        variants=VARIANTS,
        bound=TUNED_BOUND,
        quick=False,
    ),
)
