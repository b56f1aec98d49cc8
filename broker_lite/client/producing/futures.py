"""What ``send`` returns: where records went, or why they did not.

A future of a record is two words: its rows and its index in them. Rows are resolved all at once,
on the sender's thread, and everybody who waits is woken by one condition; offsets are worked out
when somebody asks. Usable from any thread.
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
    """Where a record went. ``offset`` is -1 where the broker was not asked (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchMetadata(NamedTuple):
    """Where some rows of a ``send_arrow`` went: ``row_count`` offsets from ``base_offset`` on."""

    topic: str
    partition: int
    base_offset: int
    row_count: int
    timestamp_ms: int


class SentBatch(Protocol):
    """What futures need of a batch once it is done; one that was cut has ``halves`` instead."""

    partition: int
    row_count: int
    base_offset: int
    log_append_time_ms: int
    timestamp_ms: int
    error: LogbusError | None

    @property
    def halves(self) -> Sequence[SentBatch]: ...


class Outcome:
    """What became of rows that were sent together: some batches, each of them done or failed."""

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
        """What most records are called back with: the first callback of a record."""
        self.callbacks: deque[int | tuple[Callable[[Any], None], Any]] | None = None
        """A record's index where that is its callback: nothing that the garbage collector has to
        follow, of which a hundred thousand may wait. Else the callback and what it is given."""

    # -- the sender's thread

    def expect(self, batches: Sequence[SentBatch], inverse: Any) -> None:
        """These batches hold the rows, one after the other; row i is at ``inverse[i]`` in them."""
        self.batches = list(batches)
        self.inverse = inverse
        self._left = len(batches)
        at = 0
        for batch in batches:
            at += batch.row_count
            self.starts.append(at)

    def split_again(self) -> None:
        """A batch was too large and goes on as two."""
        self._left += 1

    def batch_done(self, error: LogbusError | None) -> bool:
        """One of the batches is done; True if it was the last."""
        self._left -= 1
        if error is not None and self.error is None:
            self.error = error
        if self._left > 0:
            return False
        self.finish(self.error)
        return True

    def finish(self, error: LogbusError | None) -> None:
        """All of it is done."""
        with self.waking:
            self.error = error
            self.done = True
        self.call_back()

    # -- any thread

    def wait(self, timeout_s: float | None) -> None:
        """Wait until done; raises RequestTimedOutError after ``timeout_s``."""
        if self.done:
            return
        self.wake(self)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.waking:
            while not self.done:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RequestTimedOutError(
                        f"no answer within {timeout_s} s; the records are still under way"
                    )
                self.waking.wait(left)

    def add_done_callback(self, callback: Callable[[Any], None], future: Any) -> None:
        """Call back with ``future`` once done: at once if it is, else on the sender's thread.

        Without a lock, since each record may have one: a callback is put down before ``done`` is
        looked at and ``finish`` says ``done`` before it looks, so at least one of them sees it;
        ``popleft`` gives it to one alone.
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
        """Call whoever waits, once each; any thread, once ``done``."""
        callbacks = self.callbacks
        while callbacks:
            try:
                waiting = callbacks.popleft()
            except IndexError:  # the other thread was first
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
        """The batch that holds row ``index``, and the row's place in it."""
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
    """A record on its way. All futures of one record are equal, and have one hash."""

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
        """Whether the record was acknowledged or has failed."""
        return self.outcome.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; asking ends the batch's linger.

        Raises why the record was not written, e.g. DeliveryTimedOutError or MessageTooLargeError;
        RequestTimedOutError after ``timeout_s`` (None: for ever), the record then being under way.
        """
        outcome, index = self.outcome, self._index
        outcome.wait(timeout_s)
        batch, at = outcome.find(index)
        error = outcome.error if batch is None else batch.error
        if error is not None:
            outcome.seen = True
            raise error
        if batch is None:
            raise ClosedError("the record was never sent")
        timestamp_ms = batch.log_append_time_ms
        if timestamp_ms < 0:
            times = outcome.times or {}
            timestamp_ms = times.get(index, batch.timestamp_ms)
        offset = batch.base_offset + at if batch.base_offset >= 0 else -1
        return RecordMetadata(outcome.topic, batch.partition, offset, timestamp_ms)

    def exception(self, timeout_s: float | None = None) -> LogbusError | None:
        """Wait for the end; the error, or None if the record was written."""
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
        """Call back with this record's future once it is done, on the sender's thread: be quick
        there. It is equal to this one, but may be another object.

        A callback that raises is logged and changes nothing for the other records.
        """
        outcome = self.outcome
        callbacks, common = outcome.callbacks, outcome.callback
        if callbacks is None or not (
            # A bound method is another object each time that it is asked for.
            callback is common or (callback.__class__ is MethodType and callback == common)
        ):
            outcome.add_done_callback(callback, self)
            return
        callbacks.append(self._index)
        if outcome.done:
            outcome.call_back()


class BatchFuture:
    """Rows of a ``send_arrow`` or ``send_columns`` on their way."""

    __slots__ = ("outcomes",)

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = outcomes

    def done(self) -> bool:
        """Whether all rows were acknowledged or have failed."""
        return all(outcome.done for outcome in self.outcomes)

    def result(self, timeout_s: float | None = None) -> list[BatchMetadata]:
        """Wait for all acknowledgements: which batches the rows went in. Raises the first error."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found: list[BatchMetadata] = []
        failure: LogbusError | None = None
        for outcome in self.outcomes:
            outcome.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if outcome.error is not None:
                outcome.seen = True
                failure = failure or outcome.error
            for batch in outcome.batches:
                found.extend(_written(outcome.topic, batch))
        if failure is not None:
            raise failure
        return found

    def exception(self, timeout_s: float | None = None) -> LogbusError | None:
        """Wait for the end; the first error, or None if all rows were written."""
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
