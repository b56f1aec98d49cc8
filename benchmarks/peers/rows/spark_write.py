"""Benchmark 4: Spark writes log lines to a topic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial

from peers.bench import Bench
from peers.row import KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.rows.produce import FLUSH_NOTE
from peers.spark import LINES, PARTITIONS, both, must_be, rate
from peers.spark_variants import (
    AS_ADVISED,
    DEFAULTS,
    EXACTLY_ONCE,
    LZ4,
    ONCE,
    SINK,
    TUNED,
    variant,
    variants,
    writing,
)


@contextlib.contextmanager
def open_write(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    count = bench.size(LINES)
    with both(bench, chosen) as sides:
        folder = str(sides.lines(count))
        sides.spark.call("generate", folder=folder)
        alone = min(sides.spark.call("generate", folder=folder)["seconds"] for _ in range(3))

        def rows_in(name: str, topic: str) -> int:
            if chosen.name != EXACTLY_ONCE:
                return sides.count(name, topic)
            # End offsets count the markers of transactions too, so read the rows.
            rows: int = sides.spark.call("aggregate", source=sides.end(name, topic))["result"][0]
            return rows

        def run(name: str) -> Measures:
            topic = sides.servers[name].new_topic(PARTITIONS)
            try:
                target = sides.end(name, topic, writing(chosen, name))
                done = sides.spark.call("write", folder=folder, target=target)
                must_be(count, rows_in(name, topic), name)
            finally:
                sides.servers[name].delete_topic(topic)
            return {**rate(count, done["seconds"]), "input_alone_s": round(alone, 3)}

        floor = sides.floor(count, "write", folder=folder, target=sides.dropped())
        yield {name: sides.side(name, partial(run, name)) for name in (LOGBUS, KAFKA)} | floor


ROWS = (
    Row(
        "spark-write",
        4,
        "Spark write of log lines, warm",
        goals=(
            *(Goal("rows_per_s", 2.5, variant=name) for name in (DEFAULTS, AS_ADVISED, LZ4, TUNED)),
            Goal("rows_per_s", 2.2, variant=EXACTLY_ONCE),
        ),
        open=open_write,
        variants=(*variants(sink=SINK), variant(EXACTLY_ONCE, sink=ONCE)),
        note=f"{FLUSH_NOTE}; input_alone_s is the time to read the Parquet input without a sink",
        bound="the processor: Spark's JVM and its Python workers take two thirds. *At most*: a "
        "sink that drops its rows (the side floor)",
    ),
)
