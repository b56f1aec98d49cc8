"""``SinkPartition``: the state machine of Spark's exactly-once sinks, one for each partition of
``__transaction_state``.

A *sink* is the target of one Spark query; ``sink`` has its rules. Each attempt of a Spark task
writes with a *slot*: a producer id from the partition's pool. Answers and markers follow only when
the log has committed the record on which they depend. ``deadline_ms`` is the time of the next
TransactionTick."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.errors import LogbusError
from broker_lite.transactions import sink_events as ev
from broker_lite.transactions.events import (
    Deposed,
    Persisted,
    ProducerIdFailed,
    ProducerIdReady,
    RecordRefused,
    TransactionTick,
)
from broker_lite.transactions.sink import SparkSink
from broker_lite.transactions.sink_outbox import SinkOutbox
from broker_lite.transactions.sink_records import SinkHead, SinkSlot
from broker_lite.transactions.sink_slots import SlotPool, TaskAttempt
from broker_lite.transactions.transaction import NEVER, Now


class SinkPartition:
    """The state machine of all sinks in one partition of ``__transaction_state``, and of the
    producer ids (slots) with which their attempts write.

    ``heads``, by sink, and ``slots``, by producer id, are the partition's records as the
    coordinator loaded them."""

    def __init__(self, heads: Mapping[str, SinkHead], slots: Mapping[int, SinkSlot]) -> None:
        self._outbox = SinkOutbox()
        self._slots = SlotPool(slots)
        self._sinks = {name: self._new(name, head) for name, head in heads.items()}
        for producer_id, attempt in self._slots.attempts.items():
            name = attempt.slot.sink
            sink = self._sinks[name] = self._sinks.get(name) or self._new(name)
            sink.adopt(producer_id)

    def step(self, now: Now, event: ev.SinkEvent) -> list[ev.SinkEffect]:
        """Apply an event. Return the operations (effects) in the order in which the caller must
        carry them out."""
        self._outbox.begin(now)
        match event:
            case ev.JoinBatch() | ev.KeepBatch() | ev.EndBatch() | ev.AddToSlot():
                self._handle(event)
            case Persisted():
                self._outbox.settle(event.number, None)
            case RecordRefused():
                self._refused(event)
            case ProducerIdReady():
                self._slots.fetched()
                self._slots.give(event.producer_id, SinkSlot(0))
                self._serve_waiting()
            case ProducerIdFailed():
                self._slots.fetched()
                self._outbox.fail(self._slots.take_waiting(), event.error)
            case ev.SlotMarked():
                attempt = self._slots.attempts.get(event.producer_id)
                if attempt is not None:
                    self._sinks[attempt.slot.sink].marked(event)
            case ev.AbandonSinkRequest():
                for sink in self._sinks.values():
                    sink.abandon(event.token)
                self._slots.abandon(event.token)
            case ev.ExpireSinks():
                self._expire(event)
            case ev.SinksLoaded():
                for sink in self._sinks.values():
                    sink.load()
            case TransactionTick():
                for sink in self._sinks.values():
                    sink.tick()
            case Deposed():
                self._depose(event.error)
        return self._outbox.effects

    # Properties and methods that describe the Spark sinks.

    @property
    def deadline_ms(self) -> int:
        """The monotonic time (ms) at which the next TransactionTick is due: for a timeout, a retry,
        or an EndBatch request that has waited long enough for markers."""
        return min((sink.deadline_ms for sink in self._sinks.values()), default=NEVER)

    def __contains__(self, sink: str) -> bool:
        """Return whether a sink exists, even if its first record is still being written."""
        return sink in self._sinks

    def head(self, sink: str) -> SinkHead | None:
        """Return a sink's committed state; None for an unknown sink."""
        known = self._sinks.get(sink)
        return known.head if known is not None else None

    def heads(self) -> dict[str, SinkHead]:
        """Return the committed state of every sink, by name."""
        return {name: sink.head for name, sink in self._sinks.items() if sink.head is not None}

    def attempts(self, sink: str | None = None) -> dict[int, TaskAttempt]:
        """Return the task attempts that are not committed or aborted yet, of one sink or of all, by
        producer id."""
        return {
            producer_id: attempt
            for producer_id, attempt in self._slots.attempts.items()
            if sink is None or attempt.slot.sink == sink
        }

    # Methods that handle events which concern more than one sink, or create or delete sinks.

    def _new(self, name: str, head: SinkHead | None = None) -> SparkSink:
        return SparkSink(name, head, self._slots, self._outbox, self._serve_waiting)

    def _handle(self, event: ev.SinkRequest) -> None:
        sink = self._sinks.get(event.sink) or self._new(event.sink)
        sink.handle(event)
        if sink.exists:
            self._sinks[event.sink] = sink

    def _serve_waiting(self) -> None:
        """Handle again the JoinBatch requests that waited for a free producer id."""
        for event in self._slots.take_waiting():
            self._handle(event)

    def _refused(self, event: RecordRefused) -> None:
        """Report that the log refused a record. If it was the first of a sink, forget the sink."""
        self._outbox.settle(event.number, event.error)
        self._sinks = {name: sink for name, sink in self._sinks.items() if sink.exists}

    def _expire(self, event: ev.ExpireSinks) -> None:
        for name, sink in list(self._sinks.items()):
            if sink.is_unused_since(event.before_day, event.before_ms):
                del self._sinks[name]
                # If the log refuses to delete the sink, the next coordinator expires it again.
                self._outbox.append_head(name, None, lambda error: None)

    def _depose(self, error: LogbusError) -> None:
        self._outbox.settle_all(error)
        for sink in self._sinks.values():
            sink.depose(error)
        self._outbox.fail(self._slots.take_waiting(), error)
