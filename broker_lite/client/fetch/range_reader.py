"""``read_range``: read a fixed offset range of one partition, for Spark's executors.

The same range always yields the same rows in the same order. After a leader change, the reader
fetches from the new leader. It raises an error if records of the range were deleted or truncated,
or the topic was recreated. The calling thread makes the first fetch; if the range needs more, a
thread fetches ahead into a bounded queue while the caller decodes. Connections come from the
process's pool."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from broker_lite.client.fetch.fetches import answers_of, fetch_request
from broker_lite.client.fetch.position import Corrupt, Failed, FetchPosition, Retry, Stored
from broker_lite.client.in_place.partitions import LOCAL_BYTES_MIN, InPlace
from broker_lite.client.operations import offset_requests, requests
from broker_lite.client.operations.bounds import check_offsets
from broker_lite.client.operations.cluster import backoff_ms, cluster_at
from broker_lite.client.received import (
    Item,
    LogTruncatedError,
    Skipped,
    Slice,
    WalkResult,
    decode_all,
)
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.pool import Pool, PooledConnection, shared_pool
from broker_lite.client.transport.steps import FetchExchange
from broker_lite.errors import (
    ClosedError,
    InvalidConfigError,
    LogbusError,
    NoBrokersError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicIdError,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    Endpoint,
    TopicPartition,
)
from broker_lite.wire.fetch import NO_FILES, FetchedPartition, FetchRequest

FETCH_BYTES = 8 << 20
"""The default of ``fetch_bytes``: the maximum bytes of a fetch response."""
DEPTH = 2
"""Maximum number of fetch responses that wait to be decoded."""
TIMEOUT_MS = 120_000
"""Milliseconds without any new batch after which a read fails, by default."""
REQUEST_TIMEOUT_MS = 30_000
"""Milliseconds without a response after which the reader retries a fetch, by default."""
WAIT_MS = 500
"""Milliseconds for which the leader may wait for records before it answers a fetch.

A leader has all records of the range, unless it has just become leader and its high watermark
lags."""

FetchedBatch = Slice
OnSkipped = Callable[[TopicPartition, int, int], None]


def read_range(
    tp: TopicPartition,
    topic_id: str,
    leader_epoch: int,
    start: int,
    end: int,
    *,
    bootstrap: str,
    leader: Endpoint | None = None,
    fetch_bytes: int = FETCH_BYTES,
    isolation: str = "read_committed",
    on_corrupt: str = "fail",
    timeout_ms: float = TIMEOUT_MS,
    request_timeout_ms: float = REQUEST_TIMEOUT_MS,
    pool: Pool | None = None,
    on_skipped: OnSkipped | None = None,
    local_reads: bool = True,
    reads_once: bool = False,
    start_epoch: int = NO_EPOCH,
) -> Iterator[FetchedBatch]:
    """Yield the rows with ``start <= offset < end`` of one partition, batch by batch.

    ``leader`` is the partition's leader, if known; otherwise metadata is requested first. At most
    ``DEPTH + 1`` responses of ``fetch_bytes`` each are buffered. With ``on_corrupt="skip"``, a
    corrupt batch is skipped and reported: ``on_skipped(partition, first offset, next offset)``.

    With ``local_reads``, the calling thread reads the segment files of a leader on this machine,
    or, if that fails, fetches over the network. ``reads_once`` keeps these reads out of the page
    cache.

    ``start_epoch`` is the leader epoch at the time when ``start`` was the log's end, if known.
    From this epoch the leader detects that the log was truncated below ``start`` and has grown
    again since.

    Raises OffsetOutOfRangeError with the log's start and end, its subclass LogTruncatedError (the
    log lost records below the next offset), UnknownTopicIdError (the topic was deleted or
    recreated), CorruptMessageError, or the last error after ``timeout_ms`` of retries. A request
    without a response is retried after ``request_timeout_ms``."""
    if on_corrupt not in ("fail", "skip"):
        raise InvalidConfigError(f"on.corrupt={on_corrupt!r}: give fail or skip")
    check_offsets({tp: start})
    check_offsets({tp: end})
    options = _RangeOptions(
        bootstrap,
        shared_pool() if pool is None else pool,
        fetch_bytes,
        offset_requests.isolation_code(isolation),
        on_corrupt == "skip",
        timeout_ms,
        request_timeout_ms,
        local_reads and fetch_bytes >= LOCAL_BYTES_MIN,
        reads_once,
    )
    position = FetchPosition(tp, topic_id, start, last_epoch=start_epoch)
    session = _RangeSession(position, options, leader, leader_epoch)
    return _rows(session, start, end, on_skipped)


def _rows(
    session: _RangeSession, start: int, end: int, on_skipped: OnSkipped | None
) -> Iterator[FetchedBatch]:
    while True:
        corrupt_at = end
        with contextlib.closing(_batches(session, end)) as batches:
            for item in decode_all(batches, session.tp, start, end):
                if isinstance(item, Slice):
                    yield item
                    continue
                first = max(start, item.first_offset)
                if item.damage is not None:
                    if session.may_be_intact_elsewhere(first):
                        corrupt_at = first
                        break
                    if not session.skips_corrupt:
                        raise item.damage
                if on_skipped is not None:
                    on_skipped(session.tp, first, min(item.next_offset, end))
        if corrupt_at >= end:
            return
        session = session.repair(corrupt_at)


def _batches(session: _RangeSession, end: int) -> Generator[list[Item], None, None]:
    position = session.position
    if position.offset >= end:
        return
    try:
        items = session.fetch()
    except BaseException:
        session.close()
        raise
    is_closed = False
    try:
        while position.offset >= end or session.reads_files:
            yield items
            # Release the batches before the next fetch, so that it reuses their memory.
            items.clear()
            if position.offset >= end:
                return
            items = session.fetch()
        is_closed = True
    finally:
        if not is_closed:
            session.close()
    ahead = _Prefetcher(session, end)
    try:
        yield items
        yield from ahead.items()
    finally:
        ahead.stop()


class _Prefetcher:
    """A thread that fetches the next batches of a range while the caller decodes earlier ones.

    Its queue holds the batches of at most ``DEPTH`` responses."""

    def __init__(self, session: _RangeSession, end: int) -> None:
        self._session = session
        self._end = end
        self._ready: queue.Queue[list[Item] | BaseException | None] = queue.Queue(DEPTH)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"logbus-fetch-{session.tp}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        last: BaseException | None = None
        try:
            while self._session.position.offset < self._end and not self._stopped.is_set():
                self._put(self._session.fetch())
        except BaseException as error:  # ``items`` raises this error in the caller's thread.
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
            yield entry

    def stop(self) -> None:
        """Stop the thread and release its connection, even before the end of the range."""
        self._stopped.set()
        self._session.interrupt()
        self._thread.join(5.0)


class _RangeOptions(NamedTuple):
    bootstrap: str
    pool: Pool
    fetch_bytes: int
    isolation_level: int
    skips_corrupt: bool
    timeout_ms: float
    request_timeout_ms: float
    local_reads: bool
    reads_once: bool


class _RangeSession:
    """Fetches the batches of one range from the current leader, one request at a time."""

    def __init__(
        self,
        position: FetchPosition,
        options: _RangeOptions,
        leader: Endpoint | None,
        leader_epoch: int,
    ) -> None:
        self.position = position
        self.tp = position.tp
        self.skips_corrupt = options.skips_corrupt
        self.reads_files = False
        """Whether the last batches came from the leader's files on this machine. The thread that
        decodes then also reads; no other thread fetches ahead."""
        self._options = options
        pool = self._pool = options.pool
        self._cluster = cluster_at(options.bootstrap, pool.security.user)
        self._leader = leader
        self._leader_epoch = leader_epoch
        self._connection: PooledConnection | None = None
        self._in_place = InPlace(self._is_here, reads_once=options.reads_once)
        if not options.local_reads:
            self._in_place.refuse(self.tp)
        self._retried_at = -1
        """The offset of the corrupt batch that ``repair`` created this session to fetch again, else
        -1."""
        self._throttled_until_ms = 0.0
        self._interruption = threading.Event()

    def may_be_intact_elsewhere(self, offset: int) -> bool:
        """Return whether to fetch the corrupt batch at ``offset`` again, in the new session that
        ``repair`` returns.

        A new session may return an intact copy if the batch was read from a local file, or other
        replicas exist. The new session returns False for this batch: no third session follows."""
        if self._retried_at == offset:
            return False
        return self._in_place.was_read(self.tp) or self._has_copies()

    def repair(self, offset: int) -> _RangeSession:
        """Return a new session from ``offset`` on, for which the leader checks CRCs and repairs
        batches."""
        position = FetchPosition(self.tp, self.position.topic_id, offset)
        position.begin_repair(monotonic_ms())
        other = _RangeSession(position, self._options, self._leader, self._leader_epoch)
        other._retried_at = offset
        return other

    def fetch(self) -> list[Item]:
        """Return the next batches, at least one, and advance past them.

        A ``Skipped`` takes the place of corrupt batches that the reader skips."""
        position, options = self.position, self._options
        deadline_ms = monotonic_ms() + options.timeout_ms
        while True:
            walked = self._in_place.read(self.tp) if self.tp in self._in_place else None
            self.reads_files = walked is not None
            if walked is not None:
                position.advance(walked)
                return [*walked.batches]
            deadline_ms += self._wait_for_quota()
            evaluation = position.evaluate(self._fetch_once(deadline_ms))
            if isinstance(evaluation, WalkResult) and not evaluation.batches:
                if self._throttled_until_ms > monotonic_ms():
                    continue
                problem = "the leader's log ends before the end of the range"
                evaluation = position.evaluate(RequestTimedOutError(problem))
            match evaluation:
                case WalkResult():
                    return [*evaluation.batches]
                case Stored(stored, walker):
                    self._in_place.open(self.tp, stored, walker)
                case Corrupt(error):
                    if position.awaits_repair(monotonic_ms(), self._has_copies()):
                        self._pause(error, position.failures - 1, deadline_ms)
                    elif self.skips_corrupt:
                        return [self._skip(deadline_ms)]
                    else:
                        raise position.located(error)
                case Failed(error):
                    raise self._with_bounds(error, deadline_ms)
                case Retry(UnknownTopicIdError() as error):
                    raise position.located(error)
                case Retry(LogbusError() as error, attempt):
                    self._pause(error, attempt, deadline_ms)

    def _wait_for_quota(self) -> float:
        """Wait while the leader throttles this client, which is over its quota (KIP-219). Return
        the milliseconds of the wait. Raises ClosedError if ``interrupt`` ends the wait."""
        wait_ms = max(0.0, self._throttled_until_ms - monotonic_ms())
        if wait_ms and self._interruption.wait(wait_ms / 1000):
            raise ClosedError("the read was stopped")
        return wait_ms

    def _fetch_once(self, deadline_ms: float) -> FetchedPartition | LogbusError:
        try:
            until_ms = min(deadline_ms, monotonic_ms() + self._options.request_timeout_ms)
            if self._leader is None:
                self._find_leader()
            assert self._leader is not None
            if self._connection is None:
                self._connection = self._pool.borrow(self._leader, until_ms - monotonic_ms())
            self._connection.send(FetchExchange(self._request(self._leader)), until_ms)
            answer = self._connection.receive(until_ms)
        except LogbusError as error:
            self._lose_connection()
            return error
        if answer.throttle_time_ms:
            self._throttled_until_ms = monotonic_ms() + answer.throttle_time_ms
        topic_ids = {self.tp: self.position.topic_id}
        return answers_of(answer, topic_ids, self._cluster.user)[self.tp]

    def _request(self, leader: Endpoint) -> FetchRequest:
        position, options = self.position, self._options
        is_repair = position.repair_until_ms > 0
        return fetch_request(
            [position.request(self._leader_epoch, options.fetch_bytes)],
            WAIT_MS,
            options.isolation_level,
            max_bytes=options.fetch_bytes,
            is_repair=is_repair,
            files=NO_FILES if is_repair else self._in_place.offer(leader, "", [self.tp]),
        )

    def _is_here(self, endpoint: Endpoint, lane: str) -> bool:
        return self._connection is not None and self._connection.is_to_this_machine

    def _has_copies(self) -> bool:
        if self._cluster.view.partition(self.tp) is None:
            with contextlib.suppress(NoBrokersError):
                self._pool.run(requests.refresh_once(self._cluster, (self.tp.topic,)))
        return self._cluster.view.has_copies(self.tp)

    def _pause(self, error: LogbusError, attempt: int, deadline_ms: float) -> None:
        """Wait for the backoff of ``attempt``, and look up the leader again.

        If the deadline has passed, raise ``error``."""
        if self._interruption.is_set():
            raise error
        pause_ms = backoff_ms(attempt)
        if monotonic_ms() + pause_ms >= deadline_ms:
            raise self.position.located(error)
        self._interruption.wait(pause_ms / 1000.0)
        with contextlib.suppress(NoBrokersError):
            self._find_leader()

    def _skip(self, deadline_ms: float) -> Skipped:
        """Skip the batch at the position. Its header is corrupt, so its end is unknown."""
        position, offset = self.position, self.position.offset
        operation = offset_requests.offset_after_corrupt(
            self._cluster, self.tp, offset, position.topic_id, deadline_ms
        )
        next_offset = self._pool.run(operation)
        position.skip_to(next_offset)
        return Skipped(offset, next_offset)

    def _with_bounds(self, error: LogbusError, deadline_ms: float) -> LogbusError:
        """Return ``error``. If the offset is outside the log, the error also names the log's start
        and end."""
        if not isinstance(error, OffsetOutOfRangeError) or isinstance(error, LogTruncatedError):
            return error
        ends = []
        for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
            operation = offset_requests.list_offsets(
                self._cluster,
                {self.tp: timestamp},
                isolation_level=self._options.isolation_level,
                deadline_ms=deadline_ms,
            )
            listed: Any = requests.raise_first(self._pool.run(operation))
            ends.append(listed[self.tp].offset)
        return OffsetOutOfRangeError(
            f"topic {self.tp.topic!r} partition {self.tp.partition}: offset "
            f"{self.position.offset} is not in the log, which begins at {ends[0]} and ends at "
            f"{ends[1]}"
        )

    def _find_leader(self) -> None:
        """Look up the leader and its epoch. Raise UnknownTopicIdError if the topic was
        recreated."""
        self._pool.run(requests.refresh_once(self._cluster, (self.tp.topic,)))
        view, topic_id = self._cluster.view, self.position.topic_id
        topic = view.topics.get(self.tp.topic)
        if topic is not None and topic.error is None and topic.topic_id != topic_id:
            raise UnknownTopicIdError(
                f"topic {self.tp.topic!r} was deleted and recreated: its id is "
                f"{topic.topic_id}, not {topic_id}"
            )
        leader = view.leader(self.tp)
        epoch = view.leader_epoch(self.tp)
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
        """Abort the request in flight, or a wait, from another thread."""
        self._interruption.set()
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def close(self) -> None:
        self._in_place.close_all()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection)
