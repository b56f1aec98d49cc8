"""``Consumer``: returns records one by one, in lists or as Arrow, and waits at the end.

A background thread (a reactor under ``fetch_engine``) prefetches records. The calling thread
decodes them and tracks positions (``intake``). One thread at a time uses a consumer.

Offset lookups and commits use pooled connections of the calling thread. Automatic commits run on
the background thread; only ``close`` waits for one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from broker_lite.client.administration.admin import Admin
from broker_lite.client.consuming.intake import JOINED_ROWS, ConcatenatedSlices, Intake, arrow_rows
from broker_lite.client.consuming.partition_discovery import PartitionDiscovery, Reset
from broker_lite.client.consuming.starting import (
    Starts,
    reset_offsets,
    resolve_partitions,
    starting_offsets,
)
from broker_lite.client.discovery import parse_endpoints
from broker_lite.client.fetch.fetch_engine import FetchEngine
from broker_lite.client.in_place.partitions import InPlace
from broker_lite.client.operations import group_requests, requests
from broker_lite.client.operations.bounds import INT64_MAX
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.requests import PerPartition
from broker_lite.client.received import Record
from broker_lite.client.transport.blocking import Pool, Reactor, monotonic_ms
from broker_lite.client.transport.steps import Operation, spawn
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    ClosedError,
    InvalidConfigError,
    InvalidGroupIdError,
    LogbusError,
    NotOwnerError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CommittedOffset,
    TopicPartition,
)

OPERATION_TIMEOUT_MS = 30_000
LAST_COMMIT_TIMEOUT_MS = 10_000
WAIT_SLICE_S = 3600.0
RECORDS_AHEAD = 1024
"""Records whose columns iteration decodes at once; each Record object is built on demand."""


class Consumer:
    """Reads topics from the group's committed offsets, or from ``start``.

    Create it with ``Bus.consumer``. Without a group, the consumer alone keeps the positions. With a
    group, it starts at committed offsets and commits every ``auto_commit_interval_ms`` unless
    ``auto_commit=False``.

    Automatic commits are at least once. A polled record counts as processed at the next poll, an
    iterated record at the next iteration. Leaving the ``with`` block without an error marks all as
    processed. After a crash or an error, the records in flight are read again; none is skipped.

    This class reads all partitions that it is given, without group membership; ``MemberConsumer``
    and ``NativeConsumer`` share partitions. ``start`` is "earliest", "latest" (default) or "none"
    (a missing offset is an error). Partitions created later are read from their beginning.
    """

    _defers_changes = False
    """Whether assignment changes wait until the rows of the current call are returned."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Iterable[str] = (),
        *,
        group: str | None = None,
        partitions: Iterable[TopicPartition | int] | None = None,
        config: ConsumerConfig | None = None,
    ) -> None:
        self._prepare(bootstrap_servers, topics, group, config or ConsumerConfig())
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        wheres = self._pool.run(
            resolve_partitions(self._cluster, self._topics, partitions, deadline_ms)
        )
        starts = self._pool.run(
            starting_offsets(
                self._cluster,
                group,
                wheres,
                self.config,
                deadline_ms,
            )
        )
        self._start_reading(self._topics if partitions is None else (), starts)

    def _prepare(
        self,
        bootstrap_servers: str,
        topics: Iterable[str],
        group: str | None,
        config: ConsumerConfig,
    ) -> None:
        """Set up the state that needs no thread."""
        self.config = config
        self.group = group
        self._topics = tuple(dict.fromkeys(topics))
        self._condition = threading.Condition()
        self._end: LogbusError | None = None
        self._commit_due = False
        self._is_committing = False
        self._changes: deque[Any] = deque()
        """Starting offsets of discovered partitions, appended by the reactor's thread."""
        self.commit_error: LogbusError | None = None
        """The error of the last automatic commit, or None."""
        self._pool = Pool(config.client_id)
        self._cluster = Cluster(parse_endpoints(bootstrap_servers), monotonic_ms, config.client_id)
        self._admin = Admin(bootstrap_servers, client_id=config.client_id, pool=self._pool)

    def _start_reading(
        self,
        follows: Sequence[str],
        starts: Starts,
        is_held_back: Callable[[], bool] | None = None,
    ) -> None:
        """Start the thread; it discovers new partitions of the topics in ``follows``."""
        config = self.config
        self._reactor = Reactor(config.client_id, "logbus-consumer")
        self._follower = PartitionDiscovery(
            self._reactor,
            self._cluster,
            config,
            group=self.group,
            topics=follows,
            on_found=self._found,
        )
        self._engine = FetchEngine(
            self._reactor,
            self._cluster,
            config,
            on_arrival=self._notify,
            on_view=lambda view: self._follower.look(view, self._intake.assignment()),
            in_place=InPlace(self._reactor.is_to_this_machine) if config.local_reads else None,
        )
        self._intake = Intake(
            self._engine,
            skips_corrupt=config.on_corrupt == "skip",
            is_held_back=is_held_back,
        )
        self._intake.begin(*starts)
        if self.group is not None and config.auto_commit:
            self._reactor.call_soon(self._schedule_commit)
        self._reactor.start(self._crashed)
        _consumers.add(self)

    # -- reading

    def __iter__(self) -> Iterator[Record]:
        """Yield records without end; wait for new records at the end of the log."""
        intake, held_back = self._intake, self._intake.is_held_back
        while True:
            intake.settle()
            self._fill(None)
            at = intake.at
            for record in intake.peek_records(RECORDS_AHEAD):
                at += 1
                intake.at = at
                yield record
                if self._commit_due or intake.at != at or not intake.is_single:
                    break  # a commit is due, or the caller sought, paused or polled
                if self._changes or (held_back is not None and held_back()):
                    break

    def poll(self, timeout_s: float = 0.0, max_records: int = 10_000) -> list[Record]:
        """Return the next records, in order within each partition; [] after ``timeout_s``.

        With ``timeout_s`` 0, return only records already received. Raises CorruptMessageError
        (unless ``on_corrupt="skip"``), OffsetOutOfRangeError for an offset outside the log with
        ``start="none"``, UnknownTopicIdError or UnknownTopicOrPartitionError for a deleted topic,
        and ClosedError. After the first two, ``seek`` past the offset to continue.
        """
        self._intake.settle()
        found: list[Record] = []
        try:
            while len(found) < max_records and self._fill(0.0 if found else timeout_s, bool(found)):
                found += self._intake.take_records(max_records - len(found))
                if self._intake.is_drained:
                    break
            return found
        except BaseException:
            self._intake.give_back()
            raise

    def poll_arrow(
        self, timeout_s: float = 0.0, *, headers: bool = False, max_rows: int | None = None
    ) -> pa.RecordBatch:
        """Return the next rows with the columns of Spark's Kafka source; 0 rows on time-out.

        The columns are key, value, topic, partition, offset, timestamp (us, UTC), timestampType,
        and ``headers`` on request. Values are not copied unless batches are small. ``timeout_s``
        and errors are those of ``poll``. Without ``max_rows``, return about 4096 rows, or one
        larger batch.
        """
        self._intake.settle()
        parts = ConcatenatedSlices()
        limit = JOINED_ROWS if max_rows is None else min(JOINED_ROWS, max_rows)
        try:
            while parts.row_count < limit and self._fill(
                0.0 if parts.slices else timeout_s, bool(parts.slices)
            ):
                left = None if max_rows is None else max_rows - parts.row_count
                if not self._intake.take_rows(parts, left):
                    break
            return arrow_rows(parts.slices, headers=headers)
        except BaseException:
            self._intake.give_back()
            raise

    def _fill(self, timeout_s: float | None, is_more: bool = False) -> bool:
        """Wait for rows; return False on time-out.

        ``is_more`` means that the call already has rows to return: errors and commits wait for the
        next call.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._end is not None:
                raise self._end
            if self._commit_due and not is_more:
                self._auto_commit()
            if self._has_changes() and not (is_more and self._defers_changes):
                self._take_changes()
            try:
                if self._intake.advance(self._out_of_range):
                    return True
            except LogbusError:
                if is_more:
                    return False
                raise
            if is_more and not self._intake.has_arrivals():
                return False
            with self._condition:
                if self._has_news():
                    continue
                left = WAIT_SLICE_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                self._condition.wait(min(left, WAIT_SLICE_S))

    @property
    def is_settled(self) -> bool:
        """Whether no assignment or revocation is pending, as far as the member knows."""
        return not self._has_changes()

    # -- positions

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that the consumer reads."""
        return self._intake.assignment()

    def position(self, topic: str | TopicPartition, partition: int | None = None) -> int:
        """Return the offset of the partition's next record. Raises UnknownTopicOrPartitionError
        for a partition that is not read."""
        where = self._where(topic, partition)
        found = self._intake.position(where)
        assert found is not None
        return found

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of all partitions."""
        return {where: self.position(where) for where in self.assignment()}

    def seek(self, topic: str | TopicPartition, partition: int, offset: int | None = None) -> None:
        """Move a position: ``seek(topic, partition, offset)`` or ``seek(TopicPartition(…),
        offset)``.

        The next read reports an offset that is not in the log.
        """
        if isinstance(topic, TopicPartition) and offset is None:
            where, offset = self._where(topic, None), partition
        else:
            where = self._where(topic, partition)
        if not isinstance(offset, int) or not 0 <= offset <= INT64_MAX:
            raise InvalidConfigError(f"seek to offset {offset!r}: give a number from 0 to 2^63-1")
        self._intake.begin({where: offset})

    def seek_to_beginning(self, *wheres: TopicPartition) -> None:
        """Seek to the oldest record of these partitions, or of all."""
        self._seek_listed(EARLIEST_TIMESTAMP, wheres)

    def seek_to_end(self, *wheres: TopicPartition) -> None:
        """Seek to the end of these partitions, or of all."""
        self._seek_listed(LATEST_TIMESTAMP, wheres)

    def seek_to_time(self, timestamp_ms: int, *wheres: TopicPartition) -> None:
        """Seek to the first record at or after a timestamp (ms since 1970), else to the end."""
        self._seek_listed(int(timestamp_ms), wheres)

    def _seek_listed(self, timestamp_ms: int, wheres: tuple[TopicPartition, ...]) -> None:
        chosen = [self._where(where, None) for where in wheres] or self.assignment()
        operation = reset_offsets(
            self._cluster, chosen, timestamp_ms, self.config, monotonic_ms() + OPERATION_TIMEOUT_MS
        )
        self._intake.begin(self._pool.run(operation))

    def pause(self, *wheres: TopicPartition) -> None:
        """Stop returning records of these partitions, or of all."""
        self._intake.pause(wheres or self.assignment(), True)

    def resume(self, *wheres: TopicPartition) -> None:
        """Resume these partitions, or all."""
        self._intake.pause(wheres or self.assignment(), False)
        self._notify()

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions."""
        return self._intake.paused()

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Request and return the current end offsets (exclusive)."""
        return self._list(LATEST_TIMESTAMP)

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Request and return the oldest available offsets."""
        return self._list(EARLIEST_TIMESTAMP)

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets between each position and the end of its partition."""
        ends = self.end_offsets()
        return {where: max(0, ends[where] - self.position(where)) for where in ends}

    @property
    def skipped(self) -> list[tuple[TopicPartition, int, int]]:
        """Ranges that ``on_corrupt="skip"`` skipped: (partition, first offset, next offset)."""
        return self._intake.skipped

    @property
    def resets(self) -> list[Reset]:
        """Positions that were no longer in the log, and the offsets where reading resumed."""
        return self._follower.resets

    def _list(self, timestamp_ms: int) -> dict[TopicPartition, int]:
        found = self._admin.list_offsets(
            dict.fromkeys(self.assignment(), timestamp_ms), isolation=self.config.isolation_level
        )
        return {where: row.offset for where, row in found.items()}

    def _where(self, topic: str | TopicPartition, partition: int | None) -> TopicPartition:
        where = topic
        if not isinstance(where, TopicPartition):
            if partition is None:
                raise InvalidConfigError(f"which partition of {topic!r}? give its number")
            where = TopicPartition(str(topic), partition)
        if self._intake.position(where) is None:
            raise UnknownTopicOrPartitionError(f"{where} is not read by this consumer")
        return where

    # -- the group

    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets of the assigned partitions; absent without one.
        Raises InvalidGroupIdError without a group."""
        return self._admin.committed(self._group(), self.assignment())

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None) -> None:
        """Commit these offsets (of the next record to read), or all positions.

        Positions include the records in flight. Raises UnknownTopicIdError for a recreated topic. A
        group member also raises NotOwnerError for a partition that another member owns, and
        RebalanceInProgressError for a long rebalance; then commit again. Offsets without an error
        are committed.
        """
        rows = self._intake.commitable() if offsets is None else self._intake.stamped(offsets)
        self._await_commit()
        self._commit_rows(rows, OPERATION_TIMEOUT_MS)

    def settled(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the positions without records in flight, as an automatic commit uses them."""
        return self._intake.settled()

    def _group(self) -> str:
        if self.group is None:
            raise InvalidGroupIdError("this consumer has no group; make it with group='…'")
        return self.group

    def _commit_rows(self, rows: Mapping[TopicPartition, CommittedOffset], timeout_ms: int) -> None:
        operation = self._commit_operation(rows, monotonic_ms() + timeout_ms)
        if rows:
            requests.raise_first(self._pool.run(operation))

    def _commit_operation(
        self, rows: Mapping[TopicPartition, CommittedOffset], deadline_ms: float
    ) -> Operation[PerPartition[None]]:
        return group_requests.commit_offsets(self._cluster, self._group(), rows, deadline_ms)

    def _auto_commit(self) -> None:
        """Send an automatic commit of the processed records, without waiting for the answer."""
        self._commit_due = False
        rows = self._intake.settled()
        if self._is_committing or not rows:
            return
        self._is_committing = True
        # Time out no later than ``_await_commit``; a later retry would overwrite a newer commit.
        patience_ms = min(self.config.request_timeout_ms, LAST_COMMIT_TIMEOUT_MS)
        operation = self._commit_operation(rows, monotonic_ms() + patience_ms)
        self._reactor.call_soon(partial(spawn, self._reactor, operation, self._committed))

    def _last_commit(self, *, is_done: bool) -> None:
        """Commit for the last time. Ignore partitions of other members: they commit their own."""
        if self.group is not None and self.config.auto_commit:
            rows = self._intake.commitable() if is_done else self._intake.settled()
            self._await_commit()
            with contextlib.suppress(NotOwnerError):
                self._commit_rows(rows, LAST_COMMIT_TIMEOUT_MS)

    def _await_commit(self) -> None:
        """Wait for the automatic commit in flight: it could overwrite a later commit."""
        with self._condition:
            self._condition.wait_for(
                lambda: not self._is_committing or self._end is not None,
                LAST_COMMIT_TIMEOUT_MS / 1000.0,
            )

    # -- the reactor's thread

    def _schedule_commit(self) -> None:
        def due() -> None:
            self._commit_due = True
            self._notify()
            self._schedule_commit()

        self._reactor.later(self.config.auto_commit_interval_ms, due)

    def _committed(self, found: Any) -> None:
        if isinstance(found, LogbusError):
            self.commit_error = found
        else:
            # Another member owns the partition now and continues from the committed offset.
            errors = [e for e in found.values() if e and not isinstance(e, NotOwnerError)]
            self.commit_error = errors[0] if errors else None
        self._is_committing = False
        self._notify()

    def _found(self, starts: Starts) -> None:
        self._changes.append(starts)
        self._notify()

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _crashed(self, error: BaseException) -> None:
        self._end = ClosedError(f"the consumer's thread ended: {error!r}")
        self._notify()
        raise error

    # -- decisions of the reader's thread

    def _has_news(self) -> bool:
        return (
            self._end is not None
            or self._commit_due
            or self._has_changes()
            or self._intake.has_arrivals()
        )

    def _has_changes(self) -> bool:
        return bool(self._changes)

    def _take_changes(self) -> None:
        while self._changes:
            self._intake.begin(*self._changes.popleft())

    def _out_of_range(self, where: TopicPartition, error: LogbusError) -> None:
        """Reset or raise for a position outside the log, according to ``start``."""
        before = self.position(where)
        goes_on_at = self._follower.truncated_at(error)
        if goes_on_at is not None:
            self._intake.go_on(where, goes_on_at)
            self._follower.note_truncation(where, before, goes_on_at.offset)
            return
        timestamp = self._follower.reset_timestamp(where, before)
        if timestamp is None:
            ends = self._admin.list_offsets({where: EARLIEST_TIMESTAMP})
            raise type(error)(f"{error.message}; the log begins at {ends[where].offset}")
        self._seek_listed(timestamp, (where,))
        self._follower.note_reset(where, before, self.position(where))

    # -- the end

    def close(self) -> None:
        """Commit if automatic commits are on, and stop the thread.

        All returned records count as processed. During exception handling, as in ``finally:
        consumer.close()``, records in flight do not: they are read again.
        """
        self._close(is_done=sys.exc_info()[0] is None)

    def _close(self, *, is_done: bool) -> None:
        if self._end is not None:
            return
        try:
            self._last_commit(is_done=is_done)
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the thread without a last commit."""
        self._end = ClosedError("the consumer was closed")
        self._notify()
        self._reactor.stop()
        self._engine.close()
        self._pool.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._close(is_done=kind is None)
        except LogbusError:
            if kind is None:
                raise

    def _forked(self) -> None:
        self._end = ClosedError("this consumer was made before a fork; make one in this process")
        self._engine.close()
        self._condition = threading.Condition()


_consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for consumer in list(_consumers):
        consumer._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
