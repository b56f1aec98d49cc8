"""``ReaderCore``: the reader inside every consumer, written once for blocking and asyncio.

A method that may wait is a task: a generator that yields a step (``waits``) wherever it must wait.
``Consumer`` blocks at each step, ``AsyncConsumer`` awaits. Two threads are involved:

- The shell's thread (the asyncio loop, or the consumer's background thread) does the network I/O:
  the ``FetchEngine`` prefetches batches.
- The reader's thread, the one that calls the consumer, decodes the batches, tracks positions
  (``fetch_collector``), applies assignment changes from the group (``membership``) and commits.

A call for records runs ``begin_poll``, then ``fill`` unless the reader ``is_ready``, then
``take_records`` or ``take_rows``. Only ``fill`` waits, so a cancelled call loses no rows."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from broker_lite.client.callbacks import Callback, Callbacks, call_back
from broker_lite.client.consuming.arrow_rows import JOINED_ROWS, ConcatenatedSlices, arrow_rows
from broker_lite.client.consuming.assignment import AssignmentQueue, Release
from broker_lite.client.consuming.fetch_collector import FetchCollector
from broker_lite.client.consuming.membership import ConsumerMembership
from broker_lite.client.consuming.partition_discovery import PartitionDiscovery
from broker_lite.client.consuming.starting import Starts, reset_offsets
from broker_lite.client.consuming.waits import FOREVER_MS, Await, Request, RunOperation, Task, Wait
from broker_lite.client.fetch.fetch_engine import FetchEngine
from broker_lite.client.in_place.partitions import InPlace
from broker_lite.client.operations import group_requests, requests
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.received import Record
from broker_lite.client.transport.resettable_timer import ResettableTimer
from broker_lite.client.transport.steps import Shell
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    InvalidGroupIdError,
    LogbusError,
    NotOwnerError,
    RequestTimedOutError,
)
from broker_lite.model import EARLIEST_TIMESTAMP, CommittedOffset, TopicPartition

OPERATION_TIMEOUT_MS = 30_000
"""Time limit (ms) of lookups, and of commits that the caller requests."""
LAST_COMMIT_TIMEOUT_MS = 10_000
"""Time limit (ms) of an automatic commit, and of the commit in ``close``."""
RECORDS_AHEAD = 1024
"""Maximum number of records of a batch that ``for record in consumer`` decodes ahead."""

Joining = Callable[["ReaderCore"], ConsumerMembership]
"""Creates the group membership of a new reader."""
Rows = Mapping[TopicPartition, CommittedOffset]


class ReaderCore:
    """The reader of one consumer: it returns records, and applies the group's assignment changes.

    Methods that return a ``Task`` may wait; other methods return at once. Any thread may call
    ``notify``, which wakes the reader's thread."""

    def __init__(
        self,
        consumer: Any,
        shell: Shell,
        cluster: Cluster,
        config: ConsumerConfig,
        *,
        group: str | None,
        joining: Joining,
        callbacks: Callbacks,
        notify: Callable[[], None],
        in_place: InPlace | None = None,
    ) -> None:
        self.consumer = consumer
        """The consumer, which callbacks receive as their first argument."""
        self.shell = shell
        self.cluster = cluster
        self.config = config
        self.group = group
        self.notify = notify
        self.end: LogbusError | None = None
        """The error that every later call raises, after ``close`` or a failure."""
        self.commit_due = False
        self.commit_error: LogbusError | None = None
        self.is_waiting = False
        """Whether a call is waiting for records, during which ``max.poll.interval.ms`` cannot
        expire."""
        self.engine = FetchEngine(
            shell,
            cluster,
            config,
            on_fetched=notify,
            on_view=self._discover_partitions,
            in_place=in_place,
        )
        self.collector = FetchCollector(self.engine, skips_corrupt=config.on_corrupt == "skip")
        self.assignment = AssignmentQueue(self.collector)
        self._callbacks = callbacks
        self._is_committing = False
        self.is_closing = False
        """Whether ``close`` has begun."""
        self._commit_timer = ResettableTimer(shell.later, self._set_due)
        self._outside: deque[tuple[TopicPartition, int, LogbusError]] = deque()
        """Partitions whose position is out of range, with position and error, until ``_reset``
        replaces the position."""
        self.membership = joining(self)
        self.collector.is_held_back = self.membership.is_held_back
        self.discovery = PartitionDiscovery(
            shell,
            cluster,
            config,
            group=group,
            topics=self.membership.followed_topics,
            on_found=self._discovered,
        )

    def deadline_ms(self, timeout_ms: float = OPERATION_TIMEOUT_MS) -> float:
        """Return the time ``timeout_ms`` from now, on the client's monotonic clock."""
        return self.shell.now_ms() + timeout_ms

    def start(self) -> Task[None]:
        """Find the partitions and their starting offsets, or join the group."""
        yield from self.membership.join()
        if self.group is not None and self.config.auto_commit:
            self.shell.call_soon(self._schedule_commit)
        if self.has_changes:
            yield from self.take_changes()

    # Methods that wait for records and return them.

    def begin_poll(self) -> None:
        """Begin a call for records. All records returned earlier count as processed."""
        self.collector.settle()
        self.membership.record_poll()

    def is_ready(self) -> bool:
        """Return whether rows can be returned now. If so, their batch has been decoded.

        Return False also if the reader must first commit, reset a position or apply an assignment
        change, which ``fill`` does."""
        if self.end is not None or self.commit_due or self._outside or self.has_changes:
            return False
        return self.collector.advance(self._note_outside)

    def fill(self, timeout_s: float | None) -> Task[bool]:
        """Make a due automatic commit, apply assignment changes, reset positions outside the log,
        then wait for rows.

        Return False if no rows arrive within ``timeout_s`` seconds (None: no limit)."""
        deadline_ms = FOREVER_MS if timeout_s is None else self.deadline_ms(timeout_s * 1000)
        self.is_waiting = True
        try:
            while True:
                if self.end is not None:
                    raise self.end.with_traceback(None)
                if self.commit_due:
                    self._auto_commit()
                if self.has_changes:
                    yield from self.take_changes()
                while self._outside:
                    yield from self._reset()
                if self.collector.advance(self._note_outside):
                    return True
                if self.shell.now_ms() >= deadline_ms:
                    return False
                yield Wait(self._can_continue, deadline_ms)
        finally:
            self.is_waiting = False

    def _is_more(self) -> bool:
        """Decode the next fetched batch, so that the present call, which already has rows to
        return, returns more. Return False if there is no batch.

        Errors, assignment changes and commits wait for the next call: this one must return its
        rows."""
        if self.end is not None:
            raise self.end.with_traceback(None)
        try:
            return self.collector.advance(self._note_outside)
        except LogbusError:
            return False

    def _can_continue(self) -> bool:
        return (
            self.end is not None
            or self.commit_due
            or bool(self._outside)
            or self.has_changes
            or self.collector.has_fetched()
        )

    def take_records(self, max_records: int) -> list[Record]:
        """Return at most ``max_records`` of the records that have arrived, without waiting."""
        collector = self.collector
        try:
            result = collector.take_records(max_records)
            while len(result) < max_records and not collector.is_drained and self._is_more():
                result += collector.take_records(max_records - len(result))
            return result
        except BaseException:
            collector.rewind()
            raise

    def take_rows(self, *, headers: bool, max_rows: int | None) -> pa.RecordBatch:
        """Return, as Arrow, at most ``max_rows`` of the rows that have arrived, without waiting."""
        collector = self.collector
        parts = ConcatenatedSlices()
        limit = JOINED_ROWS if max_rows is None else min(JOINED_ROWS, max_rows)
        try:
            left = max_rows
            while collector.take_rows(parts, left) and parts.row_count < limit and self._is_more():
                left = None if max_rows is None else max_rows - parts.row_count
            return arrow_rows(parts.slices, headers=headers)
        except BaseException:
            collector.rewind()
            raise

    def each_record(self, fill: Callable[[], object]) -> Iterator[Record]:
        """Yield records; call ``fill`` to wait for more, and end if it returns False."""
        collector, queue = self.collector, self.assignment.queue
        is_held_back = collector.is_held_back
        while True:
            self.begin_poll()
            if not self.is_ready() and not fill():
                return
            at = collector.at
            for record in collector.peek_records(RECORDS_AHEAD):
                at += 1
                collector.at = at
                yield record
                if self.commit_due or collector.at != at or not collector.is_single:
                    # End the batch of records: a commit is due, or the user has called seek, pause
                    # or poll.
                    break
                if queue or (is_held_back is not None and is_held_back()):
                    break

    # Methods that apply changes of the assignment.

    @property
    def has_changes(self) -> bool:
        """Return whether the reader has an assignment change to apply."""
        return bool(self.assignment) or self.membership.is_due()

    def take_changes(self) -> Task[None]:
        """Stop reading revoked and lost partitions, and start to read assigned partitions."""
        self.membership.check()
        yield from self._release_all()
        while self.assignment.pending:
            yield from self._begin()
            if not self.assignment.queue:
                # The brokers do not know some assigned partitions yet. The next call of this method
                # tries again.
                break
            # Do not read a partition that the group has taken away during the requests of
            # ``_begin``.
            yield from self._release_all()

    def _release_all(self) -> Task[None]:
        while (release := self.assignment.next()) is not None:
            yield from self._release(release)
        self.membership.check()

    def _release(self, release: Release) -> Task[None]:
        membership, is_committed = self.membership, self.config.auto_commit
        reads = [tp for tp in self.collector.assignment() if tp in release.grants]
        lost = [
            tp for tp in reads if release.is_lost or not membership.holds(tp, release.grants[tp])
        ]
        revoked = [tp for tp in reads if tp not in lost]
        try:
            yield from self._call_back(self._callbacks.lost, lost)
            try:
                if revoked and is_committed and not membership.reports_positions:
                    settled = self.collector.settled()
                    yield from self._try_commit({tp: settled[tp] for tp in revoked})
            finally:
                yield from self._call_back(self._callbacks.on_revoke, revoked)
        finally:
            positions = self.collector.settled() if membership.reports_positions else {}
            self.assignment.end(release.grants)
            membership.released(release, positions if is_committed else {})

    def _begin(self) -> Task[None]:
        operation = self.membership.beginnings(dict(self.assignment.pending), self.deadline_ms())
        plan = yield RunOperation(operation)
        if plan.commits and self.config.auto_commit:
            # Commit the starting offsets. Otherwise the partition's next owner would find no
            # committed offset, start at the log end of that time and skip records.
            yield from self._try_commit(plan.commits)
        # Begin the partitions last: if the call is cancelled before, they stay pending, and the
        # next call begins them.
        self.assignment.begin(plan.starts)
        yield from self._call_back(self._callbacks.on_assign, plan.starts.offsets)

    def _call_back(self, callback: Callback | None, tps: Iterable[TopicPartition]) -> Task[None]:
        yield Await(call_back(callback, self.consumer, tps))

    # Methods that run on the thread of the client's network I/O.

    def _discover_partitions(self, view: ClusterView) -> None:
        self.discovery.discover(view, self.collector.assignment())

    def _discovered(self, starts: Starts) -> None:
        self.assignment.queue.append(starts)
        self.notify()

    # Methods that seek, look up offsets and reset positions.

    def seek_to_timestamp(self, timestamp_ms: int, tps: Sequence[TopicPartition]) -> Task[None]:
        """Seek to the first record at or after a timestamp (ms since 1970; -2 earliest, -1
        latest)."""
        self.collector.begin((yield from self.list_offsets(timestamp_ms, tps)))

    def list_offsets(
        self, timestamp_ms: int, tps: Sequence[TopicPartition]
    ) -> Task[dict[TopicPartition, int]]:
        """Return each partition's first offset at or after a timestamp; see ``reset_offsets``."""
        operation = reset_offsets(self.cluster, tps, timestamp_ms, self.config, self.deadline_ms())
        offsets: dict[TopicPartition, int] = yield RunOperation(operation)
        return offsets

    def _note_outside(self, tp: TopicPartition, error: LogbusError) -> None:
        """Handle a position that is out of range.

        If the log was truncated, continue at the truncation. Otherwise queue the partition for
        ``_reset``, which looks up a new position."""
        position = self.collector.position(tp) or 0
        resume_at = self.discovery.truncated_at(error)
        if resume_at is None:
            self._outside.append((tp, position, error))
            return
        self.collector.resume_at(tp, resume_at)
        self.discovery.note_truncation(tp, position, resume_at.offset)

    def _reset(self) -> Task[None]:
        """Replace a position outside the log by the offset that the option ``start`` selects.

        If ``start`` is "none", raise the fetch's error."""
        tp, before, error = self._outside[0]
        # Reset the position only if it is still the one that failed. If it has changed, the user
        # has called seek, or the group has revoked the partition.
        if self.collector.position(tp) == before:
            timestamp = self.discovery.reset_timestamp(tp, before)
            if timestamp is None:
                first = yield from self.list_offsets(EARLIEST_TIMESTAMP, (tp,))
                raise type(error)(f"{error.message}; the log begins at {first[tp]}")
            yield from self.seek_to_timestamp(timestamp, (tp,))
            self.discovery.note_reset(tp, before, self.collector.position(tp) or 0)
        self._outside.popleft()

    # Methods that commit offsets.

    def group_id(self) -> str:
        """Return the group's name. Raises InvalidGroupIdError for a consumer without a group."""
        if self.group is None:
            raise InvalidGroupIdError("this consumer has no group; create it with group='…'")
        return self.group

    def committed(self) -> Task[dict[TopicPartition, CommittedOffset]]:
        """Return the group's committed offsets of the assigned partitions."""
        operation = group_requests.committed(
            self.cluster, self.group_id(), self.collector.assignment(), self.deadline_ms()
        )
        return requests.raise_first((yield RunOperation(operation)))

    def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None
    ) -> Task[None]:
        """Commit ``offsets``; if None, commit the position of every partition."""
        self.group_id()
        rows = self.collector.commitable() if offsets is None else self.collector.stamped(offsets)
        yield from self._commit(rows, OPERATION_TIMEOUT_MS)

    def _commit(self, rows: Rows, timeout_ms: float) -> Task[None]:
        """Commit the offsets in ``rows``.

        If commits of several partitions fail, NotOwnerError is raised only if there is no other
        error: the loss of a partition is harmless, because its new owner resumes from the committed
        offset."""
        grants = self.assignment.grants(rows)
        if self._is_committing:
            # Wait for the automatic commit in flight, which could otherwise overwrite this commit.
            yield Wait(
                lambda: not self._is_committing or self.end is not None,
                self.deadline_ms(LAST_COMMIT_TIMEOUT_MS),
            )
        if not rows:
            return
        deadline_ms = self.deadline_ms(timeout_ms)
        step = self.membership.commit(rows, grants, deadline_ms)
        if isinstance(step, Request):
            results = yield from self._answer(step, deadline_ms)
        else:
            results = yield step
        errors = [error for error in results.values() if error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, NotOwnerError)):
            raise error

    def _answer(self, request: Request, deadline_ms: float) -> Task[Any]:
        answers: list[Any] = []

        def answered(answer: Any) -> None:
            answers.append(answer)
            self.notify()

        request.send(answered)
        yield Wait(lambda: answers, deadline_ms)
        if not answers:
            raise RequestTimedOutError(
                f"group {self.group!r}: the coordinator did not answer a commit; commit again"
            )
        if isinstance(answers[0], LogbusError):
            raise answers[0]
        return answers[0]

    def _try_commit(self, rows: Rows) -> Task[None]:
        """Commit the offsets in ``rows``; store an error in ``commit_error``.

        NotOwnerError is ignored: the partition's new owner commits."""
        try:
            with contextlib.suppress(NotOwnerError):
                yield from self._commit(rows, LAST_COMMIT_TIMEOUT_MS)
            self.commit_error = None
        except LogbusError as error:
            self.commit_error = error

    def _auto_commit(self) -> None:
        self.commit_due = False
        rows = self.collector.settled()
        if self._is_committing or not rows:
            return
        self._is_committing = True
        # Limit the time for retries: a later commit waits at most LAST_COMMIT_TIMEOUT_MS for this
        # automatic commit, and a retry after that time could overwrite the later commit.
        deadline_ms = self.deadline_ms(min(self.config.request_timeout_ms, LAST_COMMIT_TIMEOUT_MS))
        step = self.membership.commit(rows, self.assignment.grants(rows), deadline_ms)
        step.start(self.shell, self._committed)

    def _committed(self, result: Any) -> None:
        if isinstance(result, LogbusError):
            self.commit_error = result
        else:
            # Ignore NotOwnerError. Another member owns the partition now and resumes from its
            # committed offset.
            errors = [e for e in result.values() if e and not isinstance(e, NotOwnerError)]
            self.commit_error = errors[0] if errors else None
        self._is_committing = False
        self.notify()

    def _schedule_commit(self) -> None:
        """Start the timer of the next automatic commit, on the I/O thread."""
        if self.end is None:
            self._commit_timer.set(self.config.auto_commit_interval_ms)

    def _set_due(self) -> None:
        self.commit_due = True
        self.notify()
        self._schedule_commit()

    # Methods that end the reader.

    def finish(self, *, is_done: bool) -> Task[None]:
        """Make the last automatic commit, and call ``on_revoke`` with all partitions.

        ``is_done`` says whether the records that the last call returned count as processed."""
        if self.end is not None:
            return
        try:
            if self.group is not None and self.config.auto_commit:
                rows = self.collector.commitable() if is_done else self.collector.settled()
                with contextlib.suppress(NotOwnerError):
                    yield from self._commit(rows, LAST_COMMIT_TIMEOUT_MS)
        finally:
            yield from self._call_back(self._callbacks.on_revoke, self.collector.assignment())

    def abandon(self) -> Task[None]:
        """Call ``on_lost`` for all partitions and commit nothing: the consumer ends, but another
        thread is still processing its records."""
        if self.end is None:
            yield from self._call_back(self._callbacks.lost, self.collector.assignment())

    def close(self, *, is_done: bool) -> Task[None]:
        """Make the last automatic commit (see ``finish``) and leave the group. Call this only
        once."""
        self.is_closing = True
        try:
            yield from self.finish(is_done=is_done)
        finally:
            yield from self.membership.leave()

    def stop(self, error: LogbusError) -> None:
        """Make every later call raise ``error``, and stop automatic commits. Any thread may call
        it."""
        self.end = error
        self._commit_timer.cancel()
        self.notify()
