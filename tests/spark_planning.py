"""What the tests of planning share: a source's planner against real brokers, without Spark."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from patience import until

from broker_lite.bus import Bus
from pyspark_logbus import options
from pyspark_logbus.batch_planner import plan_batch
from pyspark_logbus.offset_ranges import OffsetRange
from pyspark_logbus.partition_reader import read_ranges
from pyspark_logbus.read_task import ReadPlan
from pyspark_logbus.schema import source_schema
from pyspark_logbus.stream_planner import StreamPlanner

DEADLINE_S = 30
_NUMBERS = itertools.count()

Document = dict[str, Any]
Range = tuple[int, int, int]


def make_planner(bus: Bus, **given: str) -> StreamPlanner:
    """A streaming source's planner that looks for news often; the caller stops it."""
    given.setdefault("metadata.max.age.ms", "100")
    given.setdefault("fetchOffset.retryIntervalMs", "50")
    found = options.read_options(options.parse(given), bus.bootstrap_servers, streaming=True)
    return StreamPlanner(found)


def new_topic(bus: Bus, *counts: int, name: str | None = None, **config: object) -> str:
    """A topic whose partitions hold so many records: values 0, 1, … in each."""
    name = name or f"plan-{os.getpid()}-{next(_NUMBERS)}"
    bus.create_topic(name, partitions=len(counts), config=config)
    fill(bus, name, *counts)
    return name


def fill(bus: Bus, topic: str, *counts: int, start_ms: int | None = None) -> None:
    """So many more records in each partition, from ``start_ms`` on one a millisecond."""
    with bus.producer() as producer:
        for partition, count in enumerate(counts):
            for number in range(count):
                stamp = None if start_ms is None else start_ms + number
                value = str(number).encode()
                producer.send(topic, value, partition=partition, timestamp_ms=stamp)


def batch(bus: Bus, **given: str) -> list[Range]:
    """The ranges of a batch query."""
    found = options.read_options(options.parse(given), bus.bootstrap_servers, streaming=False)
    return [(r.partition, r.start, r.end) for task in plan_batch(found) for r in task]


def begin_query(planner: StreamPlanner) -> Document:
    """What Spark asks at the start of a query that has no checkpoint."""
    return planner.latest_offset(planner.initial_offset(), unlimited=False)


def step(planner: StreamPlanner, at: Document, *, unlimited: bool = False) -> Document:
    """The next batch's end, once there is one."""
    end: Document = until(
        lambda: planner.latest_offset(at, unlimited=unlimited), lambda end: end != at
    )
    return end


def ends(document: Document, topic: str) -> list[int]:
    """An offset's ends in a topic, by partition."""
    offsets = document["topics"][topic]["offsets"]
    return [offsets[number] for number in sorted(offsets, key=int)]


def rows(planner: StreamPlanner, begin: Document, end: Document) -> list[Range]:
    """The ranges of a micro-batch."""
    return sorted(
        (r.partition, r.start, r.end) for task in planner.ranges(begin, end) for r in task
    )


def values_of(
    bus: Bus, ranges: Iterable[OffsetRange], fail: bool, *, request_timeout_ms: int = 10_000
) -> list[bytes]:
    """What a task reads of these ranges."""
    plan = ReadPlan(
        bus.bootstrap_servers, source_schema(False), fail, "read_uncommitted", 1 << 20, True,
        600_000, request_timeout_ms, "test",
    )  # fmt: skip
    return [v for found in read_ranges(ranges, plan) for v in found.column("value").to_pylist()]


def fails(call: Callable[[], Any], error: type[Exception]) -> str:
    """Call until it raises the error, and give it."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            call()
        except error as raised:
            return str(raised)
        time.sleep(0.01)
    raise AssertionError(f"no {error.__name__}")
