"""Benchmark 3: a streaming query with availableNow processes a backlog and ends.

Times run from start() to the end of the query, including its checkpoint. The floor, the
fastest possible Python source, has as many rows ready in memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from peers.bench import Bench
from peers.row import Goal, Measures, Row, Side, Variant
from peers.servers import LogbusServers, Servers
from peers.spark import LINES, PARTITIONS, Both, must_be, rate
from peers.spark_variants import SOURCE, variants

BACKLOG_BYTES = 5_000_000_000
LINES_A_WRITE = 2_000_000
"""Maximum lines of one write. The backlog repeats these lines, so the Parquet input stays small."""


def _warm(bench: Bench) -> tuple[int, int]:
    """Return the number of writes for a backlog that fits into memory, and of lines in each."""
    return 3, bench.size(LINES)


def _cold(bench: Bench) -> tuple[int, int]:
    """Return the number of writes for the backlog, and of lines in each. Every write repeats the
    same lines, on both sides alike."""
    step = bench.size(LINES_A_WRITE)
    line = sum(map(len, bench.lines.whole(10_000))) / 10_000
    return max(1, round(bench.size(BACKLOG_BYTES) / line / step)), step


@contextlib.contextmanager
def open_stream(bench: Bench, chosen: Variant, *, is_cold: bool) -> Iterator[Mapping[str, Side]]:
    """Write a backlog to the sides (compared systems); yield them.

    If ``is_cold``, the pages of the backlog are dropped from the page cache before each run.
    Otherwise logbus reads the backlog from the disk each time (unread.cached.bytes limits its
    cache), Kafka from the page cache.
    """
    sides = Both(bench, chosen)
    parts, step = (_cold if is_cold else _warm)(bench)
    count, folder = parts * step, str(sides.lines(step))
    with contextlib.ExitStack() as stack:
        topics = {}
        for name, servers in sides.servers.items():
            topic = topics[name] = stack.enter_context(servers.topic(PARTITIONS))
            for _ in range(parts):
                sides.spark.call("write", folder=folder, target=sides.target(name, topic))
            must_be(count, sides.count(name, topic), name)

        def run(name: str) -> Measures:
            if is_cold:
                for path in segments(sides.servers[name], topics[name]):
                    _forget(path)
            done = sides.spark.call("stream", source=sides.source(name, topics[name]))
            must_be(count, done["rows"], name)
            return rate(count, done["seconds"])

        yield sides.sides(run) | sides.floor(count, "stream", source=sides.ready(count))


def segments(servers: Servers, topic: str) -> list[Path]:
    """Return the segment files of a topic; logbus names its folders by topic id, Kafka by name."""
    name = topic
    if isinstance(servers, LogbusServers):
        name = servers.bus.admin.cluster([topic]).topics[topic].topic_id
    found = [path for each in servers.data_folders() for path in each.rglob(f"{name}-*/*.log")]
    assert found, f"{topic} has no segments in {servers.data_folders()}"
    return found


def _forget(path: Path) -> None:
    """Drop the pages of a segment file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _row(name: str, work: str, bound: str, *, is_cold: bool, seconds_max: float = 600.0) -> Row:
    return Row(
        name,
        3,
        f"Spark stream of log lines, availableNow over a backlog{work}",
        goals=(Goal("rows_per_s", 3.0),),
        open=partial(open_stream, is_cold=is_cold),
        variants=variants(source=SOURCE),
        bound=f"{bound}. *At most*: a Python source that has its rows ready (the side floor)",
        quick=not is_cold,
        seconds_max=seconds_max,
    )


ROWS = (
    _row(
        "spark-stream",
        ", to its end",
        "Spark itself: it starts a Python process for each query with a Python source",
        is_cold=False,
    ),
    _row(
        "spark-catch-up",
        " of 5 GB on disk",
        "the processor: Spark's JVM takes rows from Python workers that read and check them",
        is_cold=True,
        seconds_max=1500,
    ),
)
