"""``AsyncConsumer``: the fetch engine and the intake on the running event loop.

It shares the decisions of ``Consumer`` and awaits where ``Consumer`` blocks. A call that has taken
rows awaits nothing more, so a cancellation loses no rows. Call all methods on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from broker_lite.client.consuming.intake import JOINED_ROWS, ConcatenatedSlices, Intake, arrow_rows
from broker_lite.client.consuming.partition_discovery import PartitionDiscovery, Reset
from broker_lite.client.consuming.starting import (
    reset_offsets,
    resolve_partitions,
    starting_offsets,
)
from broker_lite.client.discovery import parse_endpoints
from broker_lite.client.fetch.fetch_engine import FetchEngine
from broker_lite.client.operations import group_requests, requests
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.received import Record
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.client.transport.loop import LoopShell
from broker_lite.config import ConsumerConfig
from broker_lite.errors import ClosedError, InvalidGroupIdError, LogbusError, NotOwnerError
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CommittedOffset,
    TopicPartition,
)

OPERATION_TIMEOUT_MS = 30_000
RECORDS_AHEAD = 1024


class AsyncConsumer:
    """``Consumer`` for asyncio: ``async for record in consumer`` waits at the end of the log.

    Automatic commits are at least once, as in ``Consumer``. After a crash or an exception in the
    ``async with`` block, the records in flight are read again.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        *,
        group: str | None,
        partitions: Iterable[TopicPartition | int] | None,
        config: ConsumerConfig,
    ) -> None:
        self.config = config
        self.group = group
        self.commit_error: LogbusError | None = None
        self._topics = tuple(dict.fromkeys(topics))
        self._partitions = None if partitions is None else list(partitions)
        self._shell = LoopShell(config.client_id)
        self._cluster = Cluster(parse_endpoints(bootstrap_servers), monotonic_ms, config.client_id)
        self._news = asyncio.Event()
        self._engine = FetchEngine(
            self._shell,
            self._cluster,
            config,
            on_arrival=self._news.set,
            on_view=lambda view: self._follower.look(view, self._intake.assignment()),
        )
        self._follower = PartitionDiscovery(
            self._shell,
            self._cluster,
            config,
            group=group,
            topics=self._topics if partitions is None else (),
            on_found=lambda starts: self._intake.begin(*starts),
        )
        self._intake = Intake(self._engine, skips_corrupt=config.on_corrupt == "skip")
        self._out_of_range: deque[tuple[TopicPartition, int]] = deque()
        self._commit_due_ms = float("inf")
        self._committing: asyncio.Task[None] | None = None
        self._end: LogbusError | None = None
        self._is_started = False

    async def start(self) -> None:
        """Find partitions and starting offsets. ``async with`` and the first read call it."""
        if self._is_started:
            return
        self._is_started = True
        try:
            await self._start()
        except BaseException:
            # On failure or cancellation, let the next read start again.
            self._is_started = False
            raise

    async def _start(self) -> None:
        deadline_ms = self._deadline()
        wheres = await self._shell.run(
            resolve_partitions(self._cluster, self._topics, self._partitions, deadline_ms)
        )
        starts = await self._shell.run(
            starting_offsets(
                self._cluster,
                self.group,
                wheres,
                self.config,
                deadline_ms,
            )
        )
        self._intake.begin(*starts)
        if self.group is not None and self.config.auto_commit:
            self._commit_due_ms = monotonic_ms() + self.config.auto_commit_interval_ms

    def _deadline(self) -> float:
        return monotonic_ms() + OPERATION_TIMEOUT_MS

    # -- reading

    async def __aiter__(self) -> AsyncIterator[Record]:
        intake, held_back = self._intake, self._intake.is_held_back
        while True:
            intake.settle()
            await self._fill(None)
            at = intake.at
            for record in intake.peek_records(RECORDS_AHEAD):
                at += 1
                intake.at = at
                yield record
                if intake.at != at or not intake.is_single or self._is_commit_due():
                    break
                if self._has_changes() or (held_back is not None and held_back()):
                    break

    async def poll(self, timeout_s: float = 0.0, max_records: int = 10_000) -> list[Record]:
        """Return the next records; [] after ``timeout_s``. See ``Consumer.poll``."""
        self._intake.settle()
        found: list[Record] = []
        try:
            while len(found) < max_records and await self._fill(
                0.0 if found else timeout_s, bool(found)
            ):
                found += self._intake.take_records(max_records - len(found))
            return found
        except BaseException:
            self._intake.give_back()
            raise

    async def poll_arrow(
        self, timeout_s: float = 0.0, *, headers: bool = False, max_rows: int | None = None
    ) -> pa.RecordBatch:
        """Return the next rows as Arrow; see ``Consumer.poll_arrow``."""
        self._intake.settle()
        parts = ConcatenatedSlices()
        limit = JOINED_ROWS if max_rows is None else min(JOINED_ROWS, max_rows)
        try:
            while parts.row_count < limit and await self._fill(
                0.0 if parts.slices else timeout_s, bool(parts.slices)
            ):
                left = None if max_rows is None else max_rows - parts.row_count
                if not self._intake.take_rows(parts, left):
                    break
            return arrow_rows(parts.slices, headers=headers)
        except BaseException:
            self._intake.give_back()
            raise

    async def _fill(self, timeout_s: float | None, is_more: bool = False) -> bool:
        """Wait for rows; return False on time-out.

        With ``is_more`` the call already holds rows and never awaits: a cancellation would lose
        them.
        """
        await self.start()
        deadline_ms = float("inf") if timeout_s is None else monotonic_ms() + timeout_s * 1000
        while True:
            if self._end is not None:
                raise self._end
            if not is_more and self._is_commit_due():
                self._auto_commit()
            if not is_more and self._has_changes():
                await self._take_changes()
            self._news.clear()
            try:
                if self._intake.advance(self._note_out_of_range):
                    return True
            except LogbusError:
                if is_more:
                    return False
                raise
            if is_more:
                return False
            if self._out_of_range:
                await self._reset(*self._out_of_range[0])
                self._out_of_range.popleft()
                continue
            left_ms = deadline_ms - monotonic_ms()
            if left_ms <= 0:
                return False
            left_ms = min(left_ms, max(0.0, self._commit_due_ms - monotonic_ms()))
            try:
                async with asyncio.timeout(None if left_ms == float("inf") else left_ms / 1000.0):
                    await self._news.wait()
            except TimeoutError:
                pass

    def _note_out_of_range(self, where: TopicPartition, error: LogbusError) -> None:
        position = self._intake.position(where) or 0
        goes_on_at = self._follower.truncated_at(error)
        if goes_on_at is not None:
            self._intake.go_on(where, goes_on_at)
            self._follower.note_truncation(where, position, goes_on_at.offset)
            return
        if self._follower.reset_timestamp(where, position) is None:
            raise error
        self._out_of_range.append((where, position))

    async def _reset(self, where: TopicPartition, before: int) -> None:
        timestamp = self._follower.reset_timestamp(where, before)
        if timestamp is None or self._intake.position(where) != before:
            return  # the caller sought while the record was processed
        await self._seek_listed(timestamp, (where,))
        self._follower.note_reset(where, before, self._intake.position(where) or 0)

    @property
    def resets(self) -> list[Reset]:
        """Positions that were no longer in the log, and the offsets where reading resumed."""
        return self._follower.resets

    # -- positions

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that the consumer reads; empty before ``start``."""
        return self._intake.assignment()

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset of the next record of each partition."""
        return {where: self._intake.position(where) or 0 for where in self.assignment()}

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Move the position of a partition."""
        self._intake.begin({TopicPartition(topic, partition): offset})

    async def seek_to_beginning(self, *wheres: TopicPartition) -> None:
        """Seek to the oldest record of these partitions, or of all."""
        await self._seek_listed(EARLIEST_TIMESTAMP, wheres)

    async def seek_to_end(self, *wheres: TopicPartition) -> None:
        """Seek to the end of these partitions, or of all."""
        await self._seek_listed(LATEST_TIMESTAMP, wheres)

    async def seek_to_time(self, timestamp_ms: int, *wheres: TopicPartition) -> None:
        """Seek to the first record at or after a timestamp (ms since 1970), else to the end."""
        await self._seek_listed(int(timestamp_ms), wheres)

    async def _seek_listed(self, timestamp_ms: int, wheres: Sequence[TopicPartition]) -> None:
        self._intake.begin(
            await self._list(timestamp_ms, lambda: list(wheres) or self.assignment())
        )

    async def _list(
        self, timestamp_ms: int, chosen: Callable[[], Sequence[TopicPartition]]
    ) -> dict[TopicPartition, int]:
        """Start if needed, then list offsets of the partitions that ``chosen`` returns."""
        await self.start()
        return await self._shell.run(
            reset_offsets(self._cluster, chosen(), timestamp_ms, self.config, self._deadline())
        )

    def pause(self, *wheres: TopicPartition) -> None:
        """Stop returning records of these partitions, or of all."""
        self._intake.pause(wheres or self.assignment(), True)

    def resume(self, *wheres: TopicPartition) -> None:
        """Resume these partitions, or all."""
        self._intake.pause(wheres or self.assignment(), False)
        self._news.set()

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Request and return the current end offsets (exclusive)."""
        return await self._list(LATEST_TIMESTAMP, self.assignment)

    async def beginning_offsets(self) -> dict[TopicPartition, int]:
        """Request and return the oldest available offsets."""
        return await self._list(EARLIEST_TIMESTAMP, self.assignment)

    async def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets between each position and the end of its partition."""
        ends, positions = await self.end_offsets(), self.positions()
        return {where: max(0, ends[where] - positions[where]) for where in ends}

    # -- the group

    async def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets of the assigned partitions."""
        await self.start()
        operation = group_requests.committed(
            self._cluster, self._group(), self.assignment(), self._deadline()
        )
        return requests.raise_first(await self._shell.run(operation))

    def settled(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the positions without records in flight, as an automatic commit uses them."""
        return self._intake.settled()

    async def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None
    ) -> None:
        """Commit these offsets (of the next record to read), or all positions.

        Positions include the records in flight. Raises UnknownTopicIdError for a recreated topic;
        offsets of other topics are committed.
        """
        rows = self._intake.commitable() if offsets is None else self._intake.stamped(offsets)
        grants = self._grants(rows)
        await self._await_commit()
        await self._commit(rows, grants)

    async def _await_commit(self) -> None:
        """Wait for the automatic commit in flight: it could overwrite a later commit."""
        if self._committing is not None:
            await asyncio.wait([self._committing])

    def _grants(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the grants of these partitions, to attribute a later commit to them."""
        return {}

    async def _commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
    ) -> None:
        if not rows:
            return
        operation = group_requests.commit_offsets(
            self._cluster, self._group(), rows, self._deadline()
        )
        requests.raise_first(await self._shell.run(operation))

    def _has_changes(self) -> bool:
        """Return whether assignment changes are pending (group members only)."""
        return False

    async def _take_changes(self) -> None:
        """Apply pending assignments and revocations."""

    def _is_commit_due(self) -> bool:
        return monotonic_ms() >= self._commit_due_ms

    def _auto_commit(self) -> None:
        """Send an automatic commit of the processed records, without waiting for the answer."""
        self._commit_due_ms = monotonic_ms() + self.config.auto_commit_interval_ms
        if self._committing is None or self._committing.done():
            rows = self._intake.settled()
            self._committing = self._shell.loop.create_task(
                self._try_commit(rows, self._grants(rows))
            )

    async def _try_commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
    ) -> None:
        """Commit and keep the error. Ignore partitions of other members: they commit their own."""
        try:
            with contextlib.suppress(NotOwnerError):
                await self._commit(rows, grants)
            self.commit_error = None
        except LogbusError as error:
            self.commit_error = error

    def _group(self) -> str:
        if self.group is None:
            raise InvalidGroupIdError("this consumer has no group; make it with group='…'")
        return self.group

    async def close(self) -> None:
        """Commit if automatic commits are on, and stop; see ``Consumer.close``."""
        await self._close(is_done=sys.exc_info()[0] is None)

    async def _close(self, *, is_done: bool) -> None:
        if self._end is not None:
            return
        try:
            if self._commit_due_ms != float("inf"):
                await self.commit(None if is_done else self._intake.settled())
        finally:
            self._end = ClosedError("the consumer was closed")
            self._news.set()
            self._shell.close()

    async def __aenter__(self) -> AsyncConsumer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self._close(is_done=kind is None)
        except LogbusError:
            if kind is None:
                raise
