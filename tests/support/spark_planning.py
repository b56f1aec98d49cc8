"""Run the source's planner on real brokers as Spark does, but without Spark."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from broker_lite.bus import Bus
from pyspark_logbus import options
from pyspark_logbus.batch_planner import plan_batch
from pyspark_logbus.offset_ranges import OffsetRange
from pyspark_logbus.partition_reader import read_ranges
from pyspark_logbus.schema import source_schema
from pyspark_logbus.stream_planner import StreamPlanner
from support.patience import until
from support.range_rows import plan_of

DEADLINE_S = 30
_NUMBERS = itertools.count()

Document = dict[str, Any]
Range = tuple[int, int, int]


def make_planner(bus: Bus, **given: str) -> StreamPlanner:
    """Return a planner of a streaming source with short refresh intervals; the caller stops it."""
    given.setdefault("metadata.max.age.ms", "100")
    given.setdefault("fetchOffset.retryIntervalMs", "50")
    found = options.read_options(options.parse(given), bus.bootstrap_servers, streaming=True)
    return StreamPlanner(found)


def new_topic(bus: Bus, *counts: int, name: str | None = None, **config: object) -> str:
    """Create a topic with ``counts[p]`` records 0, 1, … in each partition p; return its name."""
    name = name or f"plan-{os.getpid()}-{next(_NUMBERS)}"
    bus.create_topic(name, partitions=len(counts), config=config)
    fill(bus, name, *counts)
    return name


def fill(bus: Bus, topic: str, *counts: int, start_ms: int | None = None) -> None:
    """Append ``counts[p]`` records to each partition p.

    Timestamps begin at ``start_ms`` and are 1 ms apart.
    """
    with bus.producer() as producer:
        for partition, count in enumerate(counts):
            for number in range(count):
                stamp = None if start_ms is None else start_ms + number
                value = str(number).encode()
                producer.send(topic, value, partition=partition, timestamp_ms=stamp)


def batch(bus: Bus, **given: str) -> list[Range]:
    """Plan a batch query; return its ranges as (partition, start offset, end offset)."""
    found = options.read_options(options.parse(given), bus.bootstrap_servers, streaming=False)
    return [(r.partition, r.start, r.end) for task in plan_batch(found) for r in task]


def begin_query(planner: StreamPlanner) -> Document:
    """Make the calls by which Spark starts a new query; return the first batch's end offset."""
    return planner.latest_offset(planner.initial_offset(), unlimited=False)


def step(planner: StreamPlanner, at: Document, *, unlimited: bool = False) -> Document:
    """Wait until the planner sees new records; return the end offset of the next batch."""
    end: Document = until(
        lambda: planner.latest_offset(at, unlimited=unlimited), lambda end: end != at
    )
    return end


def ends(document: Document, topic: str) -> list[int]:
    """Return a topic's offsets from a source offset of Spark (JSON), in partition order."""
    offsets = document["topics"][topic]["offsets"]
    return [offsets[number] for number in sorted(offsets, key=int)]


def rows(planner: StreamPlanner, begin: Document, end: Document) -> list[Range]:
    """Return the ranges of a micro-batch as sorted (partition, start offset, end offset)."""
    return sorted(
        (r.partition, r.start, r.end) for task in planner.ranges(begin, end) for r in task
    )


def values_of(
    bus: Bus, ranges: Iterable[OffsetRange], fail: bool, *, request_timeout_ms: int = 10_000
) -> list[bytes]:
    """Return the values that a task reads from these ranges."""
    given = {
        "failOnDataLoss": str(fail),
        "isolation.level": "read_uncommitted",
        "max.partition.fetch.bytes": str(1 << 20),
        "pollTimeoutMs": "600000",
        "request.timeout.ms": str(request_timeout_ms),
    }
    plan = plan_of(bus.bootstrap_servers, source_schema(False), **given)
    return [v for found in read_ranges(ranges, plan) for v in found.column("value").to_pylist()]


def fails(call: Callable[[], Any], error: type[Exception]) -> str:
    """Repeat the call until it raises the error; return the error's message."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            call()
        except error as raised:
            return str(raised)
        time.sleep(0.01)
    raise AssertionError(f"no {error.__name__}")
