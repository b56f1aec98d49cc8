"""The state machine of Spark's exactly-once sinks, one for each partition of
``__transaction_state``.

A *sink* is the target of one Spark query, and a *run* is one start of the query. Each attempt of a
Spark task writes with a *slot*: a producer id from the partition's pool.

When Spark's driver commits a micro-batch, it names the attempts to commit, the *winners*. The
decision is one record in ``__transaction_state``, the sink's *head*, which has the batch number and
the winners. Winners then get commit markers; all other attempts of the batch get abort markers. A
replayed batch has the same number, so committing it twice has no effect. Answers and markers follow
only when the log has committed the record on which they depend.

No request waits for the records that, after the markers, free a slot or open the sink for its next
batch. If such a record is lost, the next coordinator sends the markers again. If the log refuses
it, this state machine writes it again. A freed slot serves a new attempt only once the record that
frees it is committed. ``deadline_ms`` is the time of the next TransactionTick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from broker_lite.errors import (
    ConcurrentTransactionsError,
    InvalidRequestError,
    LogbusError,
    ProducerFencedError,
    SinkAheadOfCheckpointError,
    SinkRowsDifferError,
    TransactionAbortableError,
)
from broker_lite.transactions import sink_events as ev
from broker_lite.transactions.events import (
    Deposed,
    Persisted,
    ProducerIdFailed,
    ProducerIdReady,
    RecordRefused,
    TransactionTick,
)
from broker_lite.transactions.sink_records import (
    FORMER_RUNS_MAX,
    NO_BATCH,
    ProducerPair,
    SinkHead,
    SinkSlot,
    SinkState,
)
from broker_lite.transactions.sink_slots import SlotPool, TaskAttempt
from broker_lite.transactions.transaction import EPOCH_LAST, NEVER, Now

ANSWER_MS = 1_000
"""Maximum milliseconds for which the answer to EndBatch waits for the transaction markers. Markers
that are still missing are written after the answer."""
RETRY_MS = 1_000
"""Milliseconds after which the coordinator repeats the write of a record that the log refused. If a
request waits for the record, the request fails instead."""
ATTEMPTS_MAX = 10_000
"""Maximum number of open task attempts of one sink."""
PARKED_MAX = 2 * ATTEMPTS_MAX
_DAY_MS = 86_400_000

_Settled = Callable[[LogbusError | None], None]
"""A callback for the outcome of an append: None once the record is committed, or the error with
which the log refused it."""


@dataclass(slots=True)
class _Sink:
    """The state of one sink (the target of one Spark query).

    - ``head``: the sink's state: its last committed batch, and the commit or abort in progress;
      None if the sink is new
    - ``logged``: the state in the sink's last committed record. After the last marker of a commit
      or abort, ``head`` is open at once, ``logged`` once the log has committed that state.
    - ``writing``: the number of the append that will replace ``head``; None if there is none
    - ``parked``: the requests that wait while the sink is busy (``is_busy``), or while ``logged``
      is still a commit or abort that includes their batch"""

    head: SinkHead | None = None
    logged: SinkHead | None = None
    writing: int | None = None
    parked: list[ev.SinkRequest] = field(default_factory=list)
    attempts: set[int] = field(default_factory=set)
    """Producer ids of the attempts of Spark tasks that write to this sink, until their commit or
    abort markers are written."""
    unmarked: set[int] = field(default_factory=set)
    """Producer ids of the task attempts whose commit or abort markers are not all written yet."""
    freeing: dict[int, SinkSlot] = field(default_factory=dict)
    """The freed slots of ended attempts, by producer id: all markers are written, but the record
    that frees the producer id is not committed yet.

    The record that opens the sink for its next batch must come later in the log than the records
    that free these ids. Otherwise a new coordinator could find an open sink whose ended attempts
    look open, and would abort committed ones."""
    refused: set[int] = field(default_factory=set)
    """The producer ids in ``freeing`` whose freeing record the log refused."""
    is_open_refused: bool = False
    """Whether the log refused the record that lets the sink start its next batch after a commit or
    abort."""
    retry_ms: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """The EndBatch requests (tokens) that wait for markers, each with the time (ms) at which the
    coordinator answers even without them."""
    timeout_ms: int = 0
    active_ms: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether a request that changes the sink must wait, because the sink's state is being
        written or the markers of a commit or abort are not all written."""
        return self.writing is not None or (
            self.head is not None and self.head.state is not SinkState.OPEN
        )


class SinkPartition:
    """The state machine of all sinks in one partition of ``__transaction_state``, and of the
    producer ids (slots) with which their attempts write.

    ``heads``, by sink, and ``slots``, by producer id, are the partition's records as the
    coordinator loaded them."""

    def __init__(self, heads: Mapping[str, SinkHead], slots: Mapping[int, SinkSlot]) -> None:
        self._sinks = {name: _Sink(head, head) for name, head in heads.items()}
        self._pool = SlotPool(slots)
        self._attempts: dict[int, TaskAttempt] = {}
        """The attempts of Spark tasks that are not committed or aborted yet, by producer id."""
        self._settled: dict[int, _Settled] = {}
        """The callback for the outcome of each append in flight, by the append's number."""
        self._numbers = 0
        self._now = Now(0, 0)
        self._effects: list[ev.SinkEffect] = []
        for producer_id, slot in slots.items():
            if not slot.is_free:
                self._attempts[producer_id] = TaskAttempt(slot, self._now, slot.partitions)
                sink = self._sinks.setdefault(slot.sink, _Sink())
                sink.attempts.add(producer_id)
                sink.timeout_ms = max(sink.timeout_ms, slot.timeout_ms)

    def step(self, now: Now, event: ev.SinkEvent) -> list[ev.SinkEffect]:
        """Apply an event. Return the operations (effects) in the order in which the caller must
        carry them out."""
        self._now = now
        self._effects = []
        match event:
            case ev.JoinBatch() | ev.KeepBatch() | ev.EndBatch() | ev.AddToSlot():
                self._handle(event)
            case Persisted():
                self._settle(event.number, None)
            case RecordRefused():
                self._settle(event.number, event.error)
            case ProducerIdReady():
                self._pool.fetched()
                self._pool.give(event.producer_id, SinkSlot(0))
                self._serve_waiting()
            case ProducerIdFailed():
                self._pool.fetched()
                self._fail_all(self._pool.take_waiting(), event.error)
            case ev.SlotMarked():
                self._marked(event)
            case ev.AbandonSinkRequest():
                self._abandon(event.token)
            case ev.ExpireSinks():
                self._expire(event)
            case ev.SinksLoaded():
                self._load()
            case TransactionTick():
                self._tick()
            case Deposed():
                self._depose(event.error)
        return self._effects

    # Properties and methods that describe the Spark sinks.

    @property
    def deadline_ms(self) -> int:
        """The monotonic time (ms) at which the next TransactionTick is due: for a timeout, a retry,
        or an EndBatch request that has waited long enough for markers."""
        times = [NEVER]
        for sink in self._sinks.values():
            times += [at for _, at in sink.waiting]
            if sink.refused or sink.is_open_refused:
                times.append(sink.retry_ms)
            if sink.attempts and not sink.is_busy:
                times.append(sink.active_ms + sink.timeout_ms)
        return min(times)

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
            for producer_id, attempt in self._attempts.items()
            if sink is None or attempt.slot.sink == sink
        }

    # Methods that handle requests.

    def _handle(self, event: ev.SinkRequest) -> None:
        try:
            match event:
                case ev.JoinBatch():
                    self._join(event)
                case ev.KeepBatch():
                    self._keep(event)
                case ev.EndBatch():
                    self._end(event)
                case ev.AddToSlot():
                    self._add(event)
        except LogbusError as error:
            self._fail(event, error)

    def _join(self, event: ev.JoinBatch) -> None:
        if event.batch < 0 or event.timeout_ms <= 0 or not event.sink or not event.run:
            raise InvalidRequestError(
                f"JoinBatch of sink {event.sink!r}, run {event.run!r}, batch {event.batch}, "
                f"timeout {event.timeout_ms} ms: give sink and run names that are not empty, a "
                "batch of 0 or more, and a timeout above 0"
            )
        sink = self._sinks.setdefault(event.sink, _Sink())
        head = sink.head
        if head is not None and event.run in head.former_runs:
            raise _fenced(event)
        if sink.writing is not None or (
            head is not None and event.run != head.run and sink.is_busy
        ):
            self._park(sink, event)
        elif head is None:
            self._write_head(event.sink, SinkHead(event.run, day=self._day()), event)
        elif event.run != head.run:
            former = (head.run, *head.former_runs)[:FORMER_RUNS_MAX]
            state = SinkState.PREPARE_ABORT
            joined_head = replace(head, run=event.run, former_runs=former, state=state,
                            ends_batch=NO_BATCH, winners=frozenset(), day=self._day())  # fmt: skip
            self._write_head(event.sink, joined_head, event)
        else:
            self._join_batch(sink, head, event)

    def _join_batch(self, sink: _Sink, head: SinkHead, event: ev.JoinBatch) -> None:
        """Give a task attempt of the current run a slot (producer id).

        A repeated request gets the same slot; one for an already committed batch gets no slot."""
        sink.active_ms = self._now.monotonic_ms
        sink.timeout_ms = event.timeout_ms
        if event.batch == head.batch:
            self._reply(event, ev.SinkResult())
            return
        self._check_not_behind(event, head)
        if sink.logged is not None and sink.logged.ends(event.run, event.batch):
            # The sink's newest record in the log is still a commit or abort that includes this
            # batch. The next coordinator, if it took over now, would abort this attempt, so the
            # request waits.
            self._park(sink, event)
            return
        for producer_id in sink.attempts:
            attempt = self._attempts[producer_id]
            if _is_same_attempt(attempt.slot, event) and producer_id not in sink.unmarked:
                if attempt.is_opening:
                    attempt.joins.append(event.token)
                else:
                    self._reply(event, ev.SinkResult(None, producer_id, attempt.slot.epoch))
                return
        if len(sink.attempts) >= ATTEMPTS_MAX:
            raise InvalidRequestError(
                f"sink {event.sink!r} has {ATTEMPTS_MAX} open attempts; use fewer tasks"
            )
        self._open_slot(sink, event)

    def _open_slot(self, sink: _Sink, event: ev.JoinBatch) -> None:
        """Give the task attempt a free slot (producer id), or let it wait for a new one."""
        taken = self._pool.take()
        if taken is None:
            if self._pool.wait(event):
                self._effects.append(ev.FetchSlotId())
            return
        producer_id, free = taken
        slot = SinkSlot(
            free.epoch,
            event.sink,
            event.run,
            event.batch,
            event.task,
            event.attempt,
            event.timeout_ms,
            event.partitions,
        )
        attempt = self._attempts[producer_id] = TaskAttempt(slot, self._now, joins=[event.token])
        sink.attempts.add(producer_id)

        def settled(error: LogbusError | None) -> None:
            is_known = self._attempts.get(producer_id) is attempt
            if error is None:
                attempt.added = slot.partitions
            elif is_known and producer_id not in sink.unmarked:
                # The append of the attempt's record failed: give its producer id back to the pool.
                sink.attempts.discard(producer_id)
                del self._attempts[producer_id]
                self._pool.give(producer_id, free)
            tokens, attempt.joins = attempt.joins, []
            result = ev.SinkResult(error, producer_id, slot.epoch)
            for token in tokens:
                self._effects.append(ev.SinkReply(token, result))

        self._write_slot(producer_id, slot, settled)

    def _serve_waiting(self) -> None:
        """Handle again the JoinBatch requests that waited for a free producer id."""
        for event in self._pool.take_waiting():
            self._handle(event)

    def _keep(self, event: ev.KeepBatch) -> None:
        sink, head = self._current(event)
        if event.batch <= head.batch:
            raise _fenced(event)
        sink.active_ms = self._now.monotonic_ms
        self._reply(event, ev.SinkResult())

    def _end(self, event: ev.EndBatch) -> None:
        if event.is_commit and not event.rows:
            self._compare(event)
            return
        sink, head = self._current(event)
        sink.active_ms = self._now.monotonic_ms
        if not event.is_commit:
            self._abort(sink, head, event)
            return
        self._check_replay(event, head)
        if event.batch == head.batch:
            self._answer_after_markers(sink, event)
            return
        if sink.is_busy:
            self._park(sink, event)
            return
        tasks = {self._check_winner(event, winner) for winner in event.winners}
        if len(tasks) != len(event.winners):
            raise InvalidRequestError(
                f"batch {event.batch} of sink {event.sink!r} names two attempts of one task; "
                "commit one attempt for each task"
            )
        decided = replace(
            head,
            batch=event.batch,
            rows=event.rows,
            state=SinkState.PREPARE_COMMIT,
            ends_batch=event.batch,
            winners=event.winners,
            day=self._day(),
        )
        self._write_head(event.sink, decided, event)

    def _compare(self, event: ev.EndBatch) -> None:
        """Answer the commit of a batch without rows, after ``_check_replay``. The commit changes
        nothing, so no record is written. No task attempt has joined the batch, so the request's run
        may be new to the sink."""
        sink = self._sinks.get(event.sink)
        if sink is not None and sink.writing is not None:
            self._park(sink, event)
            return
        if sink is not None and sink.head is not None:
            if event.run in sink.head.former_runs:
                raise _fenced(event)
            self._check_replay(event, sink.head)
        self._reply(event, ev.SinkResult())

    def _abort(self, sink: _Sink, head: SinkHead, event: ev.EndBatch) -> None:
        """Abort the attempts that the request names, or else all attempts of batches up to the
        request's batch.

        A batch whose commit is decided stays committed."""
        if event.winners:
            self._abort_attempts(sink, event)
            return
        is_open = any(self._attempts[row].slot.batch <= event.batch for row in sink.attempts)
        if event.batch <= head.batch or not is_open:
            self._reply(event, ev.SinkResult())
        elif sink.is_busy:
            self._park(sink, event)
        else:
            self._write_head(event.sink, _aborting(head, event.batch, self._day()), event)

    def _abort_attempts(self, sink: _Sink, event: ev.EndBatch) -> None:
        """Abort the failed task attempts that the request names, before their micro-batch ends.

        No record is written before the markers: if the coordinator changes, the new coordinator
        aborts the attempts with their micro-batch, because no commit includes failed attempts."""
        if sink.is_busy:
            self._park(sink, event)
            return
        rows = []
        for producer_id, _ in sorted(filter(partial(self._is_attempt, event), event.winners)):
            sink.unmarked.add(producer_id)
            rows.append(_markers(producer_id, self._attempts[producer_id], is_commit=False))
        if rows:
            sink.waiting.append((event.token, self._now.monotonic_ms + ANSWER_MS))
            self._send_rows(event.sink, sink, rows)
        else:
            self._reply(event, ev.SinkResult())

    def _is_attempt(self, event: ev.EndBatch, pair: ProducerPair) -> bool:
        """Return whether the producer id and epoch belong to an open task attempt of the batch that
        ``event`` names."""
        attempt = self._attempts.get(pair.producer_id)
        if attempt is None or attempt.is_opening:
            return False
        slot = attempt.slot
        is_named = (slot.sink, slot.run, slot.batch) == (event.sink, event.run, event.batch)
        is_ending = pair.producer_id in self._sinks[event.sink].unmarked
        return is_named and slot.epoch == pair.epoch and not is_ending

    def _check_winner(self, event: ev.EndBatch, winner: ProducerPair) -> int:
        """Return the number of the task whose attempt ``winner`` is to be committed.

        Raises ProducerFencedError unless the attempt is open and belongs to the batch of
        ``event``."""
        if not self._is_attempt(event, winner):
            raise ProducerFencedError(
                f"batch {event.batch} of sink {event.sink!r}: the attempt with producer id "
                f"{winner.producer_id} and epoch {winner.epoch} was aborted, because the sink got "
                "no request within transaction.timeout.ms or another run took over. Nothing is "
                "committed: start the query again"
            )
        return self._attempts[winner.producer_id].slot.task

    def _add(self, event: ev.AddToSlot) -> None:
        attempt = self._attempts.get(event.producer_id)
        sink = self._sinks.get(event.sink)
        if (
            attempt is None
            or sink is None
            or (attempt.slot.sink, attempt.slot.epoch) != (event.sink, event.epoch)
            or attempt.is_opening
            or event.producer_id in sink.unmarked
        ):
            raise ProducerFencedError(
                f"producer id {event.producer_id} with epoch {event.epoch} belongs to no open task "
                f"attempt of sink {event.sink!r}: the attempt's batch was committed or aborted, or "
                "a newer attempt uses the producer id"
            )
        if sink.writing is not None:
            # A record that ends the sink's batch is being appended. Only its outcome tells whether
            # this attempt is still open.
            raise ConcurrentTransactionsError(f"sink {event.sink!r} is ending a batch; retry")
        missing = event.partitions - attempt.added
        if missing and event.verify_only:
            raise TransactionAbortableError(
                f"the attempt of sink {event.sink!r} has not added the partition of this request "
                "to its transaction; abort the batch"
            )
        if not missing:
            self._reply(event, ev.SinkResult())
            return
        grown = attempt.slot.partitions | missing
        attempt.slot = replace(attempt.slot, partitions=grown)

        def settled(error: LogbusError | None) -> None:
            if error is None:
                attempt.added = grown
            self._reply(event, ev.SinkResult(error))

        self._write_slot(event.producer_id, attempt.slot, settled)

    def _current(self, event: ev.KeepBatch | ev.EndBatch) -> tuple[_Sink, SinkHead]:
        """Return the sink and its committed state. Raises ProducerFencedError unless the request
        comes from the sink's current run."""
        sink = self._sinks.get(event.sink)
        if sink is None or sink.head is None or sink.head.run != event.run:
            raise _fenced(event)
        return sink, sink.head

    def _check_not_behind(self, event: ev.JoinBatch | ev.EndBatch, head: SinkHead) -> None:
        if event.batch < head.batch:
            raise SinkAheadOfCheckpointError(
                f"sink {event.sink!r} has committed batch {head.batch}, and the query writes batch "
                f"{event.batch}: its checkpoint was set back. Set onReplayMismatch=skip to pass "
                "over committed batches, or use a new checkpoint, which is a new sink"
            )

    def _check_replay(self, event: ev.EndBatch, head: SinkHead) -> None:
        """Raise an error if a request commits an older batch again, or repeats the last commit with
        a different number of rows."""
        self._check_not_behind(event, head)
        if event.batch == head.batch and event.rows != head.rows:
            raise SinkRowsDifferError(
                f"batch {event.batch} of sink {event.sink!r} was committed with {head.rows} "
                f"rows, and its replay has {event.rows}: the query is not deterministic. Set "
                "onReplayMismatch=skip to keep the committed rows, or use a new checkpoint"
            )

    def _park(self, sink: _Sink, event: ev.SinkRequest) -> None:
        if len(sink.parked) >= PARKED_MAX:
            raise ConcurrentTransactionsError(f"sink {event.sink!r} is ending a batch; retry")
        sink.parked.append(event)

    # Methods that append records.

    def _write_head(
        self, name: str, head: SinkHead, request: ev.JoinBatch | ev.EndBatch | None
    ) -> None:
        """Append a new state of the sink (its head) to the log. Once the record is committed,
        continue with ``request``, if given."""
        sink = self._sinks[name]
        # If the log refused the record that frees a slot (a producer id of the sink), append it
        # again before the new head (the state of the sink). Otherwise a new coordinator would find
        # the slot's task attempt still open in the log, and the new head would abort it, even if
        # the attempt was committed.
        self._write_refused(name, sink)

        def settled(error: LogbusError | None) -> None:
            sink.writing = None
            if error is not None:
                if request is not None:
                    self._fail(request, error)
                else:
                    sink.active_ms = self._now.monotonic_ms - sink.timeout_ms + RETRY_MS
                self._fail_parked(sink, error)
                if sink.head is None:
                    del self._sinks[name]
                elif sink.logged != sink.head:
                    self._retry_open_head(sink)
                return
            sink.head = sink.logged = head
            if isinstance(request, ev.EndBatch):
                sink.waiting.append((request.token, self._now.monotonic_ms + ANSWER_MS))
            elif request is not None:
                sink.parked.insert(0, request)
            sink.is_open_refused = False
            if head.state is not SinkState.OPEN:
                self._send_markers(name, sink, head)
            self._retry_parked(sink)

        sink.writing = self._expect(settled)
        self._effects.append(ev.PersistHead(sink.writing, name, head))

    def _write_slot(self, producer_id: int, slot: SinkSlot | None, settled: _Settled) -> None:
        number = self._expect(settled)
        self._effects.append(ev.PersistSlot(number, producer_id, slot))

    def _settle(self, number: int, error: LogbusError | None) -> None:
        settled = self._settled.pop(number, None)
        if settled is not None:
            settled(error)

    def _expect(self, settled: _Settled) -> int:
        """Return the number of a new append, whose outcome is reported to ``settled``."""
        self._numbers += 1
        self._settled[self._numbers] = settled
        return self._numbers

    # Methods that send the markers of a commit or abort, and then open the sink for its next batch.

    def _send_markers(self, name: str, sink: _Sink, head: SinkHead) -> None:
        """Send the commit or abort markers of a decision that the log has committed. A task attempt
        without partitions wrote nothing and needs no markers."""
        rows = []
        for producer_id in sorted(sink.attempts):
            attempt = self._attempts[producer_id]
            slot = attempt.slot
            if producer_id in sink.unmarked or not head.ends(slot.run, slot.batch):
                continue
            sink.unmarked.add(producer_id)
            is_commit = ProducerPair(producer_id, slot.epoch) in head.winners
            rows.append(_markers(producer_id, attempt, is_commit=is_commit))
        self._send_rows(name, sink, rows)

    def _send_rows(self, name: str, sink: _Sink, rows: list[ev.SlotMarkers]) -> None:
        """Send commit or abort markers: each of ``rows`` has those of one task attempt. Once the
        last marker is written, the sink is open for the next batch."""
        silent = [row for row in rows if not row.partitions]
        sent = tuple(row for row in rows if row.partitions)
        if sent:
            self._effects.append(ev.SendSinkMarkers(name, sent))
        for row in silent:
            sink.unmarked.discard(row.producer_id)
            self._free_slot(name, row.producer_id)
        if not sink.unmarked:
            self._complete(name, sink)

    def _marked(self, event: ev.SlotMarked) -> None:
        attempt = self._attempts.get(event.producer_id)
        if attempt is None or attempt.slot.epoch + 1 != event.epoch:
            return
        name = attempt.slot.sink
        sink = self._sinks[name]
        if event.producer_id not in sink.unmarked:
            return
        sink.unmarked.discard(event.producer_id)
        self._free_slot(name, event.producer_id)
        if not sink.unmarked:
            self._complete(name, sink)

    def _free_slot(self, name: str, producer_id: int) -> None:
        """Free the producer id of a task attempt after its markers are written."""
        sink = self._sinks[name]
        sink.attempts.discard(producer_id)
        sink.freeing[producer_id] = self._attempts.pop(producer_id).slot.freed()
        self._write_free_slot(name, sink, producer_id)

    def _write_free_slot(self, name: str, sink: _Sink, producer_id: int) -> None:
        """Append the record that frees a slot (producer id) for another task attempt.

        Without epochs left, the record deletes the slot instead."""
        slot = sink.freeing[producer_id]
        is_last = slot.epoch > EPOCH_LAST

        def settled(error: LogbusError | None) -> None:
            if error is not None:
                sink.refused.add(producer_id)
                sink.retry_ms = self._now.monotonic_ms + RETRY_MS
                return
            del sink.freeing[producer_id]
            if not is_last:
                self._pool.give(producer_id, slot)
            self._write_open_head(name, sink)

        self._write_slot(producer_id, None if is_last else slot, settled)

    def _write_refused(self, name: str, sink: _Sink) -> None:
        """Append again the records that the log refused and for which no request waits."""
        refused, sink.refused = sink.refused, set()
        for producer_id in sorted(refused):
            self._write_free_slot(name, sink, producer_id)
        if sink.is_open_refused:
            sink.is_open_refused = False
            self._write_open_head(name, sink)

    def _complete(self, name: str, sink: _Sink) -> None:
        """Open the sink for its next batch after the last marker of the former batch.

        Answer the waiting EndBatch requests now: they do not wait for the record that opens the
        sink."""
        head = sink.head
        assert head is not None
        sink.head = replace(head, state=SinkState.OPEN, ends_batch=NO_BATCH, winners=frozenset())
        self._write_open_head(name, sink)
        waiting, sink.waiting = sink.waiting, []
        for token, _ in waiting:
            self._effects.append(ev.SinkReply(token, ev.SinkResult()))
        self._retry_parked(sink)
        self._serve_waiting()

    def _write_open_head(self, name: str, sink: _Sink) -> None:
        """Append the record that opens the sink for its next batch, after a commit or abort.

        Does nothing while a record that frees a slot is being written: this method is called again
        when that record is committed. Does nothing while the record of the next commit or abort is
        being written, because it replaces this record."""
        if sink.freeing or sink.is_busy or sink.logged == sink.head:
            return
        opened = sink.head

        def settled(error: LogbusError | None) -> None:
            if error is not None:
                self._retry_open_head(sink)
                return
            sink.logged = opened
            self._retry_parked(sink)

        self._effects.append(ev.PersistHead(self._expect(settled), name, opened))

    def _retry_open_head(self, sink: _Sink) -> None:
        """Let a TransactionTick append the record that opens the sink for its next batch."""
        sink.is_open_refused = True
        sink.retry_ms = self._now.monotonic_ms + RETRY_MS

    def _answer_after_markers(self, sink: _Sink, event: ev.EndBatch) -> None:
        assert sink.head is not None
        if sink.head.state is SinkState.OPEN:
            self._reply(event, ev.SinkResult())
        else:
            sink.waiting.append((event.token, self._now.monotonic_ms + ANSWER_MS))

    # Methods that handle loading, ticks, expiry and the loss of the partition.

    def _load(self) -> None:
        for attempt in self._attempts.values():
            attempt.opened = self._now
        for name, sink in self._sinks.items():
            sink.active_ms = self._now.monotonic_ms
            if sink.head is not None and sink.head.state is not SinkState.OPEN:
                self._send_markers(name, sink, sink.head)

    def _tick(self) -> None:
        now_ms = self._now.monotonic_ms
        for name, sink in self._sinks.items():
            late = [token for token, at in sink.waiting if at <= now_ms]
            sink.waiting = [(token, at) for token, at in sink.waiting if at > now_ms]
            for token in late:
                # Answer without waiting longer for the markers: the decision (commit or abort) is
                # committed.
                self._effects.append(ev.SinkReply(token, ev.SinkResult()))
            if sink.retry_ms <= now_ms:
                self._write_refused(name, sink)
            is_silent = sink.active_ms + sink.timeout_ms <= now_ms
            if sink.attempts and is_silent and not sink.is_busy and sink.head is not None:
                last = max(self._attempts[row].slot.batch for row in sink.attempts)
                self._write_head(name, _aborting(sink.head, last, self._day()), None)

    def _expire(self, event: ev.ExpireSinks) -> None:
        for name, sink in list(self._sinks.items()):
            head = sink.head
            if head is None or sink.is_busy or sink.attempts or sink.freeing or sink.parked:
                continue
            is_single = head.run == name
            if head.day < event.before_day or (is_single and sink.active_ms < event.before_ms):
                del self._sinks[name]
                # If the log refuses to delete the sink, the next coordinator expires it again.
                number = self._expect(lambda error: None)
                self._effects.append(ev.PersistHead(number, name, None))

    def _depose(self, error: LogbusError) -> None:
        settled, self._settled = self._settled, {}
        for outcome in settled.values():
            outcome(error)
        for sink in self._sinks.values():
            for token, _ in sink.waiting:
                self._effects.append(ev.SinkReply(token, ev.SinkResult(error)))
            sink.waiting = []
            self._fail_parked(sink, error)
        self._fail_all(self._pool.take_waiting(), error)

    # Methods that retry waiting (parked) requests, and send replies.

    def _retry_parked(self, sink: _Sink) -> None:
        parked, sink.parked = sink.parked, []
        for event in parked:
            self._handle(event)

    def _fail_parked(self, sink: _Sink, error: LogbusError) -> None:
        parked, sink.parked = sink.parked, []
        self._fail_all(parked, error)

    def _abandon(self, token: int) -> None:
        for sink in self._sinks.values():
            sink.parked = [event for event in sink.parked if event.token != token]
        self._pool.abandon(token)

    def _reply(self, event: ev.SinkRequest, result: ev.SinkResult) -> None:
        self._effects.append(ev.SinkReply(event.token, result))

    def _fail_all(self, events: Iterable[ev.SinkRequest], error: LogbusError) -> None:
        for event in events:
            self._fail(event, error)

    def _fail(self, event: ev.SinkRequest, error: LogbusError) -> None:
        self._reply(event, ev.SinkResult(error))

    def _day(self) -> int:
        return self._now.wall_ms // _DAY_MS


def _markers(producer_id: int, attempt: TaskAttempt, *, is_commit: bool) -> ev.SlotMarkers:
    slot = attempt.slot
    return ev.SlotMarkers(producer_id, slot.epoch + 1, is_commit, slot.partitions)


def _is_same_attempt(slot: SinkSlot, event: ev.JoinBatch) -> bool:
    requested = event.run, event.batch, event.task, event.attempt
    return (slot.run, slot.batch, slot.task, slot.attempt) == requested


def _aborting(head: SinkHead, batch: int, day: int) -> SinkHead:
    return replace(
        head,
        state=SinkState.PREPARE_ABORT,
        ends_batch=batch,
        winners=frozenset(),
        day=day,
    )


def _fenced(event: ev.JoinBatch | ev.KeepBatch | ev.EndBatch) -> ProducerFencedError:
    return ProducerFencedError(
        f"run {event.run!r} of sink {event.sink!r} may not write batch {event.batch}: another run "
        "of the query took over, or the batch has ended. Stop this query; the other one continues"
    )
