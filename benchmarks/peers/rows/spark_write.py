"""Benchmark 4: Spark writes log lines to a topic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from peers.bench import Bench
from peers.row import FLOOR, Goal, Measures, Row, Side, Variant
from peers.spark import LINES, PARTITIONS, Both, must_be, rate
from peers.spark_session import ending
from peers.spark_variants import EXACTLY_ONCE, ONCE, SINK, variant, variants


@contextlib.contextmanager
def open_write(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    count, sides = bench.size(LINES), Both(bench, chosen)
    folder = str(sides.lines(count))

    def rows_in(name: str, topic: str) -> int:
        if chosen.name != EXACTLY_ONCE:
            return sides.count(name, topic)
        # Count the rows by reading them: end offsets also count the markers of transactions.
        rows: int = sides.spark.call("aggregate", source=sides.source(name, topic))["result"][0]
        return rows

    def run(name: str) -> Measures:
        with sides.servers[name].topic(PARTITIONS) as topic:
            target = sides.target(name, topic)
            done = sides.spark.call("write", folder=folder, target=target)
            must_be(count, rows_in(name, topic), name)
        return rate(count, done["seconds"])

    yield sides.sides(run) | sides.floor(count, "write", folder=folder, target=ending(FLOOR))


VARIANTS = variants(sink=SINK)
ROWS = (
    Row(
        "spark-write",
        4,
        "Spark write of log lines, warm",
        goals=(
            *(Goal("rows_per_s", 2.5, variant=each.name) for each in VARIANTS),
            Goal("rows_per_s", 2.2, variant=EXACTLY_ONCE),
        ),
        open=open_write,
        variants=(*VARIANTS, variant(EXACTLY_ONCE, sink=ONCE)),
        bound="the processor: Spark's JVM and its Python workers take two thirds. *At most*: a "
        "sink that drops its rows (the side floor)",
    ),
)
