"""Read ranges of offsets of a topic, for a search or an export, within the limits of a search.

A ``FetchPosition`` checks all fetched batches, in ``read_small_ranges`` as well as in a
consumer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_lite.bus.blocking import Bus
from broker_lite.client.closing import ClosedByWith
from broker_lite.client.consuming.arrow_rows import ConcatenatedSlices, arrow_rows
from broker_lite.client.consuming.consumer import Consumer
from broker_lite.client.fetch.small_ranges import SmallRange, read_small_ranges
from broker_lite.client.operations.cluster import ClusterView
from broker_lite.client.received import offsets_of
from broker_lite.model import TopicPartition
from broker_lite.record.arrays import fixed

RECORDS_MAX = 250_000
"""Maximum records that a search reads."""
BYTES_MAX = 256 * 1024 * 1024
"""Maximum bytes that a search reads, as Arrow columns."""
SECONDS_MAX = 10.0
"""Seconds after which a search stops."""
POLL_S = 0.5
"""Maximum seconds of one poll of the consumer."""
ROWS_MAX = 500
"""Maximum records of one poll. The limit bounds the memory: each record may be in a batch of its
own, which takes 12 kB or more."""
FETCH_BYTES = 1024 * 1024
"""Maximum bytes of a fetch response."""
READ_OPTIONS: Mapping[str, Any] = {
    "start": "earliest",
    "auto_commit": False,
    # Keep fetches small and read no local files: otherwise the buffers take 80 MB, which the
    # process would never release.
    "fetch_max_bytes": FETCH_BYTES,
    "partition_fetch_bytes": 256 * 1024,
    "local_reads": False,
}
COMMON_FETCH_MS = 2000
"""Maximum milliseconds to wait for the fetch from a leader that reads several small ranges.
Afterwards a consumer reads them."""

Ranges = dict[TopicPartition, tuple[int, int]]
"""The first offset to read and the end offset (exclusive), by partition."""
Limit = Literal["records", "bytes", "seconds"]


class SearchBudget:
    """Counts the records, bytes and seconds of a search, and compares them with the limits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.records = self.size_bytes = 0

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def count(self, batch: pa.RecordBatch) -> None:
        self.records += batch.num_rows
        self.size_bytes += batch.nbytes

    @property
    def spent(self) -> Limit | None:
        """The limit that the search has reached; None if it may continue."""
        if self.records >= RECORDS_MAX:
            return "records"
        if self.size_bytes >= BYTES_MAX:
            return "bytes"
        return "seconds" if self.seconds >= SECONDS_MAX else None


class RangesReader(ClosedByWith):
    """Reads the partitions of ``ranges``, without a group.

    A consumer reads ranges of any size. It is opened only when it is needed, because to open it
    takes longer than to read the few records of a page. Few records are fetched without it, from
    the leaders in ``view``, which may be some seconds old."""

    def __init__(self, bus: Bus, view: ClusterView, ranges: Ranges) -> None:
        self._bus = bus
        self._view = view
        self._tps = list(ranges)
        self._consumer: Consumer | None = None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def batches(
        self, ranges: Ranges, budget: SearchBudget, expected_bytes: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the ranges until all ranges are read or the budget is spent.

        Before it yields a batch, this generator moves the first offsets of ``ranges`` past the
        batch, and removes the ranges that it has read to their end. If few bytes are expected
        (None: unknown), it sends one fetch to each leader before a consumer reads the rest."""
        if expected_bytes is not None and expected_bytes <= FETCH_BYTES:
            yield from self._fetched_together(ranges, budget)
        if ranges and budget.spent is None:
            yield from self._consumed(ranges, budget)

    def _fetched_together(self, ranges: Ranges, budget: SearchBudget) -> Iterator[pa.RecordBatch]:
        """Yield the records of those ranges that one fetch from each leader returns completely."""
        view = self._view
        located = [
            SmallRange(tp, view.topic_id(tp.topic), view.leader_epoch(tp), leader, *ranges[tp])
            for tp in ranges
            if (leader := view.leader(tp)) is not None
        ]
        found = read_small_ranges(
            located,
            pool=self._bus.admin.pool,
            fetch_bytes=FETCH_BYTES,
            isolation="read_committed",
            request_timeout_ms=COMMON_FETCH_MS,
        )
        joined = ConcatenatedSlices()
        for item, slices in zip(located, found):
            for rows in slices or ():
                if joined.row_count >= ROWS_MAX or not joined.add(item.tp, rows):
                    ranges[item.tp] = (int(offsets_of(rows)[0]), item.end)
                    yield _joined(joined, budget)
                    if budget.spent is not None:
                        return
                    joined = ConcatenatedSlices()
                    joined.add(item.tp, rows)
            if slices is not None:
                del ranges[item.tp]
        if joined.slices:
            yield _joined(joined, budget)

    def _consumed(self, ranges: Ranges, budget: SearchBudget) -> Iterator[pa.RecordBatch]:
        """Yield the records of the ranges, read with a consumer."""
        if self._consumer is None:
            self._consumer = self._bus.consumer(partitions=self._tps, **READ_OPTIONS)
        consumer = self._consumer
        for tp, (first, _) in ranges.items():
            consumer.seek(tp, first)
            consumer.resume(tp)
        idle = [tp for tp in consumer.assignment() if tp not in ranges]
        if idle:
            consumer.pause(*idle)
        ends = {tp: end for tp, (_, end) in ranges.items()}
        while ranges and budget.spent is None:
            batch = consumer.poll_arrow(POLL_S, headers=True, max_rows=ROWS_MAX)
            budget.count(batch)
            for tp in list(ranges):
                position = consumer.position(tp)
                if position >= ends[tp]:
                    del ranges[tp]
                    consumer.pause(tp)
                else:
                    ranges[tp] = (max(position, ranges[tp][0]), ends[tp])
            if batch.num_rows:
                yield _before(batch, ends)


def _joined(slices: ConcatenatedSlices, budget: SearchBudget) -> pa.RecordBatch:
    batch = arrow_rows(slices.slices, headers=True)
    budget.count(batch)
    return batch


def _before(batch: pa.RecordBatch, ends: Mapping[TopicPartition, int]) -> pa.RecordBatch:
    """Return the rows of ``batch`` whose offsets are below the end offset of their partition. A
    fetched batch may reach beyond the end of the searched range."""
    numbers = fixed(np.fromiter((tp.partition for tp in ends), np.int32, len(ends)), pa.int32())
    limits = fixed(np.fromiter(ends.values(), np.int64, len(ends)), pa.int64())
    partitions = batch.column("partition").cast(pa.int32())
    index = pc.index_in(partitions, value_set=numbers)
    return batch.filter(pc.less(batch.column("offset"), limits.take(index)))
