"""Read a fixed offset range of one partition, for Spark's executors.

The same range always yields the same rows in the same order. The reader follows leader changes,
rejects a recreated topic, and raises an error for deleted records. The calling thread reads the
first answer. A longer range starts a thread that fetches ahead into a bounded queue while the
caller decodes. Connections come from the process's pool.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from broker_lite.client.discovery import parse_endpoints
from broker_lite.client.in_place.local_files import FILE_BYTES, LocalRange
from broker_lite.client.operations import requests
from broker_lite.client.operations.bounds import check_offsets
from broker_lite.client.operations.cluster import Cluster, backoff_ms
from broker_lite.client.operations.fetches import (
    LOCAL_BYTES_MIN,
    REPAIR_MS,
    answers_of,
    topics_of,
)
from broker_lite.client.received import (
    Item,
    Skipped,
    Slice,
    Walked,
    damaged,
    decode_all,
    walk,
)
from broker_lite.client.transport.blocking import Pool, PooledConnection, monotonic_ms, shared_pool
from broker_lite.client.transport.steps import FetchExchange
from broker_lite.errors import (
    CorruptMessageError,
    InvalidConfigError,
    LogbusError,
    NoBrokersError,
    OffsetOutOfRangeError,
    ProtocolError,
    RequestTimedOutError,
    UnknownTopicIdError,
)
from broker_lite.machine import machine_id
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    Endpoint,
    TopicPartition,
)
from broker_lite.record.format import BODY_VERSION
from broker_lite.record.walker import BatchWalker, LogBatch, WalkPolicy
from broker_lite.wire.fetch import (
    FLAG_CHECKS_CRC,
    FLAG_DOUBTS,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
)

FETCH_BYTES = 8 << 20
DEPTH = 2
TIMEOUT_MS = 120_000
REQUEST_TIMEOUT_MS = 30_000
WAIT_MS = 500
"""Milliseconds that the leader may wait for records. The range ends below the high watermark, so
the wait occurs only while a new leader catches up."""

FetchedBatch = Slice
OnSkipped = Callable[[TopicPartition, int, int], None]


def read_range(
    where: TopicPartition,
    topic_id: str,
    leader_epoch: int,
    start: int,
    end: int,
    *,
    bootstrap: str,
    leader: Endpoint | None = None,
    fetch_bytes: int = FETCH_BYTES,
    depth: int = DEPTH,
    isolation: str = "read_committed",
    on_corrupt: str = "fail",
    timeout_ms: float = TIMEOUT_MS,
    request_timeout_ms: float = REQUEST_TIMEOUT_MS,
    pool: Pool | None = None,
    on_skipped: OnSkipped | None = None,
    local_reads: bool = True,
    reads_once: bool = False,
    first_answer: FetchedPartition | None = None,
) -> Iterator[FetchedBatch]:
    """Yield the rows with ``start <= offset < end`` of one partition, batch by batch.

    ``leader`` saves a metadata request. The reader buffers at most ``depth + 1`` answers of
    ``fetch_bytes`` each. ``on_corrupt="skip"`` skips a corrupt batch and calls
    ``on_skipped(partition, first offset, next offset)``.

    With ``local_reads``, the calling thread reads the segment files of a leader on this machine,
    and fetches over the network if that fails. ``reads_once`` keeps these file reads out of the
    page cache. ``first_answer`` is an answer to a fetch from ``start`` (see
    ``fetch_first_answers``) and saves the first fetch.

    Raises OffsetOutOfRangeError (names the log's start and end), UnknownTopicIdError (the topic was
    deleted or recreated), CorruptMessageError, or the last error after ``timeout_ms`` of retries. A
    request without an answer is retried after ``request_timeout_ms``.
    """
    if on_corrupt not in ("fail", "skip"):
        raise InvalidConfigError(f"on.corrupt={on_corrupt!r}: give fail or skip")
    check_offsets({where: start})
    check_offsets({where: end})
    session = _Session(
        where,
        topic_id,
        leader_epoch,
        leader,
        pool=shared_pool() if pool is None else pool,
        bootstrap=bootstrap,
        fetch_bytes=fetch_bytes,
        isolation_level=requests.isolation_code(isolation),
        timeout_ms=timeout_ms,
        request_timeout_ms=request_timeout_ms,
        skips=on_corrupt == "skip",
        local_reads=local_reads,
        reads_once=reads_once,
    )
    session.first_answer = first_answer
    return _rows(session, start, end, depth, on_skipped)


def _rows(
    session: _Session, start: int, end: int, depth: int, on_skipped: OnSkipped | None
) -> Iterator[FetchedBatch]:
    at = start
    while True:
        doubted = end
        with contextlib.closing(_batches(session, at, end, depth)) as batches:
            for item in decode_all(batches, session.where, start, end):
                if isinstance(item, Slice):
                    yield item
                    continue
                first = max(start, item.first_offset)
                if item.damage is not None:
                    if session.may_be_whole_elsewhere(first):
                        doubted = first
                        break
                    if not session.skips:
                        raise item.damage
                if on_skipped is not None:
                    on_skipped(session.where, first, min(item.next_offset, end))
        if doubted >= end:
            return
        at, session = doubted, session.again(doubted)


def _batches(
    session: _Session, start: int, end: int, depth: int
) -> Generator[list[Item], None, None]:
    if start >= end:
        return
    try:
        items, offset = session.fetch(start)
    except BaseException:
        session.close()
        raise
    is_closed = False
    try:
        while offset >= end or depth < 1 or session.reads_files:
            yield _below(items, end)
            # Release the batches before the next fetch, so that it reuses their memory.
            items.clear()
            if offset >= end:
                return
            items, offset = session.fetch(offset)
        is_closed = True
    finally:
        if not is_closed:
            session.close()
    ahead = _Ahead(session, offset, end, depth)
    try:
        yield _below(items, end)
        yield from ahead.items()
    finally:
        ahead.stop()


def _below(items: list[Item], end: int) -> list[Item]:
    """Remove batches at or beyond ``end``: their corruption must not fail this range."""
    while items and isinstance(items[-1], LogBatch) and items[-1].header.base_offset >= end:
        items.pop()
    return items


class _Ahead:
    """A thread that fetches while the caller decodes; its queue holds at most ``depth`` answers."""

    def __init__(self, session: _Session, offset: int, end: int, depth: int) -> None:
        self._session = session
        self._offset = offset
        self._end = end
        self._ready: queue.Queue[list[Item] | BaseException | None] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"logbus-fetch-{session.where}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        last: BaseException | None = None
        try:
            while self._offset < self._end and not self._stopped.is_set():
                items, self._offset = self._session.fetch(self._offset)
                self._put(items)
        except BaseException as error:  # outermost frame of the thread: the caller raises the error
            last = error
        finally:
            self._session.close()
        self._put(last)

    def _put(self, entry: list[Item] | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._ready.put(entry, timeout=0.5)
                return
            except queue.Full:
                continue

    def items(self) -> Iterator[list[Item]]:
        while True:
            entry = self._ready.get()
            if entry is None:
                return
            if isinstance(entry, BaseException):
                raise entry
            yield _below(entry, self._end)

    def stop(self) -> None:
        """Stop the thread and release its connection, even before the end of the range."""
        self._stopped.set()
        self._session.interrupt()
        self._thread.join(5.0)


class _Session:
    """Fetches of one partition from its current leader, one request at a time."""

    def __init__(
        self,
        where: TopicPartition,
        topic_id: str,
        leader_epoch: int,
        leader: Endpoint | None,
        *,
        pool: Pool,
        bootstrap: str,
        fetch_bytes: int,
        isolation_level: int,
        timeout_ms: float,
        request_timeout_ms: float,
        skips: bool,
        local_reads: bool,
        reads_once: bool,
    ) -> None:
        self.where = where
        self._reads_once = reads_once
        self._local_reads = local_reads and fetch_bytes >= LOCAL_BYTES_MIN
        self._file: LocalRange | None = None
        self.reads_files = False
        """Whether the last batches came from local files. Local reads need no prefetch thread."""
        self.skips = skips
        self.first_answer: FetchedPartition | None = None
        self._bootstrap = bootstrap
        self._doubts = False
        self._doubted_at = -1
        self._repair_until_ms = 0.0
        self._topic_id = topic_id
        self._leader_epoch = leader_epoch
        self._leader = leader
        self._pool = pool
        self._cluster = Cluster(parse_endpoints(bootstrap), monotonic_ms, pool.client_id)
        self._fetch_bytes = fetch_bytes
        self._isolation_level = isolation_level
        self._timeout_ms = timeout_ms
        self._request_timeout_ms = request_timeout_ms
        self._connection: PooledConnection | None = None
        self._interrupted = False
        self._boundary = -1

    def may_be_whole_elsewhere(self, offset: int) -> bool:
        """Return whether to fetch a corrupt batch once more: once per batch, if copies exist."""
        if self._doubted_at == offset:
            return False
        if self._local_reads:
            return True
        with contextlib.suppress(NoBrokersError):
            self._pool.run(requests.refresh_once(self._cluster, (self.where.topic,)))
        return self._cluster.view.has_copies(self.where)

    def again(self, offset: int) -> _Session:
        """Return a new session that makes the leader verify the batch at ``offset``."""
        other = _Session(
            self.where,
            self._topic_id,
            self._leader_epoch,
            self._leader,
            pool=self._pool,
            bootstrap=self._bootstrap,
            fetch_bytes=self._fetch_bytes,
            isolation_level=self._isolation_level,
            timeout_ms=self._timeout_ms,
            request_timeout_ms=self._request_timeout_ms,
            skips=self.skips,
            local_reads=self._local_reads,
            reads_once=self._reads_once,
        )
        other._doubts, other._doubted_at = True, offset
        return other

    def _awaits_repair(self) -> bool:
        """Return whether a repair or a leader change may soon replace the corrupt batch."""
        now_ms = monotonic_ms()
        if not self._repair_until_ms:
            with contextlib.suppress(NoBrokersError):
                self._find_leader()
            self._repair_until_ms = now_ms + REPAIR_MS
        self._doubts = True
        return now_ms < self._repair_until_ms and self._cluster.view.has_copies(self.where)

    def fetch(self, offset: int) -> tuple[list[Item], int]:
        """Return at least one batch from ``offset`` on, and the offset of the next fetch."""
        first, self.first_answer = self.first_answer, None
        if first is not None:
            # On corruption, fetch again: that path waits for a repair or reports the error.
            with contextlib.suppress(CorruptMessageError):
                found = self._take(first, offset)
                if found is not None and found[0]:
                    return found
        if self._file is not None:
            found = self._from_file(self._file)
            if found is not None:
                return found
        deadline_ms = monotonic_ms() + self._timeout_ms
        attempt = 0
        while True:
            problem: LogbusError
            try:
                ask_by_ms = min(deadline_ms, monotonic_ms() + self._request_timeout_ms)
                answer = self._ask(offset, ask_by_ms)
                if not isinstance(answer, LogbusError):
                    found = self._take(answer, offset)
                    if found is None:
                        continue
                    if found[0]:
                        self._doubts, self._repair_until_ms = False, 0.0
                        return found
                    problem = RequestTimedOutError(
                        f"{self.where}: no records at offset {offset}, though the range ends later"
                    )
                else:
                    problem = answer
            except LogbusError as error:
                problem = error
                self._lose_connection()
            if isinstance(problem, CorruptMessageError) and not self._awaits_repair():
                if not self.skips:
                    raise self._located(problem, offset)
                return self._past(offset, deadline_ms)
            self._raise_final(problem, offset, deadline_ms)
            if self._interrupted:
                raise problem
            pause_ms = backoff_ms(attempt)
            if monotonic_ms() + pause_ms >= deadline_ms:
                raise self._located(problem, offset)
            time.sleep(pause_ms / 1000.0)
            with contextlib.suppress(NoBrokersError):
                self._find_leader()
            attempt += 1

    def _ask(self, offset: int, deadline_ms: float) -> FetchedPartition | LogbusError:
        if self._leader is None:
            self._find_leader()
        assert self._leader is not None
        if self._connection is None:
            self._connection = self._pool.borrow(self._leader, deadline_ms - monotonic_ms())
        wanted = FetchPartition(
            self.where.partition,
            offset,
            self._fetch_bytes,
            current_leader_epoch=self._leader_epoch,
        )
        request = FetchRequest(
            topics_of([(self._topic_id, wanted)]),
            WAIT_MS,
            max_bytes=self._fetch_bytes,
            isolation_level=self._isolation_level,
            columns_body_version=BODY_VERSION,
            flags=FLAG_DOUBTS if self._doubts else FLAG_CHECKS_CRC,
            machine=machine_id() if self._asks_for_files else b"",
            file_bytes=FILE_BYTES,
        )
        self._connection.send(FetchExchange(request), deadline_ms)
        answer = self._connection.receive(deadline_ms)
        return answers_of(answer, {self.where: self._topic_id})[self.where]

    def _take(self, answer: FetchedPartition, offset: int) -> tuple[list[Item], int] | None:
        """Return the batches of an answer and the next offset.

        Return None if the answer names segment files that cannot be opened.
        """
        policy = WalkPolicy(
            leader_epoch=self._leader_epoch, aborted=answer.aborted_transactions or ()
        )
        walker = BatchWalker(policy, offset, epoch=0, at_boundary=offset == self._boundary)
        if answer.stored is not None:
            if not self._asks_for_files:
                raise ProtocolError("a stored range, where records were asked for")
            try:
                file = LocalRange(answer.stored, walker, self.where, reads_once=self._reads_once)
            except OSError:
                self._local_reads = False
                return None
            self._file = file
            return self._from_file(file)
        self.reads_files = False
        found = walk(answer.records, walker, self.where)
        self._boundary = found.next_offset
        items: list[Item] = list(found.batches)
        if found.damage is None or items:
            # Ignore corruption behind valid batches. The next fetch starts at the corrupt batch.
            return items, found.next_offset
        raise found.damage

    def _from_file(self, file: LocalRange) -> tuple[list[Item], int] | None:
        """Return the next batches of the open local file range.

        If the file cannot be read or holds other data, disable local reads and return None.
        """
        found: Walked | None = None
        with contextlib.suppress(OSError):
            found = file.read()
        if found is None or not found.batches:
            self._close_file()
            self._local_reads = False
            return None
        if file.is_read:
            self._close_file()
        self._boundary, self.reads_files = found.next_offset, True
        return list(found.batches), found.next_offset

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @property
    def _asks_for_files(self) -> bool:
        connection = self._connection
        return (
            self._local_reads
            and not self._doubts
            and connection is not None
            and connection.is_to_this_machine
        )

    def _past(self, offset: int, deadline_ms: float) -> tuple[list[Item], int]:
        """Skip a batch with a corrupt header: look up the next offset in the leader's index."""
        operation = requests.offsets_for_bytes(
            self._cluster,
            {self.where: (offset, 1)},
            deadline_ms,
            {self.where.topic: self._topic_id},
        )
        next_offset = requests.raise_first(self._pool.run(operation))[self.where][0]
        if next_offset <= offset:
            raise damaged(self.where, offset, "the batch is damaged and nothing follows it")
        return [Skipped(offset, next_offset)], next_offset

    def _raise_final(self, problem: LogbusError, offset: int, deadline_ms: float) -> None:
        if isinstance(problem, OffsetOutOfRangeError):
            raise self._out_of_range(offset, deadline_ms)
        if isinstance(problem, UnknownTopicIdError) or not problem.retriable:
            raise self._located(problem, offset)

    def _out_of_range(self, offset: int, deadline_ms: float) -> LogbusError:
        ends = []
        for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
            operation = requests.list_offsets(
                self._cluster,
                {self.where: timestamp},
                isolation_level=self._isolation_level,
                deadline_ms=deadline_ms,
            )
            found: Any = requests.raise_first(self._pool.run(operation))
            ends.append(found[self.where].offset)
        return OffsetOutOfRangeError(
            f"topic {self.where.topic!r} partition {self.where.partition}: offset {offset} is not"
            f" in the log, which begins at {ends[0]} and ends at {ends[1]}"
        )

    def _located(self, problem: LogbusError, offset: int) -> LogbusError:
        if f"topic {self.where.topic!r}" in problem.message:
            return problem
        return type(problem)(
            f"topic {self.where.topic!r} partition {self.where.partition} offset {offset}: "
            f"{problem.message}"
        )

    def _find_leader(self) -> None:
        """Refresh the leader and its epoch; raise UnknownTopicIdError if the topic was
        recreated."""
        self._pool.run(requests.refresh_once(self._cluster, (self.where.topic,)))
        view = self._cluster.view
        topic = view.topics.get(self.where.topic)
        if topic is not None and topic.error is None and topic.topic_id != self._topic_id:
            raise UnknownTopicIdError(
                f"topic {self.where.topic!r} was deleted and made again: its id is "
                f"{topic.topic_id}, not {self._topic_id}"
            )
        leader = view.leader(self.where)
        epoch = view.leader_epoch(self.where)
        if leader is not None:
            if leader != self._leader:
                self._lose_connection()
            self._leader, self._leader_epoch = leader, max(epoch, NO_EPOCH)
        elif self._leader is None:
            self._leader = self._cluster.candidates()[0]

    def _lose_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def interrupt(self) -> None:
        """Abort the request in flight, from another thread."""
        self._interrupted = True
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def close(self) -> None:
        self._close_file()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection)
