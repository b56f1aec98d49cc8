"""The asyncio face: ``aconnect``, ``AsyncBus``, ``AsyncProducer``, ``AsyncConsumer``.

The same engines as under the blocking face (``sender``, ``fetching``, ``intake``), on the running
loop instead of a thread of their own. Objects belong to the loop that made them. Nothing blocks the
loop, but for decoding a batch, at most a few milliseconds.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from broker_lite.client import admin_requests, requests
from broker_lite.client.admin import Admin
from broker_lite.client.blocking import monotonic_ms
from broker_lite.client.bus import named_topics
from broker_lite.client.cluster import Cluster, ClusterView
from broker_lite.client.discovery import parse_endpoints, resolve
from broker_lite.client.fetching import FetchEngine
from broker_lite.client.futures import BatchFuture, BatchMetadata, Outcome, RecordMetadata
from broker_lite.client.intake import JOINED_ROWS, Intake, arrow_rows
from broker_lite.client.loop import LoopShell, resolve_with
from broker_lite.client.options import build, check_names
from broker_lite.client.producer import Producer
from broker_lite.client.received import Record, Slice
from broker_lite.client.starting import reset_offsets, resolve_partitions, starting_offsets
from broker_lite.config import ConsumerConfig, ProducerConfig
from broker_lite.errors import (
    BufferFullError,
    ClosedError,
    InvalidGroupIdError,
    LogbusError,
    RequestTimedOutError,
    TopicExistsError,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CommittedOffset,
    TopicPartition,
)
from broker_lite.wire.calls import topics as topic_calls

OPERATION_TIMEOUT_MS = 30_000
RECORDS_AHEAD = 256


async def aconnect(
    bootstrap_servers: str | Sequence[str] | None = None,
    *,
    zookeeper: str | None = None,
    client_id: str = "logbus",
    **options: Any,
) -> AsyncBus:
    """``connect`` for asyncio: the same arguments, the same errors."""
    check_names(options)
    servers = await asyncio.to_thread(resolve, bootstrap_servers, zookeeper)
    bus = AsyncBus(servers, client_id=client_id, options=options)
    await bus.cluster(())
    return bus


class AsyncBus:
    """One cluster, on one event loop. ``admin`` is the blocking ``Admin``: call it in a thread
    (``await asyncio.to_thread(bus.admin.log_dirs)``)."""

    def __init__(
        self, bootstrap_servers: str, *, client_id: str, options: Mapping[str, Any]
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.client_id = client_id
        self.admin = Admin(bootstrap_servers, client_id=client_id)
        self._shell = LoopShell(client_id)
        self._cluster = Cluster(parse_endpoints(bootstrap_servers), monotonic_ms, client_id)
        self._options = {"client_id": client_id, **options}

    def producer(self, **options: Any) -> AsyncProducer:
        """A producer; options as for ``Bus.producer``."""
        config = build(ProducerConfig, options, self._options)
        return AsyncProducer(self.bootstrap_servers, config)

    def consumer(
        self,
        *topics: str | TopicPartition | Iterable[str],
        group: str | None = None,
        partitions: Iterable[TopicPartition | int] | None = None,
        **options: Any,
    ) -> AsyncConsumer:
        """A consumer, begun by ``async with`` or ``await start()``; options as for ``Bus``."""
        names, chosen = named_topics(topics, partitions)
        group = options.pop("group_id", group) if group is None else group
        config = build(ConsumerConfig, options, self._options)
        return AsyncConsumer(
            self.bootstrap_servers, names, group=group, partitions=chosen, config=config
        )

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> str:
        """Make a topic; its id. See ``Admin.create_topic``."""
        rows = tuple((key, str(value)) for key, value in (config or {}).items())
        topic = topic_calls.CreatableTopic(name, partitions, replication_factor, configs=rows)
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        try:
            return await self._shell.run(
                admin_requests.create_topic(
                    self._cluster, topic, validate_only=False, deadline_ms=deadline_ms
                )
            )
        except TopicExistsError:
            if not if_not_exists:
                raise
            return (await self.cluster((name,))).topic_id(name)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        await self._shell.run(admin_requests.delete_topic(self._cluster, name, deadline_ms))

    async def cluster(self, topics: Iterable[str] | None = None) -> ClusterView:
        """Brokers, controller and topics."""
        names = None if topics is None else tuple(topics)
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        return await self._shell.run(requests.refresh(self._cluster, names, deadline_ms))

    async def topics(self) -> list[str]:
        """The names of all topics."""
        return sorted((await self.cluster()).topics)

    async def close(self) -> None:
        """Close the connections; producers and consumers are closed by themselves."""
        self._shell.close()
        self.admin.close()

    async def __aenter__(self) -> AsyncBus:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Sent(asyncio.Future[RecordMetadata]):
    """A record on its way. Awaiting it ends the batch's linger; gathering many does not."""

    outcome: Outcome | None = None

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if self.outcome is not None and not self.outcome.done:
            self.outcome.wake(self.outcome)
        return super().__await__()

    __iter__ = __await__


def _nothing() -> None:
    """The result of waiting."""


class AsyncProducer:
    """``Producer`` for asyncio: ``await producer.send(…)`` is the acknowledgement."""

    def __init__(self, bootstrap_servers: str, config: ProducerConfig) -> None:
        self.config = config
        self._shell = LoopShell(config.client_id)
        self._core = Producer(bootstrap_servers, config, shell=self._shell)
        self._waiting: deque[tuple[Sent, tuple[Any, ...], float]] = deque()
        self._is_watching = False

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Sent:
        """Send a record, in the order of calls; awaiting tells where it went.

        While the producer's memory is full records wait their turn, for ``max_block_ms`` at most
        (BufferFullError). Other errors as for ``Producer.send``, from the await.
        """
        sent = Sent(loop=self._shell.loop)
        arguments = (topic, value, key, headers, partition, timestamp_ms)
        if self._waiting or self._core.is_full:
            deadline_ms = monotonic_ms() + self.config.max_block_ms
            self._waiting.append((sent, arguments, deadline_ms))
            self._watch_space()
        else:
            self._start(sent, arguments)
        return sent

    def _start(self, sent: Sent, arguments: tuple[Any, ...]) -> None:
        try:
            future = self._core.send(*arguments)
        except LogbusError as error:
            sent.set_exception(error)
            return
        sent.outcome = future.outcome
        future.add_done_callback(lambda done: resolve_with(sent, lambda: done.result(0)))

    def _watch_space(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._shell.later(1, self._retry)

    def _retry(self) -> None:
        self._is_watching = False
        now_ms = monotonic_ms()
        while self._waiting:
            sent, arguments, deadline_ms = self._waiting[0]
            if self._core.is_full and deadline_ms > now_ms:
                self._watch_space()
                return
            self._waiting.popleft()
            if sent.done():
                continue
            if self._core.is_full:
                sent.set_exception(
                    BufferFullError(
                        f"no room within max.block.ms={self.config.max_block_ms}; is it up?"
                    )
                )
            else:
                self._start(sent, arguments)

    async def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[BatchMetadata]:
        """Send Arrow rows and wait for the acknowledgements; see ``Producer.send_arrow``."""
        futures: list[BatchFuture] = []
        for piece in self._core.arrow_pieces(topic, data, key, value, partition):
            while self._core.is_full:
                await asyncio.sleep(0.001)
            futures.append(self._core.send_piece(topic, piece, timestamp_ms))
        return [row for future in futures for row in await self._await(future)]

    async def _await(self, future: BatchFuture) -> list[BatchMetadata]:
        await self._all_done(future.outcomes)
        return future.result(0)

    async def _all_done(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            done: asyncio.Future[None] = self._shell.loop.create_future()
            outcome.add_done_callback(partial(resolve_with, done, _nothing))
            await done

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent before is acknowledged; errors as ``Producer.flush``."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._waiting:
                    await asyncio.sleep(0.001)
                waiting = self._core.start_flush()
                await self._all_done(waiting)
        except TimeoutError:
            raise RequestTimedOutError(f"not all was acknowledged within {timeout_s} s") from None
        self._core.end_flush(waiting)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, then end."""
        try:
            await self.flush(timeout_s)
        finally:
            self._core.end()
            self._shell.close()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.close()
        except LogbusError:
            if kind is None:
                raise


class AsyncConsumer:
    """``Consumer`` for asyncio: ``async for record in consumer`` waits at the end.

    Commits by itself at least once, as ``Consumer`` does: what is under way when the process dies,
    or an exception leaves the ``async with`` block, comes again.
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
            on_view=self._look_for_partitions,
        )
        self._intake = Intake(self._engine, skips_corrupt=config.on_corrupt == "skip")
        self._out_of_range: deque[TopicPartition] = deque()
        self._commit_due_ms = float("inf")
        self._committing: asyncio.Task[None] | None = None
        self._end: LogbusError | None = None
        self._is_started = False

    async def start(self) -> None:
        """Find the partitions and where to begin; done by ``async with`` and by the first read."""
        if self._is_started:
            return
        self._is_started = True
        deadline_ms = self._deadline()
        wheres = await self._shell.run(
            resolve_partitions(self._cluster, self._topics, self._partitions, deadline_ms)
        )
        self._intake.begin(
            await self._shell.run(
                starting_offsets(self._cluster, self.group, wheres, self.config, deadline_ms)
            )
        )
        if self.group is not None and self.config.auto_commit:
            self._commit_due_ms = monotonic_ms() + self.config.auto_commit_interval_ms

    def _deadline(self) -> float:
        return monotonic_ms() + OPERATION_TIMEOUT_MS

    # -- reading

    async def __aiter__(self) -> AsyncIterator[Record]:
        intake = self._intake
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

    async def poll(self, timeout_s: float = 0.0, max_records: int = 10_000) -> list[Record]:
        """The next records; [] if none came in ``timeout_s``."""
        self._intake.settle()
        found: list[Record] = []
        while len(found) < max_records and await self._fill(
            0.0 if found else timeout_s, bool(found)
        ):
            found += self._intake.take_records(max_records - len(found))
        return found

    async def poll_arrow(
        self, timeout_s: float = 0.0, *, headers: bool = False, max_rows: int | None = None
    ) -> pa.RecordBatch:
        """The next rows as Arrow; see ``Consumer.poll_arrow``."""
        self._intake.settle()
        parts: list[tuple[TopicPartition, Slice]] = []
        count = 0
        limit = JOINED_ROWS if max_rows is None else min(JOINED_ROWS, max_rows)
        while count < limit and await self._fill(0.0 if parts else timeout_s, bool(parts)):
            part = self._intake.take_rows(None if max_rows is None else max_rows - count)
            parts.append(part)
            count += part[1].row_count
        return arrow_rows(parts, headers=headers)

    async def _fill(self, timeout_s: float | None, is_more: bool = False) -> bool:
        """As in ``Consumer``. With ``is_more`` it never waits, so that nothing that the call has
        taken can be lost to a cancellation."""
        await self.start()
        deadline_ms = float("inf") if timeout_s is None else monotonic_ms() + timeout_s * 1000
        while True:
            if self._end is not None:
                raise self._end
            if not is_more and self._is_commit_due():
                self._auto_commit()
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
                await self._reset(self._out_of_range.popleft())
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
        if self.config.start == "none":
            raise error
        self._out_of_range.append(where)

    async def _reset(self, where: TopicPartition) -> None:
        timestamp = EARLIEST_TIMESTAMP if self.config.start == "earliest" else LATEST_TIMESTAMP
        await self._seek_listed(timestamp, (where,))

    def _look_for_partitions(self, view: ClusterView) -> None:
        if self._partitions is None:
            known = set(self._intake.assignment())
            new = [
                where
                for topic in self._topics
                for where in view.partitions_of(topic)
                if where not in known
            ]
            if new and known:
                self._intake.begin(dict.fromkeys(new, 0))

    # -- positions

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read; none before ``start``."""
        return self._intake.assignment()

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next record of each partition that will be handed out."""
        return {where: self._intake.position(where) or 0 for where in self.assignment()}

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on from an offset."""
        self._intake.begin({TopicPartition(topic, partition): offset})

    async def seek_to_beginning(self, *wheres: TopicPartition) -> None:
        """Go on from the oldest record of these partitions, or of all."""
        await self._seek_listed(EARLIEST_TIMESTAMP, wheres)

    async def seek_to_end(self, *wheres: TopicPartition) -> None:
        """Go on behind the newest record of these partitions, or of all."""
        await self._seek_listed(LATEST_TIMESTAMP, wheres)

    async def seek_to_time(self, timestamp_ms: int, *wheres: TopicPartition) -> None:
        """Go on from the first record at or after a time, else from the end."""
        await self._seek_listed(int(timestamp_ms), wheres)

    async def _seek_listed(self, timestamp_ms: int, wheres: Sequence[TopicPartition]) -> None:
        await self.start()
        chosen = list(wheres) or self.assignment()
        self._intake.begin(
            await self._shell.run(
                reset_offsets(self._cluster, chosen, timestamp_ms, self.config, self._deadline())
            )
        )

    def pause(self, *wheres: TopicPartition) -> None:
        """Hand out nothing more of these partitions, or of all."""
        self._intake.pause(wheres or self.assignment(), True)

    def resume(self, *wheres: TopicPartition) -> None:
        """Go on with these partitions, or with all."""
        self._intake.pause(wheres or self.assignment(), False)
        self._news.set()

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Where the partitions end now (exclusive)."""
        await self.start()
        return await self._shell.run(
            reset_offsets(
                self._cluster, self.assignment(), LATEST_TIMESTAMP, self.config, self._deadline()
            )
        )

    async def lag(self) -> dict[TopicPartition, int]:
        """How many offsets the positions are behind the ends."""
        ends, positions = await self.end_offsets(), self.positions()
        return {where: max(0, ends[where] - positions[where]) for where in ends}

    # -- the group

    async def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """The group's offsets of the partitions that are read."""
        await self.start()
        operation = requests.committed(
            self._cluster, self._group(), self.assignment(), self._deadline()
        )
        return requests.raise_first(await self._shell.run(operation))

    def settled(self) -> dict[TopicPartition, CommittedOffset]:
        """The positions without what is under way: what an automatic commit takes."""
        return self._intake.settled()

    async def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None
    ) -> None:
        """Commit these offsets (the next to read), or the positions: behind everything handed out,
        the records under way among them."""
        rows = self._intake.commitable() if offsets is None else offsets
        if self._committing is not None:
            # One that is under way would undo a later one.
            await asyncio.wait([self._committing])
        await self._commit(rows)

    async def _commit(self, offsets: Mapping[TopicPartition, CommittedOffset | int]) -> None:
        rows = {
            where: CommittedOffset(row) if isinstance(row, int) else row
            for where, row in offsets.items()
        }
        if not rows:
            return
        operation = requests.commit_offsets(self._cluster, self._group(), rows, self._deadline())
        requests.raise_first(await self._shell.run(operation))

    def _is_commit_due(self) -> bool:
        return monotonic_ms() >= self._commit_due_ms

    def _auto_commit(self) -> None:
        """Send off what is done with; nobody waits for the answer."""
        self._commit_due_ms = monotonic_ms() + self.config.auto_commit_interval_ms
        if self._committing is None or self._committing.done():
            self._committing = self._shell.loop.create_task(
                self._try_commit(self._intake.settled())
            )

    async def _try_commit(self, rows: Mapping[TopicPartition, CommittedOffset]) -> None:
        try:
            await self._commit(rows)
            self.commit_error = None
        except LogbusError as error:
            self.commit_error = error

    def _group(self) -> str:
        if self.group is None:
            raise InvalidGroupIdError("this consumer has no group; make it with group='…'")
        return self.group

    async def close(self) -> None:
        """Commit, if the consumer does so by itself, and end; see ``Consumer.close``."""
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
