"""Benchmark 5: Spark reads a topic, filters, aggregates, and writes to another topic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial

from peers.bench import Bench
from peers.row import KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.rows.produce import FLUSH_NOTE
from peers.spark import LINES, PARTITIONS, both, must_agree, rate
from peers.spark_variants import (
    SINK,
    SOURCE,
    TUNED_BOUND,
    reading,
    variants,
    writing,
)

ACCESS_LOG = ('" 404 ', 7)
"""The text of errors in an access log, and the index of the word to count by: the page."""
SOURCE_CODE = ("return", 1)


def wanted(bench: Bench) -> tuple[str, int]:
    """Return the text that selects a line, and the index of the word to count by."""
    some = b"\n".join(bench.lines.whole(10_000))
    return ACCESS_LOG if ACCESS_LOG[0].encode() in some else SOURCE_CODE


@contextlib.contextmanager
def open_pipeline(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    count = bench.size(LINES)
    needle, word = wanted(bench)
    with both(bench, chosen) as sides:
        sources = sides.filled(count, chosen.compression[LOGBUS])
        written: dict[str, int] = {}
        query = {"needle": needle, "word": word}

        def run(name: str) -> Measures:
            target = sides.servers[name].new_topic(PARTITIONS)
            try:
                done = sides.spark.call(
                    "pipeline",
                    source=sides.end(name, sources[name], reading(chosen, name)),
                    target=sides.end(name, target, writing(chosen, name)),
                    **query,
                )
                written[name] = sides.count(name, target)
                must_agree(written)
                if not written[name]:
                    raise RuntimeError(f"no line has {needle!r} in it")
            finally:
                sides.servers[name].delete_topic(target)
            return {**rate(count, done["seconds"]), "rows_written": written[name]}

        found = {name: sides.side(name, partial(run, name)) for name in (LOGBUS, KAFKA)}
        # The floor (the side that does only the necessary work) has no sink, because reading takes
        # most of the time and the sinks write few rows.
        found |= sides.floor(count, "pipeline", source=sides.ready(count), target=sides.dropped(),
                             **query)  # fmt: skip
        yield found


ROWS = (
    Row(
        "spark-pipeline",
        5,
        "Spark: read a topic, filter, aggregate, write to another topic",
        goals=(Goal("rows_per_s", 2.5),),
        open=open_pipeline,
        variants=variants(source=SOURCE, sink=SINK),
        note="counts the errors of an access log by page: few rows pass the filter; logbus reads "
        f"only the value (.schema), Kafka's connector always reads all columns; {FLUSH_NOTE}",
        bound=TUNED_BOUND,
    ),
)
