"""Benchmark 3: a streaming query with availableNow processes a backlog and ends."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from broker_lite.client.administration.admin import Admin
from peers.bench import Bench
from peers.row import FLOOR, KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.servers import LogbusServers
from peers.spark import LINES, Both, Servers, both, must_be, rate
from peers.spark_variants import SOURCE, reading, variants, writing

BACKLOG_BYTES = 5_000_000_000
BACKLOG_WRITES = 3
EMPTY_TURNS = 3
"""Number of queries of each side (compared system) over an empty backlog, after a query that does
not count."""
LINES_A_WRITE = 2_000_000
"""Maximum lines of one write: the backlog is written in parts, so that the input stays small."""


@contextlib.contextmanager
def open_stream(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    step = bench.size(LINES)
    count = BACKLOG_WRITES * step
    with both(bench, chosen) as sides:
        topics = {
            name: _fill(sides, chosen, name, BACKLOG_WRITES, step) for name in (LOGBUS, KAFKA)
        }
        empty = _empty_seconds(sides, chosen)

        def run(name: str) -> Measures:
            source = sides.end(name, topics[name], reading(chosen, name))
            done = sides.spark.call("stream", source=source)
            must_be(count, done["rows"], name)
            return rate(count, done["seconds"])

        found = {name: sides.side(name, partial(run, name)) for name in (LOGBUS, KAFKA)}
        found |= sides.floor(count, "stream", source=sides.ready(count))
        yield {
            name: dataclasses.replace(side, run=partial(_with_empty, side.run, empty[name]))
            for name, side in found.items()
            if name in empty
        }


def _with_empty(run: Callable[[], Measures], seconds: float) -> Measures:
    return {**run(), "empty_query_s": round(seconds, 3)}


def _empty_seconds(sides: Both, chosen: Variant) -> dict[str, float]:
    """Return the median seconds of each side's query that has no records to read.

    The first query of a side does not count.
    """
    sources = {
        name: sides.end(name, sides.servers[name].new_topic(), reading(chosen, name))
        for name in (LOGBUS, KAFKA)
    }
    if not sides.bench.is_left_out(FLOOR):
        sources[FLOOR] = sides.ready(0)
    taken: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(2 if sides.bench.quick else 1 + EMPTY_TURNS):
        for name, source in sources.items():
            taken[name].append(sides.spark.call("stream", source=source)["seconds"])
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


@contextlib.contextmanager
def open_catch_up(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    """Open the variant of the benchmark that reads its backlog from the disk.

    Before each run, the pages of the backlog are dropped from the page cache.
    """
    with both(bench, chosen) as sides:
        parts, step = _parts(bench)
        topics = {name: _fill(sides, chosen, name, parts, step) for name in (LOGBUS, KAFKA)}
        count = parts * step
        files = {name: segments(sides.servers[name], topic) for name, topic in topics.items()}

        def run(name: str) -> Measures:
            for path in files[name]:
                _forget(path)
            source = sides.end(name, topics[name], reading(chosen, name))
            done = sides.spark.call("stream", source=source)
            must_be(count, done["rows"], name)
            stored = sum(path.stat().st_size for path in files[name]) / 1e6
            return {**rate(count, done["seconds"]), "backlog_mb": stored}

        found = {name: sides.side(name, partial(run, name)) for name in (LOGBUS, KAFKA)}
        try:
            yield found | sides.floor(count, "stream", source=sides.ready(count))
        finally:
            for name, topic in topics.items():
                sides.servers[name].delete_topic(topic)


def _parts(bench: Bench) -> tuple[int, int]:
    """Return the number of writes of the backlog, and the number of lines of each write."""
    step = bench.size(LINES_A_WRITE)
    line = sum(map(len, bench.lines.whole(10_000))) / 10_000
    return max(1, round(bench.size(BACKLOG_BYTES) / line / step)), step


def _fill(sides: Both, chosen: Variant, name: str, parts: int, step: int) -> str:
    topic = sides.servers[name].new_topic(4)
    folder = str(sides.lines(step))
    target = sides.end(name, topic, writing(chosen, name))
    for _ in range(parts):
        sides.spark.call("write", folder=folder, target=target)
    must_be(parts * step, sides.count(name, topic), name)
    return topic


def segments(servers: Servers, topic: str) -> list[Path]:
    """Return the segment files of a topic; logbus names its folders by topic id, Kafka by name."""
    name = topic
    if isinstance(servers, LogbusServers):
        with Admin(servers.bootstrap_servers) as admin:
            name = admin.cluster([topic]).topics[topic].topic_id
    found = [path for each in servers.data_folders() for path in each.rglob(f"{name}-*/*.log")]
    if not found:
        raise RuntimeError(f"{topic} has no segments in {servers.data_folders()}")
    return found


def _forget(path: Path) -> None:
    """Drop the pages of a segment file from the page cache."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


VARIANTS = variants(source=SOURCE)

ROWS = (
    Row(
        "spark-stream",
        3,
        "Spark stream of log lines, availableNow over a backlog, to its end",
        goals=(Goal("rows_per_s", 3.0),),
        open=open_stream,
        variants=VARIANTS,
        note="times run from start() to the end of the query, with its checkpoint. empty_query_s, "
        "measured before the rounds, is the time of a query without records: the cost of starting "
        "and ending a query. The floor is a Python source with as many ready rows of that size; no "
        "Python source can be faster. logbus reads the backlog from the disk each time "
        "(unread.cached.bytes), Kafka from the page cache",
        bound="Spark itself: it starts a Python process for each query with a Python source. *At "
        "most*: a Python source that has its rows ready (the side floor)",
    ),
    Row(
        "spark-catch-up",
        3,
        "Spark stream of log lines, availableNow over a backlog of 5 GB on disk",
        goals=(Goal("rows_per_s", 3.0),),
        open=open_catch_up,
        variants=VARIANTS,
        note="before each run, the pages of the backlog are dropped from the page cache; lines "
        "repeat every 2,000,000 lines, which helps neither side",
        bound="the processor: Spark's JVM takes rows from Python workers that read and check them. "
        "*At most*: a Python source that has its rows ready (the side floor)",
        quick=False,
        seconds_max=1500,
    ),
)
