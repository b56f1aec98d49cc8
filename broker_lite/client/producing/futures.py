"""The futures that ``send`` returns: record metadata, or the error of the delivery.

A record's future refers to the ``Outcome`` of the rows sent together, and has its index in them.
The sender's thread completes all rows of a batch at once, and wakes waiting threads through one
condition. A future computes its record's offset on demand. Any thread may use a future.
"""

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
    """The partition, offset and timestamp of a record. ``offset`` is -1 with acks=0."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchMetadata(NamedTuple):
    """The offsets of one batch of ``send_arrow``: ``row_count`` offsets from ``base_offset`` on."""

    topic: str
    partition: int
    base_offset: int
    row_count: int
    timestamp_ms: int


class SentBatch(Protocol):
    """The fields of a completed batch that futures read. If a batch was split, its ``halves`` hold
    the results."""

    partition: int
    row_count: int
    base_offset: int
    log_append_time_ms: int
    timestamp_ms: int
    error: LogbusError | None

    @property
    def halves(self) -> Sequence[SentBatch]: ...


class Outcome:
    """The outcome of rows that were sent together. Each of their batches is acknowledged, or fails,
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
        """The first callback that was added to a record. Most records share this callback."""
        self.callbacks: deque[int | tuple[Callable[[Any], None], Any]] | None = None
        """Pending callbacks: a record's index if it uses ``callback``, else (callback,
        argument). Integers keep the garbage collector from tracking a hundred thousand entries."""

    # Methods that the sender's thread calls.

    def expect(self, batches: Sequence[SentBatch], inverse: Any) -> None:
        """Set the batches that hold the rows.

        Row i has index ``inverse[i]`` in the concatenation of all batches. If ``inverse`` is None,
        row i has index i.
        """
        self.batches = list(batches)
        self.inverse = inverse
        self._left = len(batches)
        at = 0
        for batch in batches:
            at += batch.row_count
            self.starts.append(at)

    def split_again(self) -> None:
        """Expect one more batch, because a batch that was too large became two."""
        self._left += 1

    def batch_done(self, error: LogbusError | None) -> bool:
        """Count a completed batch. Return True if it was the last batch of these rows."""
        self._left -= 1
        if error is not None and self.error is None:
            self.error = error
        if self._left > 0:
            return False
        self.finish(self.error)
        return True

    def finish(self, error: LogbusError | None) -> None:
        """Mark all rows as completed, and wake the waiting threads."""
        with self.waking:
            self.error = error
            self.done = True
        self.call_back()

    # Methods that any thread may call.

    def wait(self, timeout_s: float | None) -> None:
        """Wait until all rows have completed. Raises RequestTimedOutError after ``timeout_s``."""
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
        """Call ``callback(future)`` when the rows have completed: at once if they have, otherwise
        later on the sender's thread.

        Each record may have a callback, so this method takes no lock. It stores the callback before
        it reads ``done``, and ``finish`` sets ``done`` before it reads the callbacks. At least one
        of them sees the callback, and ``popleft`` returns it only once.
        """
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
        """Run each pending callback once. Any thread may call this after ``done``."""
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
        """Return the batch that holds row ``index``, and the row's index in that batch. The batch
        is None if the rows failed before they were in batches."""
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
    """The future of a sent record. Several future objects may belong to one record. They are equal
    and share a hash."""

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
        """Wait for the acknowledgement, and return it. The call ends the batch's linger.

        Raises the delivery error, e.g. DeliveryTimedOutError or MessageTooLargeError. Raises
        RequestTimedOutError after ``timeout_s`` (None: no limit), with the record still in flight.
        """
        outcome, index = self.outcome, self._index
        outcome.wait(timeout_s)
        batch, at = outcome.find(index)
        error = outcome.error if batch is None else batch.error
        if error is not None:
            outcome.seen = True
            raise error
        if batch is None:
            raise ClosedError("the record was not sent; send it again with another producer")
        timestamp_ms = batch.log_append_time_ms
        if timestamp_ms < 0:
            times = outcome.times or {}
            timestamp_ms = times.get(index, batch.timestamp_ms)
        offset = batch.base_offset + at if batch.base_offset >= 0 else -1
        return RecordMetadata(outcome.topic, batch.partition, offset, timestamp_ms)

    def exception(self, timeout_s: float | None = None) -> LogbusError | None:
        """Wait for the outcome. Return the error, or None if the record is in the log."""
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
        """Call ``callback`` with this record's future when it is done, on the sender's thread.

        The callback must not block. Its argument equals this future but may be another object. The
        producer logs an exception of a callback; other records are not affected.
        """
        outcome = self.outcome
        callbacks, common = outcome.callbacks, outcome.callback
        if callbacks is None or not (
            # Compare with ``==``: each access to a bound method creates a new object.
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
        """Wait for all acknowledgements and return the offset ranges. Raises the first error."""
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
            raise failure
        return metadata

    def exception(self, timeout_s: float | None = None) -> LogbusError | None:
        """Wait for the outcome. Return the first error, or None if all rows are in the log."""
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
