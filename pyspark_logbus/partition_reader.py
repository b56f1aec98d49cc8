"""Read offset ranges into Arrow batches with the schema that Spark expects.

A large record batch becomes one Arrow batch. Small record batches are joined. For lost records the
reader raises DataLossError; with failOnDataLoss=false it skips, logs and counts them. The client's
``FetchPosition`` finds lost records; this module only finds records newer than the plan. The reader
runs in executors, on the worker's main thread, while the client fetches ahead on another thread.
The module's only state is the process's connection pool.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from broker_lite.client.discovery import security_for
from broker_lite.client.fetch.range_reader import FetchedBatch, read_range
from broker_lite.client.fetch.small_ranges import SmallRange, read_small_ranges
from broker_lite.client.received import LogTruncatedError
from broker_lite.client.transport.pool import shared_pool
from broker_lite.errors import (
    CorruptMessageError,
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import EARLIEST_TIMESTAMP, TopicPartition
from pyspark_logbus.losses import CURE
from pyspark_logbus.offset_ranges import OffsetRange
from pyspark_logbus.read_task import ReadPlan
from pyspark_logbus.row_columns import Part, build

log = logging.getLogger("pyspark_logbus")

SMALL_ROWS = 1_000
"""Record batches with fewer rows than this are joined, because Spark spends about as much time on
an Arrow batch as on a thousand rows."""
SMALL_RANGE_BYTES = 256 << 10
"""Stored bytes up to which a range shares a fetch with other ranges. A larger range has its own
fetch, or is read from the segment files of a broker on the same machine."""
JOINED_ROWS = 10_000
JOINED_BYTES = 4 << 20
"""A group of record batches that become one Arrow batch ends at this many decoded bytes. The bytes
in the log do not count, because compressed batches may be a thousand times smaller."""
ROWS_MAX = 1 << 16
"""Maximum rows of an Arrow batch. A few bytes of the log can hold millions of rows, if all values
are null. With the topic's name in each row, these rows would exceed the 2 GiB of an Arrow
column."""
ROW_BYTES = 48
"""Estimated bytes of a row apart from key, value and headers: topic, partition, offset, timestamp
and the entries in the Arrow offset buffers of its other columns."""

PLANNED_ONCE = (
    "A DataFrame or temporary view keeps the offsets of its first action: load() it again to read "
    "the records that the topic holds now"
)
"""A hint in a batch query's error about lost records. Spark plans the partitions of a Python source
once for each load(), so later actions read the same offsets."""


@dataclass
class SkippedRows:
    """The records that this worker process skipped under failOnDataLoss=false."""

    records: int = 0
    ranges: int = 0

    def add(self, tp: TopicPartition, first: int, end: int, reason: str) -> None:
        """Count and log the skipped records ``first`` to ``end`` (exclusive). An executor has no
        way to report them to the driver except its log."""
        self.ranges += 1
        self.records += max(0, end - first)
        log.warning(
            "[LOGBUS_DATA_LOSS] skipped %s [%d, %d): %s (%d records in %d ranges so far)",
            tp, first, end, reason, self.records, self.ranges,
        )  # fmt: skip


skipped = SkippedRows()


def read_ranges(ranges: Iterable[OffsetRange], plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranges, as Arrow batches with Spark's columns.

    Raises DataLossError for lost records and CorruptMessageError for corrupt ones, unless
    failOnDataLoss=false.
    """
    schema = to_arrow_schema(plan.schema, timezone="UTC")
    return (build(group, schema) for group in _resize(_TaskReader(plan).parts(ranges)))


class _TaskReader:
    """Reads the ranges of one task with this process's pool of connections.

    The pool's security settings are looked up in the executor, because they may be in files of its
    machine.
    """

    def __init__(self, plan: ReadPlan) -> None:
        self._options = options = plan.options
        self._reads_once = plan.reads_once
        security = security_for(options.bootstrap_servers, options.given_security())
        self._pool = shared_pool(options.client_id, security)

    def parts(self, ranges: Iterable[OffsetRange]) -> Iterator[Part]:
        """Yield the rows of the ranges, in order, in parts of at most ROWS_MAX rows."""
        for item, small in self._with_small_ranges(ranges):
            for rows in self._fetch(item, small):
                for part in _parts(rows):
                    yield item, part

    def _with_small_ranges(
        self, ranges: Iterable[OffsetRange]
    ) -> Iterator[tuple[OffsetRange, list[FetchedBatch] | None]]:
        """Yield the ranges in order, each with its rows if they are already fetched, else None.

        Consecutive small ranges share a fetch, which returns their rows. The caller itself fetches
        a range that comes with None.
        """
        left = deque(ranges)
        while left:
            first = left.popleft()
            group, size, may_join = {first.tp: first}, first.stored_bytes, _is_small(first)
            while (
                may_join
                and left
                and _is_small(left[0])
                and (tp := left[0].tp) not in group
                and size + left[0].stored_bytes <= self._options.fetch_bytes
            ):
                group[tp] = left.popleft()
                size += group[tp].stored_bytes
            if len(group) > 1:
                yield from zip(group.values(), self._read_small_ranges(group))
            else:
                yield first, None

    def _read_small_ranges(
        self, group: Mapping[TopicPartition, OffsetRange]
    ) -> Iterator[list[FetchedBatch] | None]:
        return read_small_ranges(
            [
                SmallRange(
                    tp,
                    item.topic_id,
                    item.leader_epoch,
                    item.leader,
                    item.start,
                    item.end,
                    item.start_epoch,
                )
                for tp, item in group.items()
                if item.leader is not None
            ],
            pool=self._pool,
            fetch_bytes=self._options.fetch_bytes,
            isolation=self._options.isolation,
            request_timeout_ms=self._options.request_timeout_ms,
        )

    def _fetch(self, item: OffsetRange, small: list[FetchedBatch] | None) -> Iterator[FetchedBatch]:
        if small is not None and not any(_is_rewritten(item, rows) for rows in small):
            yield from small
            return
        tp = item.tp
        start = item.start
        while start < item.end:
            try:
                for rows in self._range(item, start):
                    if _is_rewritten(item, rows):
                        reason = (
                            f"the log was truncated and written anew: offset {start} has leader "
                            f"epoch {rows.header.leader_epoch}, at most {item.end_epoch} when the "
                            "range was planned"
                        )
                        self._lose(tp, start, item.end, reason)
                        item = item._replace(end_epoch=-1)
                    yield rows
                    start = min(item.end, rows.header.next_offset)
                return
            except LogTruncatedError as error:
                self._lose(tp, min(error.offset, start), start, error.message)
                item = item._replace(start_epoch=-1)
            except OffsetOutOfRangeError as error:
                start = self._clip(item._replace(start=start), error)
            except (UnknownTopicIdError, UnknownTopicOrPartitionError) as error:
                self._lose(tp, start, item.end, error.message)
                return
            except CorruptMessageError as error:
                raise type(error)(
                    f"{error.message}; to skip it, set failOnDataLoss=false"
                ) from error

    def _range(self, item: OffsetRange, start: int) -> Iterator[FetchedBatch]:
        return read_range(
            item.tp,
            item.topic_id,
            item.leader_epoch,
            start,
            item.end,
            bootstrap=self._options.bootstrap_servers,
            leader=item.leader,
            fetch_bytes=self._options.fetch_bytes,
            isolation=self._options.isolation,
            on_corrupt="fail" if self._options.fail_on_data_loss else "skip",
            timeout_ms=self._options.poll_timeout_ms,
            request_timeout_ms=self._options.request_timeout_ms,
            pool=self._pool,
            local_reads=self._options.local_reads,
            reads_once=self._reads_once,
            start_epoch=item.start_epoch if start == item.start else -1,
            on_skipped=lambda at, first, end: skipped.add(at, first, end, "corrupt batch"),
        )

    def _clip(self, item: OffsetRange, error: OffsetOutOfRangeError) -> int:
        """Log and count the deleted records of the range ``item``, whose fetch raised ``error``.

        Return the offset at which to continue: the log's start offset, or the range's end if all
        its records were deleted. Raises DataLossError unless failOnDataLoss=false.
        """
        # Only a task that loses records needs Admin, whose import takes as long as all others of
        # this module together.
        from broker_lite.client.administration.admin import Admin

        options = self._options
        admin = Admin(
            options.bootstrap_servers, timeout_ms=options.request_timeout_ms, pool=self._pool
        )
        end = item.end
        # If the topic was deleted meanwhile, all records of the range up to ``end`` are lost.
        with contextlib.suppress(UnknownTopicOrPartitionError):
            earliest = admin.list_offsets({item.tp: EARLIEST_TIMESTAMP})[item.tp].offset
            end = min(item.end, earliest) if earliest > item.start else item.end
        self._lose(item.tp, item.start, end, error.message)
        return end

    def _lose(self, tp: TopicPartition, first: int, end: int, reason: str) -> None:
        if self._options.fail_on_data_loss:
            again = "" if self._reads_once else f". {PLANNED_ONCE}"
            raise DataLossError(
                f"cannot fetch records in {tp} [{first}, {end}): {reason}. {CURE}{again}"
            )
        skipped.add(tp, first, end, reason)


def _size(rows: FetchedBatch) -> int:
    """Estimate how many bytes the rows take as columns for Spark. ``RecordBatch.nbytes`` would take
    longer than the read of a small batch."""
    columns = rows.columns
    size = ROW_BYTES * rows.row_count
    if rows.header.is_columns and not rows.header.codec:
        return size + rows.header.size_bytes
    for column in (columns.key, columns.value, columns.headers):
        if column is not None:
            size += sum(buffer.size for buffer in column.buffers() if buffer is not None)
    return size


def _is_small(item: OffsetRange) -> bool:
    return 0 <= item.stored_bytes <= SMALL_RANGE_BYTES and item.leader is not None


def _parts(rows: FetchedBatch) -> Iterator[FetchedBatch]:
    if rows.row_count <= ROWS_MAX:
        yield rows
        return
    for at in range(0, rows.row_count, ROWS_MAX):
        count = min(ROWS_MAX, rows.row_count - at)
        yield rows._replace(first_row=rows.first_row + at, row_count=count)


def _is_rewritten(item: OffsetRange, rows: FetchedBatch) -> bool:
    return 0 <= item.end_epoch < rows.header.leader_epoch


def _resize(batches: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield the record batches in order, consecutive small ones as one group.

    A small batch has fewer rows than SMALL_ROWS and fewer bytes than JOINED_BYTES. A group ends at
    JOINED_ROWS rows or JOINED_BYTES decoded bytes, so it stays below twice JOINED_BYTES.
    """
    waiting: list[Part] = []
    rows = size = 0
    for part in batches:
        count, part_bytes = part[1].row_count, _size(part[1])
        is_small = count < SMALL_ROWS and part_bytes < JOINED_BYTES
        if is_small:
            waiting.append(part)
            rows += count
            size += part_bytes
        if waiting and (not is_small or rows >= JOINED_ROWS or size >= JOINED_BYTES):
            yield waiting
            waiting, rows, size = [], 0, 0
        if not is_small:
            yield [part]
    if waiting:
        yield waiting
