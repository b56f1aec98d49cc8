"""``Producer``: sends records and Arrow rows, and blocks only while its buffer is full.

``send`` appends a record to its topic's open rows (records not in batches yet) under one lock, and
returns a future. Any thread may call it; its goal is at most 0.7 µs a record. The background
thread builds batches, sends them and completes the futures (``sender``). A producer cannot be used
in a forked child process."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from broker_lite.client.closing import ClosedByWith
from broker_lite.client.discovery import security_for
from broker_lite.client.operations import requests
from broker_lite.client.operations.bounds import INT32_MAX
from broker_lite.client.operations.cluster import cluster_at
from broker_lite.client.producing.accumulator import (
    PARTITIONS_FILLED_MAX,
    RECORD_OVERHEAD_BYTES,
    ROW_OVERHEAD_BYTES,
    Chunk,
    OpenRows,
    RowPiece,
    as_bytes,
    checked_headers,
    columns_of,
    tables_of,
)
from broker_lite.client.producing.futures import BatchFuture, Outcome, RecordFuture
from broker_lite.client.producing.sender import Sender
from broker_lite.client.transport.reactor import Reactor
from broker_lite.client.transport.steps import Operation, Shell, spawn
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    BufferFullError,
    ClosedError,
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidSchemaError,
    InvalidTopicError,
    LogbusError,
    MessageTooLargeError,
    RequestTimedOutError,
)
from broker_lite.record import arrow
from broker_lite.record.arrays import lengths_of
from broker_lite.record.arrow import Columns

T = TypeVar("T")

_EXPIRY_CHECK_MS = 1.0
BACKLOG_LINGER_MS = 100
"""Maximum milliseconds beyond ``linger_ms`` for which rows linger while other batches of the topic
wait to be sent.

The time is limited, because the other batches may be for a partition (say, without a leader) that
gets none of these rows."""
WAIT_SLICE_S = 1.0
"""Seconds after which a caller that waits checks again that the producer is still open."""
FAILURES_KEPT = 100
"""Maximum number of failed sends whose errors are remembered for the next ``flush`` to raise."""
EXIT_TIMEOUT_S = 10.0
"""Maximum seconds for which the interpreter's exit waits for the acknowledgements of a producer
that was not closed."""


def wall_ms() -> int:
    """Return the current time as a record's timestamp, in milliseconds since 1970."""
    return int(time.time() * 1000)


class Producer(ClosedByWith):
    """The blocking producer. It sends records to any topic of one cluster.

    Create it with ``Bus.producer``, and use it in a ``with`` block. By default it is idempotent
    with acks=all: an acknowledged record is on the disk of every in-sync replica exactly once, in
    the order of the sends. A record without ``timestamp_ms`` has the time of the first ``send``
    among the records that are collected with it."""

    def __init__(
        self,
        bootstrap_servers: str,
        config: ProducerConfig | None = None,
        *,
        shell: Shell | None = None,
    ) -> None:
        self.config = config = ProducerConfig() if config is None else config
        self._lock = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._waking = threading.Condition()
        self._open: dict[str, OpenRows] = {}
        self._limits: dict[str, int] = {}
        self._unfinished: dict[Outcome, None] = {}
        self._failures: list[Outcome] = []
        self._used_bytes = 0
        self._waiters = 0
        self._end: LogbusError | None = None
        self._shut: LogbusError | None = None
        """The error that ``send`` raises while a transactional producer has no open transaction,
        else None."""
        self._record_bytes_max = config.max_request_bytes - RECORD_OVERHEAD_BYTES
        security = security_for(bootstrap_servers, config.security)
        self._cluster = cluster_at(
            bootstrap_servers, security.user, has_answered=config.has_answered
        )
        # Without a shell (the object that does the I/O), run the sender on a thread of its own.
        # ``AsyncProducer`` passes the shell of its event loop, on which no call may block.
        self._reactor: Reactor | None = None
        if shell is None:
            shell = self._reactor = Reactor(config.client_id, "logbus-producer", security)
        self._shell: Shell = shell
        self._sender = Sender(
            self._shell,
            self._cluster,
            config,
            on_released=self._released,
            on_finished=self._finished,
        )
        if self._reactor is not None:
            self._reactor.start(self._crashed)
        _producers.add(self)

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full, so that the next ``send`` may block."""
        return self._used_bytes >= self.config.buffer_bytes

    # Methods that send rows.

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Send a record, and return a future whose result is the record's metadata.

        Without ``partition``, the murmur2 hash of the key selects the partition; a record without a
        key goes to the sticky partition. Text is encoded as UTF-8. A ``value`` of None is a
        tombstone. ``headers`` is a dict, or a list of pairs of name and bytes. ``timestamp_ms`` is
        in ms since 1970.

        While ``buffer_bytes`` of records are queued or in flight, the call blocks for
        ``max_block_ms`` at most. Raises MessageTooLargeError, BufferFullError, ClosedError, and for
        a wrong argument InvalidRecordError, InvalidTopicError, InvalidPartitionsError or
        InvalidSchemaError. The future raises the errors that occur later."""
        if value.__class__ is bytes:
            size = len(value) + ROW_OVERHEAD_BYTES
        elif value is None:
            size = ROW_OVERHEAD_BYTES
        else:
            value = as_bytes(value, "value")
            size = len(value) + ROW_OVERHEAD_BYTES
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes(key, "key")
            size += len(key)
        is_rare = headers is not None or partition is not None or timestamp_ms is not None
        if is_rare:
            headers, extra = self._check_optional_fields(headers, partition, timestamp_ms)
            size += extra
        if size > self._record_bytes_max:
            raise MessageTooLargeError(
                f"a record has {size} bytes; max.request.size allows {self._record_bytes_max}. "
                "Send a smaller record, or raise max.request.size"
            )
        with self._lock:
            rows = self._open.get(topic)
            if rows is None:
                rows = self._open_rows(topic)
            values = rows.values
            index = len(values)
            values.append(value)
            rows.keys.append(key)
            if key is not None:
                rows.has_keys = True
            if is_rare:
                rows.set_optional_fields(index, headers, partition, timestamp_ms)
            rows.size_bytes += size
            if rows.size_bytes >= rows.limit_bytes:
                self._seal(rows)
        return RecordFuture(rows, index)

    def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BatchFuture:
        """Send the rows of Arrow data, or of a polars or pandas frame (anything with an Arrow
        stream).

        The data must have a column ``value`` (binary or string), and may have ``key``, ``headers``,
        ``timestamp`` and ``partition``. The arguments ``key`` and ``value`` name other columns for
        these fields. The argument ``partition`` applies to all rows, ``timestamp_ms`` to rows
        without a timestamp. Rows are not copied, so do not change their memory until the future is
        done. Like ``send``, the call blocks while the buffer is full. Raises InvalidSchemaError,
        MessageTooLargeError, BufferFullError and ClosedError."""
        outcomes = [
            self._send_piece(topic, piece, timestamp_ms)
            for piece in self.arrow_pieces(topic, data, key, value, partition)
        ]
        return BatchFuture(outcomes)

    def arrow_pieces(
        self, topic: str, data: Any, key: str | None, value: str | None, partition: int | None
    ) -> Iterator[RowPiece]:
        """Yield the rows of a ``send_arrow`` in pieces of at most one batch for each partition."""
        for batch in tables_of(data):
            columns, requested = columns_of(batch, key, value)
            if batch.num_rows:
                yield from self._pieces(
                    topic, columns, requested if partition is None else partition
                )

    def send_columns(
        self,
        topic: str,
        columns: Columns,
        partitions: npt.NDArray[np.int32] | int | None = None,
    ) -> BatchFuture:
        """Send rows that are already Arrow arrays (``Columns``).

        ``partitions`` is one partition for all rows, or an array with each row's (-1: the
        producer chooses); None means that the producer chooses for all."""
        if not columns.row_count:
            return BatchFuture(())
        return BatchFuture(
            [
                self._send_piece(topic, piece, None)
                for piece in self._pieces(topic, columns, partitions)
            ]
        )

    def _pieces(
        self, topic: str, columns: Columns, partitions: npt.NDArray[np.int32] | int | None
    ) -> Iterator[RowPiece]:
        _check_topic(topic)
        self._check_columns(columns, partitions)
        total_bytes = _size_bytes(columns)
        spreads = columns.key is not None if partitions is None else not isinstance(partitions, int)
        limit_bytes = self._limit_bytes(topic, spreads)
        is_one = total_bytes <= limit_bytes + limit_bytes // 8
        start = 0
        for part in (columns,) if is_one else arrow.split(columns, limit_bytes):
            stop = start + part.row_count
            share = total_bytes * part.row_count // columns.row_count
            chosen = partitions[start:stop] if isinstance(partitions, np.ndarray) else partitions
            yield RowPiece(part, chosen, share)
            start = stop

    def send_piece(self, topic: str, piece: RowPiece, timestamp_ms: int | None) -> BatchFuture:
        """Send rows of Arrow data: one of the pieces that ``arrow_pieces`` yields."""
        return BatchFuture((self._send_piece(topic, piece, timestamp_ms),))

    def _send_piece(self, topic: str, piece: RowPiece, timestamp_ms: int | None) -> Outcome:
        self._check_optional_fields(None, None, timestamp_ms)
        chunk = Chunk(
            topic,
            self._waking,
            self._check_waiter,
            columns=piece.columns,
            requested=piece.requested,
            size_bytes=piece.size_bytes,
            timestamp_ms=wall_ms() if timestamp_ms is None else timestamp_ms,
        )
        with self._lock:
            self._await_space()
            rows = self._open.get(topic)
            if rows is not None:
                self._seal(rows)
            self._used_bytes += chunk.size_bytes
            self._unfinished[chunk] = None
            self._sender.inbox.append(chunk)
            self._sender.wake()
        return chunk

    def _check_columns(
        self, columns: Columns, partitions: npt.NDArray[np.int32] | int | None
    ) -> None:
        for name, column in (("key", columns.key), ("value", columns.value)):
            if column is None:
                continue
            longest = int(lengths_of(column, 0).max(initial=0))
            if longest > self._record_bytes_max:
                raise MessageTooLargeError(
                    f"a {name} has {longest} bytes; max.request.size allows "
                    f"{self._record_bytes_max} for a record. Send smaller records, or raise "
                    "max.request.size"
                )
        if not isinstance(partitions, np.ndarray):
            self._check_optional_fields(None, partitions, None)
        elif len(partitions) != columns.row_count:
            raise InvalidSchemaError(
                f"{len(partitions)} partitions are given for {columns.row_count} rows; give one "
                "for each row"
            )

    @staticmethod
    def _check_optional_fields(
        headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> tuple[Any, int]:
        if partition is not None and (
            not isinstance(partition, int) or not 0 <= partition <= INT32_MAX
        ):
            raise InvalidPartitionsError(
                f"partition={partition!r}: give a whole number from 0 to 2^31-1"
            )
        if timestamp_ms is not None and (
            not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms < 1 << 53
        ):
            raise InvalidSchemaError(
                f"timestamp_ms={timestamp_ms!r}: give whole milliseconds since 1970"
            )
        return checked_headers(headers) if headers else (None, 0)

    # Methods that fill open rows (rows not in batches yet) and pass them to the sender. Their
    # callers hold the producer's lock.

    def _open_rows(self, topic: str) -> OpenRows:
        _check_topic(topic)
        self._await_space()
        rows = self._open.get(topic)
        if rows is not None:
            return rows
        limit_bytes = self._limits.get(topic, self.config.batch_bytes)
        rows = OpenRows(topic, self._waking, self._end_linger, limit_bytes)
        rows.timestamp_ms = wall_ms()
        self._open[topic] = rows
        self._unfinished[rows] = None
        self._shell.call_soon(partial(self._opened, rows))
        return rows

    def _await_space(self) -> None:
        refusal = self._end or self._shut
        if refusal is not None:
            raise refusal.with_traceback(None)
        if self._used_bytes < self.config.buffer_bytes:
            return
        deadline = time.monotonic() + self.config.max_block_ms / 1000.0
        self._waiters += 1
        try:
            while self._used_bytes >= self.config.buffer_bytes:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BufferFullError(
                        f"{self._used_bytes} bytes wait for acknowledgements (buffer.memory="
                        f"{self.config.buffer_bytes}), and none came within max.block.ms="
                        f"{self.config.max_block_ms}; see whether the brokers are up: logbus status"
                    )
                self._space.wait(left)
                refusal = self._end or self._shut
                if refusal is not None:
                    raise refusal.with_traceback(None)
        finally:
            self._waiters -= 1

    def _seal(self, rows: OpenRows) -> None:
        if not rows.is_open:
            return
        rows.is_open = False
        del self._open[rows.topic]
        if not rows.values:
            self._unfinished.pop(rows, None)
            return
        self._limits[rows.topic] = self._limit_bytes(rows.topic, rows.has_keys)
        self._used_bytes += rows.size_bytes
        self._sender.inbox.append(rows)
        self._sender.wake()

    def _limit_bytes(self, topic: str, spreads: bool) -> int:
        """Return the size in bytes at which a topic's open rows (not in batches yet) are split into
        batches.

        Rows that spread over several partitions are collected to the size of several batches."""
        batch_bytes = self._sender.batch_bytes(topic)
        if not spreads:
            return batch_bytes
        count = len(self._cluster.view.partitions_of(topic)) or 1
        filled = min(count, PARTITIONS_FILLED_MAX)
        return max(batch_bytes, min(batch_bytes * filled, self.config.buffer_bytes // 4))

    # Callbacks that run on the sender's thread.

    def _opened(self, rows: OpenRows) -> None:
        linger_ms = self.config.linger_ms
        until_ms = self._shell.now_ms() + linger_ms + BACKLOG_LINGER_MS
        if linger_ms:
            self._shell.later(linger_ms, partial(self._due, rows, until_ms))
        else:
            self._due(rows, until_ms)

    def _due(self, rows: OpenRows, until_ms: float) -> None:
        """Pass the topic's rows that are not in batches yet to the sender, when they have waited
        ``linger_ms``. While earlier batches of the topic still wait to be sent, collect more rows
        instead, but not after the time ``until_ms``."""
        if not rows.is_open:
            return
        now_ms = self._shell.now_ms()
        if now_ms < until_ms and self._sender.delivery.is_backlogged(rows.topic):
            pause_ms = min(max(_EXPIRY_CHECK_MS, self.config.linger_ms), until_ms - now_ms)
            self._shell.later(pause_ms, partial(self._due, rows, until_ms))
            return
        with self._lock:
            self._seal(rows)

    def _released(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= size_bytes
            if self._waiters:
                self._space.notify_all()

    def _finished(self, outcome: Outcome) -> None:
        with self._lock:
            self._unfinished.pop(outcome, None)
            if outcome.error is not None:
                if len(self._failures) >= FAILURES_KEPT:
                    self._failures = [each for each in self._failures if not each.seen]
                if len(self._failures) < FAILURES_KEPT:
                    self._failures.append(outcome)
        with self._waking:
            self._waking.notify_all()

    def _crashed(self, error: BaseException) -> None:
        problem = ClosedError(f"the producer's thread ended: {error!r}; create another producer")
        with self._lock:
            self._end = problem
            left = list(self._unfinished)
            self._unfinished.clear()
            self._open.clear()
            self._space.notify_all()
        for outcome in left:
            outcome.finish(problem)
        with self._lock:
            # Record the failed rows, so that a later flush or close raises their error.
            self._failures += left[:FAILURES_KEPT]
        with self._waking:
            self._waking.notify_all()
        raise error

    # Methods that flush, close and end the producer.

    def _end_linger(self, rows: Outcome) -> None:
        """Send rows before ``linger_ms`` has passed, because a caller waits for their
        acknowledgement."""
        self._check_waiter(rows)
        if isinstance(rows, OpenRows) and rows.is_open:
            with self._lock:
                self._seal(rows)

    def _check_waiter(self, _: Outcome | None = None) -> None:
        """Raise InvalidRequestError if the caller is the sending thread: a callback that waits
        there for a record would block the thread that must send the record."""
        if self._reactor is not None and self._reactor.is_own_thread:
            raise InvalidRequestError(
                "a callback of a sent record waits for other records, which the same thread sends; "
                "call flush, close, result and the methods of transactions on another thread"
            )

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all records that were sent before this call are acknowledged.

        Raises the first delivery error since the last flush, of those that no future has raised,
        and RequestTimedOutError after ``timeout_s`` seconds (None: no limit)."""
        waiting = self.start_flush()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for outcome in waiting:
            outcome.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self.end_flush(waiting)

    def start_flush(self) -> list[Outcome]:
        """Send all lingering records now, and return the outcomes for which ``flush`` waits."""
        with self._lock:
            for rows in list(self._open.values()):
                self._seal(rows)
            return list(self._unfinished)

    def end_flush(self, waited: list[Outcome]) -> None:
        """Raise the first delivery error since the last flush, of those that no future has raised.
        ``waited`` has the outcomes that ``start_flush`` returned."""
        with self._lock:
            failures, self._failures = self._failures, []
        for outcome in (*waited, *failures):
            if not outcome.seen and outcome.error is not None:
                outcome.seen = True
                raise outcome.error

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then stop the background thread.

        Records unacknowledged after ``timeout_s`` seconds fail. Raises the errors of ``flush``. If
        the thread has crashed, raises the error with which its records failed."""
        if self._end is not None:
            self.end_flush([])
            return
        try:
            self.flush(timeout_s)
        finally:
            self.end()

    def wait_answer(self, answers: queue.SimpleQueue[T], timeout_s: float | None = None) -> T:
        """Return the item that the background thread puts into ``answers``; wait for it.

        If the producer ends meanwhile, raise its error. Raises RequestTimedOutError after
        ``timeout_s`` seconds (None: no limit)."""
        self._check_waiter()
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                return answers.get(timeout=min(left_s, WAIT_SLICE_S))
            except queue.Empty:
                if self._end is not None:
                    raise self._end.with_traceback(None) from None
                if not left_s:
                    raise RequestTimedOutError(
                        f"the producer did not end the call within {timeout_s:g} s; an earlier "
                        "call may still run"
                    ) from None

    def partition_count(self, topic: str) -> int:
        """Return the topic's current number of partitions, from new metadata.

        From then on the producer also writes to added partitions. Raises
        UnknownTopicOrPartitionError if the topic does not exist, or the request's error after
        ``request.timeout.ms``."""
        deadline_ms = self._cluster.now_ms() + self.config.request_timeout_ms
        view = self.run(requests.refreshed_topics(self._cluster, (topic,), deadline_ms))
        return len(view.partitions_of(topic))

    def topic_id(self, topic: str) -> str:
        """Return a topic's id by the cached metadata; the null id for an unknown topic."""
        return self._cluster.view.topic_id(topic)

    def run(self, operation: Operation[T]) -> T:
        """Run an operation (a generator of requests) on the background thread. Return its result,
        or raise its error."""
        answers: queue.SimpleQueue[T | LogbusError] = queue.SimpleQueue()
        self._shell.call_soon(lambda: spawn(self._shell, operation, answers.put))
        answer = self.wait_answer(answers)
        if isinstance(answer, LogbusError):
            raise answer
        return answer

    def end(self) -> None:
        """Stop the producer without a flush; unacknowledged records fail."""
        with self._lock:
            self._end = ClosedError("the producer was closed; create another producer")
            for rows in list(self._open.values()):
                self._seal(rows)
            self._space.notify_all()
        if self._reactor is None:
            self._stop()
        else:
            self._shell.call_soon(self._stop)
            self._reactor.stop()

    def _stop(self) -> None:
        self._sender.close(ClosedError("the producer was closed before the acknowledgement"))

    def _forked(self) -> None:
        """Mark the producer as unusable in a forked child: its thread runs only in the parent."""
        self._end = ClosedError(
            "this producer was created before a fork; create another one in this process"
        )
        self._lock = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._open = {}
        self._waking = threading.Condition()
        for outcome in self._unfinished:
            outcome.waking, outcome.error, outcome.done = self._waking, self._end, True
        self._unfinished = {}


def _check_topic(topic: Any) -> None:
    if not isinstance(topic, str):
        raise InvalidTopicError(f"topic={topic!r}: give the topic's name as text")


def _size_bytes(columns: Columns) -> int:
    size = columns.row_count * ROW_OVERHEAD_BYTES
    for column in (columns.key, columns.value, columns.headers):
        if column is not None:
            size += column.nbytes
    return size


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for producer in list(_producers):
        producer._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)


@atexit.register
def _close_the_forgotten() -> None:
    """Flush open producers at interpreter exit, so that a script without ``close`` loses no
    records."""
    for producer in list(_producers):
        if producer._reactor is not None:
            with contextlib.suppress(LogbusError):
                producer.close(EXIT_TIMEOUT_S)
