"""Row 3: a stream works off a backlog and ends (availableNow)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from broker_lite.client.administration.admin import Admin
from peers.bench import Bench
from peers.row import KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.servers import LogbusServers
from peers.spark import LINES, Both, Servers, both, must_be, rate
from peers.spark_variants import (
    AS_ADVISED,
    DEFAULTS,
    LZ4,
    SOURCE,
    TUNED,
    reading,
    variant,
    writing,
)

BACKLOG_BYTES = 5_000_000_000
BACKLOG_WRITES = 3
LINES_A_WRITE = 2_000_000
"""The backlog is written in parts, so that the input stays small."""


@contextlib.contextmanager
def open_stream(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    step = bench.size(LINES)
    count = BACKLOG_WRITES * step
    with both(bench, chosen) as sides:
        topics = {
            name: _fill(sides, chosen, name, BACKLOG_WRITES, step) for name in (LOGBUS, KAFKA)
        }
        nothing = {name: sides.servers[name].new_topic() for name in topics}
        value_bytes = round(sum(map(len, bench.lines.whole(10_000))) / 10_000)

        def run(name: str) -> Measures:
            where = sides.where(name) | {"options": reading(chosen, name)}
            empty = sides.spark.call("stream", **where, topic=nothing[name])
            floor = sides.spark.call("stream_nothing")
            done = sides.spark.call("stream", **where, topic=topics[name])
            must_be(count, done["rows"], name)
            ready = sides.spark.call("stream_nothing", rows=count, value_bytes=value_bytes)
            return {
                **rate(count, done["seconds"]),
                "floor_rows_per_s": round(ready["rows"] / ready["seconds"]),
                "empty_query_s": round(empty["seconds"], 3),
                "python_floor_s": round(floor["seconds"], 3),
            }

        yield {name: sides.side(name, partial(run, name)) for name in (LOGBUS, KAFKA)}


@contextlib.contextmanager
def open_catch_up(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    """The backlog is on disk: before each run its pages are dropped from the page cache."""
    with both(bench, chosen) as sides:
        parts, step = _parts(bench)
        topics = {name: _fill(sides, chosen, name, parts, step) for name in (LOGBUS, KAFKA)}
        count = parts * step
        files = {name: segments(sides.servers[name], topic) for name, topic in topics.items()}

        def run(name: str) -> Measures:
            for path in files[name]:
                _forget(path)
            where = sides.where(name) | {"options": reading(chosen, name)}
            done = sides.spark.call("stream", **where, topic=topics[name])
            must_be(count, done["rows"], name)
            stored = sum(path.stat().st_size for path in files[name]) / 1e6
            return {**rate(count, done["seconds"]), "backlog_mb": stored}

        try:
            yield {name: sides.side(name, partial(run, name)) for name in (LOGBUS, KAFKA)}
        finally:
            for name, topic in topics.items():
                sides.servers[name].delete_topic(topic)


def _parts(bench: Bench) -> tuple[int, int]:
    """How often how many lines are written."""
    step = bench.size(LINES_A_WRITE)
    line = sum(map(len, bench.lines.whole(10_000))) / 10_000
    return max(1, round(bench.size(BACKLOG_BYTES) / line / step)), step


def _fill(sides: Both, chosen: Variant, name: str, parts: int, step: int) -> str:
    topic = sides.servers[name].new_topic(4)
    folder = str(sides.lines(step))
    where = sides.where(name) | {"options": writing(chosen, name)}
    for _ in range(parts):
        sides.spark.call("write", **where, topic=topic, folder=folder)
    must_be(parts * step, sides.count(name, topic), name)
    return topic


def segments(servers: Servers, topic: str) -> list[Path]:
    """A topic's segments; logbus names their folders by the topic's id."""
    name = topic
    if isinstance(servers, LogbusServers):
        with Admin(servers.bootstrap_servers) as admin:
            name = admin.cluster([topic]).topics[topic].topic_id
    found = [path for each in servers.data_folders() for path in each.rglob(f"{name}-*/*.log")]
    if not found:
        raise RuntimeError(f"{topic} has no segments in {servers.data_folders()}")
    return found


def _forget(path: Path) -> None:
    """Let the page cache drop a segment, as if it had been written long ago."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def by_floor_measured(sides: Mapping[str, Any]) -> float:
    """The best ratio that any source in Python could have: the floor, which both sides' runs
    measured, through Kafka's connector."""
    floor = max(float(each["median"]["floor_rows_per_s"]) for each in sides.values())
    return floor / float(sides[KAFKA]["median"]["rows_per_s"])


VARIANTS = (
    variant(DEFAULTS),
    variant(AS_ADVISED),
    variant(LZ4),
    variant(TUNED, source=SOURCE),
)

ROWS = (
    Row(
        "spark-stream",
        3,
        "Spark stream of log lines, availableNow over a backlog, to its end",
        goals=(Goal("rows_per_s", 3.0),),
        open=open_stream,
        variants=VARIANTS,
        note="from start() to the end of the query, with its checkpoint; empty_query_s is the "
        "same with nothing to read: what starting and ending a query costs; python_floor_s the "
        "same again with a Python source that does nothing: what Spark takes for itself; "
        "floor_rows_per_s: as many rows of that size from a Python source that has them ready, "
        "which no such source can exceed; logbus reads the backlog from the disk each time "
        "(unread.cached.bytes, and a stream keeps nothing of it), Kafka from the page cache; "
        "processor seconds are of all four queries",
        bound="what Spark does itself: *at most* is a Python source that has its rows ready "
        "(floor_rows_per_s) through Kafka's connector, and logbus is at seven to eight tenths "
        "of it. Starting a query takes Spark a Python process for such a source "
        "(python_floor_s; Kafka's connector is in the JVM, and its empty_query_s is 0.2 s), of "
        "which logbus's own share is 0.1 s; with Spark as it comes that process takes a second "
        "(README)",
        ceiling=by_floor_measured,
    ),
    Row(
        "spark-catch-up",
        3,
        "Spark stream of log lines, availableNow over a backlog of 5 GB on disk",
        goals=(Goal("rows_per_s", 3.0),),
        open=open_catch_up,
        variants=VARIANTS,
        note="the backlog's pages are dropped from the page cache before each run; the lines "
        "repeat every 2,000,000, which nothing here can profit from",
        bound="the processor, busy for nine tenths of the time: Spark's JVM takes rows from Python "
        "workers that read them from the disk and check them, 0.9 GB in a second",
        quick=False,
        seconds_max=1500,
    ),
)
