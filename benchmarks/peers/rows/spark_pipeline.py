"""Benchmark 5: Spark reads a topic, filters, aggregates, and writes to another topic.

The query counts the errors of an access log by page: few rows pass the filter. logbus reads only
the value (``reader.schema``); Kafka's connector always reads all columns. The floor (the side that
does only the necessary work) has no sink, because reading takes most of the time and the sinks
write few rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from peers.bench import Bench
from peers.row import FLOOR, Goal, Measures, Row, Side, Variant
from peers.spark import LINES, PARTITIONS, Both, must_agree, rate
from peers.spark_session import ending
from peers.spark_variants import SINK, SOURCE, TUNED_BOUND, variants

ACCESS_LOG = {"needle": '" 404 ', "word": 7}
"""The text that marks an error in an access log, and the index of the line's word, the page, by
which errors are counted."""
SOURCE_CODE = {"needle": "return", "word": 1}


@contextlib.contextmanager
def open_pipeline(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    count, sides = bench.size(LINES), Both(bench, chosen)
    some = b"\n".join(bench.lines.whole(10_000))
    query = ACCESS_LOG if b'" 404 ' in some else SOURCE_CODE
    sources = sides.filled(count)
    written: dict[str, int] = {}

    def run(name: str) -> Measures:
        with sides.servers[name].topic(PARTITIONS) as topic:
            source, target = sides.source(name, sources[name]), sides.target(name, topic)
            done = sides.spark.call("pipeline", source=source, target=target, **query)
            written[name] = sides.count(name, topic)
            must_agree(written)
            assert written[name], f"no line has {query['needle']!r} in it"
        return rate(count, done["seconds"])

    ends = {"source": sides.ready(count), "target": ending(FLOOR)}
    yield sides.sides(run) | sides.floor(count, "pipeline", **ends, **query)


ROWS = (
    Row(
        "spark-pipeline",
        5,
        "Spark: read a topic, filter, aggregate, write to another topic",
        goals=(Goal("rows_per_s", 2.5),),
        open=open_pipeline,
        variants=variants(source=SOURCE, sink=SINK),
        bound=TUNED_BOUND,
    ),
)
