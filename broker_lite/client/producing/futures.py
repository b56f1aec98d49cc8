"""The futures that ``send`` returns: the record's metadata, or the delivery error.

Rows that were collected and sent together share one ``Outcome``. A record's future has this outcome
and the record's index, and computes the offset on demand. The sender's thread completes an outcome
and wakes waiting threads through one condition. Any thread may use a future."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, NamedTuple, Protocol

from broker_lite.errors import ClosedError, LogbusError, RequestTimedOutError

logger = logging.getLogger("logbus.producer")


class RecordMetadata(NamedTuple):
    """The partition, offset and timestamp of an acknowledged record. With acks=0, ``offset`` is
    -1."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchMetadata(NamedTuple):
    """The offsets of one acknowledged batch of a ``send_arrow``.

    It has ``row_count`` offsets from ``base_offset`` on."""

    topic: str
    partition: int
    base_offset: int
    row_count: int
    timestamp_ms: int


class SentBatch(Protocol):
    """The fields of a ``ProducerBatch`` that futures read.

    If the batch was split because it was too large, its ``halves`` have the results instead."""

    partition: int
    row_count: int
    base_offset: int
    log_append_time_ms: int
    timestamp_ms: int
    error: LogbusError | None

    @property
    def halves(self) -> Sequence[SentBatch]: ...

    @property
    def is_done(self) -> bool: ...


class Outcome:
    """The outcome of rows that were collected and sent together, in batches that may fail
    separately."""

    __slots__ = (
        "_left",
        "batches",
        "callback",
        "callbacks",
        "done",
        "error",
        "inverse",
        "seen",
        "starts",
        "times",
        "topic",
        "wake",
        "waking",
    )

    def __init__(
        self, topic: str, waking: threading.Condition, wake: Callable[[Any], None]
    ) -> None:
        self.topic = topic
        self.waking = waking
        self.wake = wake
        self.batches: list[SentBatch] = []
        self.starts: list[int] = [0]
        self.inverse: Any = None
        self.times: dict[int, int] | None = None
        self.done = False
        self.error: LogbusError | None = None
        self.seen = False
        self._left = 0
        self.callback: Callable[[Any], None] | None = None
        """The first callback added to one of the records. Usually a caller adds the same callback
        to all records, so it is stored only once."""
        self.callbacks: deque[int | tuple[Callable[[Any], None], Any]] | None = None
        """Pending callbacks. An entry is a record's index if the record's callback is
        ``self.callback``, else the pair (callback, argument).

        There may be a hundred thousand entries, and integers cost the garbage collector no time."""

    # Methods that the sender's thread calls.

    def expect(self, batches: Sequence[SentBatch], inverse: Any) -> None:
        """Set the batches for which the future waits.

        If ``inverse`` is not None, the rows were reordered before they were split into batches: row
        i of this outcome is row ``inverse[i]`` of the concatenated batches."""
        self.batches = list(batches)
        self.inverse = inverse
        self._left = len(batches)
        at = 0
        for batch in batches:
            at += batch.row_count
            self.starts.append(at)

    def split_again(self) -> None:
        """Count one more batch to wait for, because a batch that was too large was split in two."""
        self._left += 1

    def batch_done(self, error: LogbusError | None) -> bool:
        """Record that a batch was acknowledged or failed. Return True if it was the last
        outstanding batch of this outcome's rows."""
        self._left -= 1
        if error is not None and self.error is None:
            self.error = error
        if self._left > 0:
            return False
        self.finish(self.error)
        return True

    def finish(self, error: LogbusError | None) -> None:
        """Mark all rows as completed, and run their callbacks."""
        with self.waking:
            self.error = error
            self.done = True
        self.call_back()

    # Methods that any thread may call.

    def wait(self, timeout_s: float | None) -> None:
        """Wait until all rows are acknowledged or have failed.

        Raises RequestTimedOutError after ``timeout_s`` seconds (None: no limit)."""
        if self.done:
            return
        self.wake(self)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.waking:
            while not self.done:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RequestTimedOutError(
                        f"no acknowledgement within {timeout_s} s; the records are still in "
                        "flight, so wait again"
                    )
                self.waking.wait(left)

    def add_done_callback(self, callback: Callable[[Any], None], future: Any) -> None:
        """Call ``callback(future)`` when the rows are done: at once, or later on the sender's
        thread.

        Takes no lock, which would be slow if each record has a callback. This method stores the
        callback before it reads ``done``, and ``finish`` sets ``done`` before it reads the
        callbacks. So at least one of the two threads sees the callback, and ``popleft`` gives it to
        only one."""
        callbacks = self.callbacks
        if callbacks is None:
            with self.waking:
                if self.callbacks is None:
                    if isinstance(future, RecordFuture):
                        self.callback = callback
                    self.callbacks = deque()
                callbacks = self.callbacks
        callbacks.append((callback, future))
        if self.done:
            self.call_back()

    def call_back(self) -> None:
        """Run each pending callback once. Call it only when ``done`` is true, on any thread."""
        callbacks = self.callbacks
        while callbacks:
            try:
                waiting = callbacks.popleft()
            except IndexError:  # Another thread has taken the last callback.
                return
            try:
                if waiting.__class__ is int:
                    self.callback(RecordFuture(self, waiting))  # type: ignore[misc]
                else:
                    callback, future = waiting  # type: ignore[misc]
                    callback(future)
            except Exception:
                logger.exception("a callback of a sent record failed")

    def find(self, index: int) -> tuple[SentBatch | None, int]:
        """Return the batch that holds row ``index``, and the row's index in that batch.

        The batch is None if the rows failed before they were split into batches."""
        at = index if self.inverse is None else int(self.inverse[index])
        which = bisect_right(self.starts, at) - 1
        if which >= len(self.batches):
            return None, 0
        batch, at = self.batches[which], at - self.starts[which]
        while batch.halves:
            first, second = batch.halves
            batch, at = (first, at) if at < first.row_count else (second, at - first.row_count)
        return batch, at


class RecordFuture:
    """The future of a sent record. Two objects for the same record compare equal."""

    __slots__ = ("_index", "outcome")

    def __init__(self, outcome: Outcome, index: int) -> None:
        self.outcome = outcome
        self._index = index

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RecordFuture)
            and other.outcome is self.outcome
            and other._index == self._index
        )

    def __hash__(self) -> int:
        return hash((id(self.outcome), self._index))

    def done(self) -> bool:
        """Return whether the record was acknowledged or has failed."""
        return self.outcome.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement, and return the record's metadata.

        A batch that still lingers is sent at once. Raises the delivery error, e.g.
        DeliveryTimedOutError or MessageTooLargeError. Raises RequestTimedOutError after
        ``timeout_s`` seconds (None: no limit); the producer still tries to deliver the record."""
        outcome, index = self.outcome, self._index
        outcome.wait(timeout_s)
        batch, at = outcome.find(index)
        # If the producer ended before the batch was done, raise the error of the producer, because
        # the batch has no result.
        error = batch.error if batch is not None and batch.is_done else outcome.error
        if error is not None:
            outcome.seen = True
            raise error.with_traceback(None)
        if batch is None:
            raise ClosedError(
                "the producer ended before it sent the record; send it again with another producer"
            )
        timestamp_ms = batch.log_append_time_ms
        if timestamp_ms < 0:
            times = outcome.times or {}
            timestamp_ms = times.get(index, batch.timestamp_ms)
        offset = batch.base_offset + at if batch.base_offset >= 0 else -1
        return RecordMetadata(outcome.topic, batch.partition, offset, timestamp_ms)

    def exception(self, timeout_s: float | None = None) -> LogbusError | None:
        """Wait until the record is done. Return its delivery error, or None if it is
        acknowledged."""
        outcome = self.outcome
        if not outcome.done:
            outcome.wait(timeout_s)
        if outcome.error is None and outcome.batches:
            return None
        try:
            self.result(0)
        except LogbusError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[RecordFuture], None]) -> None:
        """Call ``callback(future)`` when the record is done, usually on the sender's thread.

        The callback must not block. ``future`` equals this future but may be another object. The
        producer logs an exception of the callback and continues."""
        outcome = self.outcome
        callbacks, common = outcome.callbacks, outcome.callback
        if callbacks is None or not (
            # Compare methods with ``==``, because each access to a bound method creates a new
            # object.
            callback is common or (callback.__class__ is MethodType and callback == common)
        ):
            outcome.add_done_callback(callback, self)
            return
        callbacks.append(self._index)
        if outcome.done:
            outcome.call_back()


class BatchFuture:
    """The future of the rows of a ``send_arrow`` or ``send_columns``."""

    __slots__ = ("outcomes",)

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = outcomes

    def done(self) -> bool:
        """Return whether all rows were acknowledged or have failed."""
        return all(outcome.done for outcome in self.outcomes)

    def result(self, timeout_s: float | None = None) -> list[BatchMetadata]:
        """Wait until all rows are done. Return the offsets of each batch, or raise the first error.

        Raises RequestTimedOutError after ``timeout_s`` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        metadata: list[BatchMetadata] = []
        failure: LogbusError | None = None
        for outcome in self.outcomes:
            outcome.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if outcome.error is not None:
                outcome.seen = True
                failure = failure or outcome.error
            for batch in outcome.batches:
                metadata.extend(_written(outcome.topic, batch))
        if failure is not None:
            raise failure.with_traceback(None)
        return metadata

    def exception(self, timeout_s: float | None = None) -> LogbusError | None:
        """Wait until all rows are done. Return the first delivery error, or None."""
        try:
            self.result(timeout_s)
        except LogbusError as error:
            if not self.done():
                raise
            return error
        return None


def _written(topic: str, batch: SentBatch) -> list[BatchMetadata]:
    if batch.halves:
        return [row for half in batch.halves for row in _written(topic, half)]
    if batch.error is not None:
        return []
    time_ms = batch.log_append_time_ms if batch.log_append_time_ms >= 0 else batch.timestamp_ms
    return [BatchMetadata(topic, batch.partition, batch.base_offset, batch.row_count, time_ms)]
