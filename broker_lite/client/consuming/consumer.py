"""``Consumer``: reads partitions record by record, in lists or as Arrow, and waits at the end.

A background thread (a reactor under ``fetching``) keeps the next records fetched; the calling
thread decodes them (``intake``) and keeps the positions. One thread at a time uses a consumer.
Offsets are asked for and committed over pooled connections of the calling thread; automatic commits
go out on the background thread and are never waited for, but for the last one, in ``close``.
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
from broker_lite.client.consuming.fetching import FetchEngine
from broker_lite.client.consuming.intake import JOINED_ROWS, Intake, Parts, arrow_rows
from broker_lite.client.consuming.partition_discovery import Follower, Reset
from broker_lite.client.consuming.starting import (
    Starts,
    reset_offsets,
    resolve_partitions,
    starting_offsets,
)
from broker_lite.client.discovery import parse_endpoints
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
"""Records of which iteration makes columns at once; each record is made in its turn."""


class Consumer:
    """Reads topics from where its group stands, or from ``start``. Make it with ``Bus.consumer``.

    Without a group positions are the consumer's own. With one, committed offsets are where it
    begins, and it commits by itself every ``auto_commit_interval_ms`` (unless
    ``auto_commit=False``), at least once: only what is done with. The records of a poll are done
    with when the next poll is called, a record of a loop when the loop asks for the next one, and
    everything when the ``with`` block is left normally. Whoever dies or raises in between gets
    what was under way again; nothing is skipped. This one takes all partitions that it is made
    with, and is no member of its group; those that share are its subclasses ``MemberConsumer`` and
    ``NativeConsumer``.
    ``start`` is "earliest", "latest" (the default) or "none": a missing offset is an error.
    Partitions made while it reads are found and read from their beginning.
    """

    _defers_changes = False
    """Whether a change waits until what a call has taken is handed out."""

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
        """What needs no thread yet."""
        self.config = config
        self.group = group
        self._topics = tuple(dict.fromkeys(topics))
        self._condition = threading.Condition()
        self._end: LogbusError | None = None
        self._commit_due = False
        self._is_committing = False
        self._changes: deque[Any] = deque()
        """Of what is read, by other threads: here where partitions that were found begin."""
        self.commit_error: LogbusError | None = None
        """Why the last automatic commit failed, or None."""
        self._pool = Pool(config.client_id)
        self._cluster = Cluster(parse_endpoints(bootstrap_servers), monotonic_ms, config.client_id)
        self._admin = Admin(bootstrap_servers, client_id=config.client_id, pool=self._pool)

    def _start_reading(
        self,
        follows: Sequence[str],
        starts: Starts,
        is_held_back: Callable[[], bool] | None = None,
    ) -> None:
        """Start the thread; partitions that are added to ``follows`` are found."""
        config = self.config
        self._reactor = Reactor(config.client_id, "logbus-consumer")
        self._follower = Follower(
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
        """The records, for ever: at the end it waits for more."""
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
                    break  # time to commit; or sought, paused, or polled in between
                if self._changes or (held_back is not None and held_back()):
                    break

    def poll(self, timeout_s: float = 0.0, max_records: int = 10_000) -> list[Record]:
        """The next records, in order within each partition; [] if none came in ``timeout_s``
        (0: what is here already).

        Raises CorruptMessageError in damage (unless ``on_corrupt="skip"``), OffsetOutOfRangeError
        where the log has no such offset and ``start="none"`` (``seek`` leads past both),
        UnknownTopicIdError or UnknownTopicOrPartitionError where the topic was deleted, and
        ClosedError.
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
        """The next rows with the columns of Spark's Kafka source; 0 rows if none came in time.

        key, value, topic, partition, offset, timestamp (us, UTC), timestampType; with ``headers``
        also these. Values lie where they were received; nothing is copied unless batches are small.
        ``timeout_s`` and errors are those of ``poll``; ``max_rows`` None: some 4096, or as many
        as one batch brings.
        """
        self._intake.settle()
        parts = Parts()
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
        """Wait for rows; False if the time is up. With ``is_more`` the call has rows to hand out:
        errors and commits wait for the next one."""
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
        """Whether what is read is what should be, as far as is known: a group's member may be about
        to be given partitions, or to give some up."""
        return not self._has_changes()

    # -- positions

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return self._intake.assignment()

    def position(self, topic: str | TopicPartition, partition: int | None = None) -> int:
        """The offset of the next record of a partition that will be handed out. Raises
        UnknownTopicOrPartitionError for one that is not read."""
        where = self._where(topic, partition)
        found = self._intake.position(where)
        assert found is not None
        return found

    def positions(self) -> dict[TopicPartition, int]:
        """All positions."""
        return {where: self.position(where) for where in self.assignment()}

    def seek(self, topic: str | TopicPartition, partition: int, offset: int | None = None) -> None:
        """Go on from an offset: ``seek(topic, partition, offset)`` or
        ``seek(TopicPartition(…), offset)``. One that is not in the log shows when it is read."""
        if isinstance(topic, TopicPartition) and offset is None:
            where, offset = self._where(topic, None), partition
        else:
            where = self._where(topic, partition)
        if not isinstance(offset, int) or not 0 <= offset <= INT64_MAX:
            raise InvalidConfigError(f"seek to offset {offset!r}: give a number from 0 to 2^63-1")
        self._intake.begin({where: offset})

    def seek_to_beginning(self, *wheres: TopicPartition) -> None:
        """Go on from the oldest record of these partitions, or of all."""
        self._seek_listed(EARLIEST_TIMESTAMP, wheres)

    def seek_to_end(self, *wheres: TopicPartition) -> None:
        """Go on behind the newest record of these partitions, or of all."""
        self._seek_listed(LATEST_TIMESTAMP, wheres)

    def seek_to_time(self, timestamp_ms: int, *wheres: TopicPartition) -> None:
        """Go on from the first record at or after a time (ms since 1970), else from the end."""
        self._seek_listed(int(timestamp_ms), wheres)

    def _seek_listed(self, timestamp_ms: int, wheres: tuple[TopicPartition, ...]) -> None:
        chosen = [self._where(where, None) for where in wheres] or self.assignment()
        operation = reset_offsets(
            self._cluster, chosen, timestamp_ms, self.config, monotonic_ms() + OPERATION_TIMEOUT_MS
        )
        self._intake.begin(self._pool.run(operation))

    def pause(self, *wheres: TopicPartition) -> None:
        """Hand out nothing more of these partitions, or of all."""
        self._intake.pause(wheres or self.assignment(), True)

    def resume(self, *wheres: TopicPartition) -> None:
        """Go on with these partitions, or with all."""
        self._intake.pause(wheres or self.assignment(), False)
        self._notify()

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._intake.paused()

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Where the partitions end now (exclusive)."""
        return self._list(LATEST_TIMESTAMP)

    def beginning_offsets(self) -> dict[TopicPartition, int]:
        """The oldest offsets that are there now."""
        return self._list(EARLIEST_TIMESTAMP)

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets the positions are behind the ends."""
        ends = self.end_offsets()
        return {where: max(0, ends[where] - self.position(where)) for where in ends}

    @property
    def skipped(self) -> list[tuple[TopicPartition, int, int]]:
        """What ``on_corrupt="skip"`` went past: (partition, first offset, next offset)."""
        return self._intake.skipped

    @property
    def resets(self) -> list[Reset]:
        """Positions that the log no longer had, and where reading went on by ``start``."""
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
        """The group's offsets of the partitions that are read; absent where there is none. Raises
        InvalidGroupIdError without a group."""
        return self._admin.committed(self._group(), self.assignment())

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None) -> None:
        """Commit these offsets (the next to read), or the positions: behind everything handed out,
        the records under way among them. Raises UnknownTopicIdError where a topic was deleted and
        made again; a group's member raises NotOwnerError where a partition is another's by now, and
        RebalanceInProgressError where the group gathers for too long: commit again. What is not
        refused is committed."""
        rows = self._intake.commitable() if offsets is None else self._intake.stamped(offsets)
        self._await_commit()
        self._commit_rows(rows, OPERATION_TIMEOUT_MS)

    def settled(self) -> dict[TopicPartition, CommittedOffset]:
        """The positions without what is under way: what an automatic commit takes."""
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
        """Send off what is done with; nobody waits for the answer."""
        self._commit_due = False
        rows = self._intake.settled()
        if self._is_committing or not rows:
            return
        self._is_committing = True
        # Not later than somebody waits for it: it would undo the commit that did not wait on.
        patience_ms = min(self.config.request_timeout_ms, LAST_COMMIT_TIMEOUT_MS)
        operation = self._commit_operation(rows, monotonic_ms() + patience_ms)
        self._reactor.call_soon(partial(spawn, self._reactor, operation, self._committed))

    def _last_commit(self, *, is_done: bool) -> None:
        """What is another member's by now is no trouble: it has what was committed, and goes on."""
        if self.group is not None and self.config.auto_commit:
            rows = self._intake.commitable() if is_done else self._intake.settled()
            self._await_commit()
            with contextlib.suppress(NotOwnerError):
                self._commit_rows(rows, LAST_COMMIT_TIMEOUT_MS)

    def _await_commit(self) -> None:
        """One that is under way would undo a later one."""
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
            # What is another member's by now is no trouble: it has what was committed, and goes on.
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
        """The log begins behind the position, or ends before it: go by ``start``."""
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
        """Commit, if the consumer does so by itself, and end the thread.

        Everything handed out counts as done with. Not so while an exception is being handled, as
        in ``finally: consumer.close()``: then what was under way comes again.
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
        """End the thread without a last commit."""
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
