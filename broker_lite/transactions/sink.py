"""``SparkSink``: the state machine of one sink, the target of one Spark query.

A *run* is one start of the query. When Spark's driver commits a micro-batch, it names the attempts
to commit, the *winners*. The decision is one record in ``__transaction_state``, the sink's *head*,
which has the batch number and the winners. Winners then get commit markers; all other attempts of
the batch get abort markers. A replayed batch has the same number, so committing it twice has no
effect.

No request waits for the records that, after the markers, free a slot or open the sink for its next
batch. If such a record is lost, the next coordinator sends the markers again. If the log refuses
it, the sink writes it again. A freed slot serves a new attempt only once the record that frees it
is committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from broker_lite.transactions.sink_outbox import SinkOutbox
from broker_lite.transactions.sink_records import (
    FORMER_RUNS_MAX,
    NO_BATCH,
    ProducerPair,
    SinkHead,
    SinkSlot,
    SinkState,
)
from broker_lite.transactions.sink_slots import SlotPool, TaskAttempt
from broker_lite.transactions.transaction import EPOCH_LAST, NEVER

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


class SparkSink:
    """The state of one sink, and its answers to requests.

    ``head`` is the sink's state: its last committed batch, and the commit or abort in progress;
    None if the sink is new. ``slots`` and ``outbox`` belong to all sinks of the partition.
    ``on_opened`` is called when the sink opens for its next batch."""

    def __init__(
        self,
        name: str,
        head: SinkHead | None,
        slots: SlotPool,
        outbox: SinkOutbox,
        on_opened: Callable[[], None],
    ) -> None:
        self.name = name
        self.head = head
        self.attempts: set[int] = set()
        """Producer ids of the attempts of Spark tasks that write to this sink, until their commit
        or abort markers are written."""
        self._slots = slots
        self._outbox = outbox
        self._on_opened = on_opened
        self._logged = head
        """The state in the sink's last committed record. After the last marker of a commit or
        abort, ``head`` is open at once, ``_logged`` once the log has committed that state."""
        self._is_writing = False
        """Whether an append that will replace ``head`` is in flight."""
        self._parked: list[ev.SinkRequest] = []
        """The requests that wait while the sink is busy (``_is_busy``), or while ``_logged`` is
        still a commit or abort that includes their batch."""
        self._unmarked: set[int] = set()
        """Producer ids of the task attempts whose commit or abort markers are not all written
        yet."""
        self._freeing: dict[int, SinkSlot] = {}
        """The freed slots of ended attempts, by producer id: all markers are written, but the
        record that frees the producer id is not committed yet.

        The record that opens the sink for its next batch must come later in the log than the
        records that free these ids. Otherwise a new coordinator could find an open sink whose ended
        attempts look open, and would abort committed ones."""
        self._refused: set[int] = set()
        """The producer ids in ``_freeing`` whose freeing record the log refused."""
        self._is_open_refused = False
        """Whether the log refused the record that lets the sink start its next batch after a commit
        or abort."""
        self._retry_ms = 0
        self._waiting: list[tuple[int, int]] = []
        """The EndBatch requests (tokens) that wait for markers, each with the time (ms) at which
        the coordinator answers even without them."""
        self._timeout_ms = 0
        self._active_ms = 0

    @property
    def exists(self) -> bool:
        """Whether the sink has a record in the log, or its first record is being written."""
        return self.head is not None or self._is_writing or bool(self.attempts)

    @property
    def _is_busy(self) -> bool:
        """Whether a request that changes the sink must wait, because the sink's state is being
        written or the markers of a commit or abort are not all written."""
        return self._is_writing or (self.head is not None and self.head.state is not SinkState.OPEN)

    @property
    def deadline_ms(self) -> int:
        """The monotonic time (ms) at which ``tick`` is due; NEVER if it has nothing to do."""
        times = [NEVER, *(at for _, at in self._waiting)]
        if self._refused or self._is_open_refused:
            times.append(self._retry_ms)
        if self.attempts and not self._is_busy:
            times.append(self._active_ms + self._timeout_ms)
        return min(times)

    def is_unused_since(self, before_day: int, before_ms: int) -> bool:
        """Return whether the sink may be deleted. ``ExpireSinks`` explains both times."""
        head = self.head
        if head is None or self._is_busy or self.attempts or self._freeing or self._parked:
            return False
        is_single = head.run == self.name
        return head.day < before_day or (is_single and self._active_ms < before_ms)

    # Methods that handle loading, ticks and the loss of the partition.

    def adopt(self, producer_id: int) -> None:
        """Add an open attempt that the coordinator loaded from the log."""
        self.attempts.add(producer_id)
        timeout_ms = self._slots.attempts[producer_id].slot.timeout_ms
        self._timeout_ms = max(self._timeout_ms, timeout_ms)

    def load(self) -> None:
        """Restart the timeout, and resend the markers of a decided batch."""
        self._active_ms = self._outbox.now.monotonic_ms
        for producer_id in self.attempts:
            self._slots.attempts[producer_id].opened = self._outbox.now
        if self.head is not None and self.head.state is not SinkState.OPEN:
            self._send_markers(self.head)

    def tick(self) -> None:
        """Answer requests that waited long enough for markers, append refused records again, and
        abort the attempts of a silent query."""
        now_ms = self._outbox.now.monotonic_ms
        late = [token for token, at in self._waiting if at <= now_ms]
        self._waiting = [(token, at) for token, at in self._waiting if at > now_ms]
        for token in late:
            # Answer without waiting longer for the markers: the decision (commit or abort) is
            # committed.
            self._outbox.reply(token)
        if self._retry_ms <= now_ms:
            self._write_refused()
        is_silent = self._active_ms + self._timeout_ms <= now_ms
        if self.attempts and is_silent and not self._is_busy and self.head is not None:
            last = max(self._slots.attempts[row].slot.batch for row in self.attempts)
            self._write_head(_aborting(self.head, last, self._day()), None)

    def depose(self, error: LogbusError) -> None:
        """Fail all waiting requests, because another broker leads the partition."""
        for token, _ in self._waiting:
            self._outbox.reply(token, error)
        self._waiting = []
        self._fail_parked(error)

    # Methods that handle requests.

    def handle(self, event: ev.SinkRequest) -> None:
        """Carry out a request, or refuse it, or let it wait."""
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
            self._outbox.reply(event.token, error)

    def abandon(self, token: int) -> None:
        """Drop the request with this token if it waits."""
        self._parked = [event for event in self._parked if event.token != token]

    def _park(self, event: ev.SinkRequest) -> None:
        if len(self._parked) >= PARKED_MAX:
            raise ConcurrentTransactionsError(f"sink {event.sink!r} is ending a batch; retry")
        self._parked.append(event)

    def _retry_parked(self) -> None:
        parked, self._parked = self._parked, []
        for event in parked:
            self.handle(event)

    def _fail_parked(self, error: LogbusError) -> None:
        parked, self._parked = self._parked, []
        self._outbox.fail(parked, error)

    def _join(self, event: ev.JoinBatch) -> None:
        if event.batch < 0 or event.timeout_ms <= 0 or not event.sink or not event.run:
            raise InvalidRequestError(
                f"JoinBatch of sink {event.sink!r}, run {event.run!r}, batch {event.batch}, "
                f"timeout {event.timeout_ms} ms: give sink and run names that are not empty, a "
                "batch of 0 or more, and a timeout above 0"
            )
        head = self.head
        if head is not None and event.run in head.former_runs:
            raise _fenced(event)
        if self._is_writing or (head is not None and event.run != head.run and self._is_busy):
            self._park(event)
        elif head is None:
            self._write_head(SinkHead(event.run, day=self._day()), event)
        elif event.run != head.run:
            former = (head.run, *head.former_runs)[:FORMER_RUNS_MAX]
            state = SinkState.PREPARE_ABORT
            joined_head = replace(head, run=event.run, former_runs=former, state=state,
                            ends_batch=NO_BATCH, winners=frozenset(), day=self._day())  # fmt: skip
            self._write_head(joined_head, event)
        else:
            self._join_batch(head, event)

    def _join_batch(self, head: SinkHead, event: ev.JoinBatch) -> None:
        """Give a task attempt of the current run a slot (producer id).

        A repeated request gets the same slot; one for an already committed batch gets no slot."""
        self._active_ms = self._outbox.now.monotonic_ms
        self._timeout_ms = event.timeout_ms
        if event.batch == head.batch:
            self._outbox.reply(event.token)
            return
        self._check_not_behind(event, head)
        if self._logged is not None and self._logged.ends(event.run, event.batch):
            # The sink's newest record in the log is still a commit or abort that includes this
            # batch. The next coordinator, if it took over now, would abort this attempt, so the
            # request waits.
            self._park(event)
            return
        for producer_id in self.attempts:
            attempt = self._slots.attempts[producer_id]
            if _is_same_attempt(attempt.slot, event) and producer_id not in self._unmarked:
                if attempt.is_opening:
                    attempt.joins.append(event.token)
                else:
                    self._outbox.reply(event.token, None, producer_id, attempt.slot.epoch)
                return
        if len(self.attempts) >= ATTEMPTS_MAX:
            raise InvalidRequestError(
                f"sink {event.sink!r} has {ATTEMPTS_MAX} open attempts; use fewer tasks"
            )
        self._open_slot(event)

    def _open_slot(self, event: ev.JoinBatch) -> None:
        """Give the task attempt a free slot (producer id), or let it wait for a new one."""
        taken = self._slots.take()
        if taken is None:
            if self._slots.wait(event):
                self._outbox.effects.append(ev.FetchSlotId())
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
        attempt = self._slots.attempts[producer_id] = TaskAttempt(
            slot, self._outbox.now, joins=[event.token]
        )
        self.attempts.add(producer_id)

        def settled(error: LogbusError | None) -> None:
            is_known = self._slots.attempts.get(producer_id) is attempt
            if error is None:
                attempt.added = slot.partitions
            elif is_known and producer_id not in self._unmarked:
                # The append of the attempt's record failed: give its producer id back to the pool.
                self.attempts.discard(producer_id)
                del self._slots.attempts[producer_id]
                self._slots.give(producer_id, free)
            tokens, attempt.joins = attempt.joins, []
            for token in tokens:
                self._outbox.reply(token, error, producer_id, slot.epoch)

        self._outbox.append_slot(producer_id, slot, settled)

    def _keep(self, event: ev.KeepBatch) -> None:
        head = self._current(event)
        if event.batch <= head.batch:
            raise _fenced(event)
        self._active_ms = self._outbox.now.monotonic_ms
        self._outbox.reply(event.token)

    def _end(self, event: ev.EndBatch) -> None:
        if event.is_commit and not event.rows:
            self._compare(event)
            return
        head = self._current(event)
        self._active_ms = self._outbox.now.monotonic_ms
        if not event.is_commit:
            self._abort(head, event)
            return
        self._check_replay(event, head)
        if event.batch == head.batch:
            self._answer_after_markers(event)
            return
        if self._is_busy:
            self._park(event)
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
        self._write_head(decided, event)

    def _compare(self, event: ev.EndBatch) -> None:
        """Answer the commit of a batch without rows, after ``_check_replay``. The commit changes
        nothing, so no record is written. No task attempt has joined the batch, so the request's run
        may be new to the sink."""
        if self._is_writing:
            self._park(event)
            return
        if self.head is not None:
            if event.run in self.head.former_runs:
                raise _fenced(event)
            self._check_replay(event, self.head)
        self._outbox.reply(event.token)

    def _abort(self, head: SinkHead, event: ev.EndBatch) -> None:
        """Abort the attempts that the request names, or else all attempts of batches up to the
        request's batch.

        A batch whose commit is decided stays committed."""
        if event.winners:
            self._abort_attempts(event)
            return
        is_open = any(self._slots.attempts[row].slot.batch <= event.batch for row in self.attempts)
        if event.batch <= head.batch or not is_open:
            self._outbox.reply(event.token)
        elif self._is_busy:
            self._park(event)
        else:
            self._write_head(_aborting(head, event.batch, self._day()), event)

    def _abort_attempts(self, event: ev.EndBatch) -> None:
        """Abort the failed task attempts that the request names, before their micro-batch ends.

        No record is written before the markers: if the coordinator changes, the new coordinator
        aborts the attempts with their micro-batch, because no commit includes failed attempts."""
        if self._is_busy:
            self._park(event)
            return
        rows = []
        for producer_id, _ in sorted(filter(partial(self._is_attempt, event), event.winners)):
            self._unmarked.add(producer_id)
            rows.append(_markers(producer_id, self._slots.attempts[producer_id], is_commit=False))
        if rows:
            self._waiting.append((event.token, self._outbox.now.monotonic_ms + ANSWER_MS))
            self._send_rows(rows)
        else:
            self._outbox.reply(event.token)

    def _is_attempt(self, event: ev.EndBatch, pair: ProducerPair) -> bool:
        """Return whether the producer id and epoch belong to an open task attempt of the batch that
        ``event`` names."""
        attempt = self._slots.attempts.get(pair.producer_id)
        if attempt is None or attempt.is_opening:
            return False
        slot = attempt.slot
        is_named = (slot.sink, slot.run, slot.batch) == (event.sink, event.run, event.batch)
        is_ending = pair.producer_id in self._unmarked
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
        return self._slots.attempts[winner.producer_id].slot.task

    def _add(self, event: ev.AddToSlot) -> None:
        attempt = self._slots.attempts.get(event.producer_id)
        if (
            attempt is None
            or (attempt.slot.sink, attempt.slot.epoch) != (event.sink, event.epoch)
            or attempt.is_opening
            or event.producer_id in self._unmarked
        ):
            raise ProducerFencedError(
                f"producer id {event.producer_id} with epoch {event.epoch} belongs to no open task "
                f"attempt of sink {event.sink!r}: the attempt's batch was committed or aborted, or "
                "a newer attempt uses the producer id"
            )
        if self._is_writing:
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
            self._outbox.reply(event.token)
            return
        grown = attempt.slot.partitions | missing
        attempt.slot = replace(attempt.slot, partitions=grown)

        def settled(error: LogbusError | None) -> None:
            if error is None:
                attempt.added = grown
            self._outbox.reply(event.token, error)

        self._outbox.append_slot(event.producer_id, attempt.slot, settled)

    def _current(self, event: ev.KeepBatch | ev.EndBatch) -> SinkHead:
        """Return the sink's committed state. Raises ProducerFencedError unless the request comes
        from the sink's current run."""
        if self.head is None or self.head.run != event.run:
            raise _fenced(event)
        return self.head

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

    # Methods that append records.

    def _write_head(self, head: SinkHead, request: ev.JoinBatch | ev.EndBatch | None) -> None:
        """Append a new state of the sink (its head) to the log. Once the record is committed,
        continue with ``request``, if given."""
        # The log may have refused a record that frees a slot. Append this record again before the
        # new head. Without it, a new coordinator would take the slot's attempt for an open one, and
        # abort it by the new head, even if the attempt was committed.
        self._write_refused()

        def settled(error: LogbusError | None) -> None:
            self._is_writing = False
            if error is not None:
                if request is not None:
                    self._outbox.reply(request.token, error)
                else:
                    self._active_ms = self._outbox.now.monotonic_ms - self._timeout_ms + RETRY_MS
                self._fail_parked(error)
                if self._logged != self.head:
                    self._retry_open_head()
                return
            self.head = self._logged = head
            if isinstance(request, ev.EndBatch):
                self._waiting.append((request.token, self._outbox.now.monotonic_ms + ANSWER_MS))
            elif request is not None:
                self._parked.insert(0, request)
            self._is_open_refused = False
            if head.state is not SinkState.OPEN:
                self._send_markers(head)
            self._retry_parked()

        self._is_writing = True
        self._outbox.append_head(self.name, head, settled)

    # Methods that send the markers of a commit or abort, and then open the sink for its next batch.

    def _send_markers(self, head: SinkHead) -> None:
        """Send the commit or abort markers of a decision that the log has committed. A task attempt
        without partitions wrote nothing and needs no markers."""
        rows = []
        for producer_id in sorted(self.attempts):
            attempt = self._slots.attempts[producer_id]
            slot = attempt.slot
            if producer_id in self._unmarked or not head.ends(slot.run, slot.batch):
                continue
            self._unmarked.add(producer_id)
            is_commit = ProducerPair(producer_id, slot.epoch) in head.winners
            rows.append(_markers(producer_id, attempt, is_commit=is_commit))
        self._send_rows(rows)

    def _send_rows(self, rows: list[ev.SlotMarkers]) -> None:
        """Send commit or abort markers: each of ``rows`` has those of one task attempt. Once the
        last marker is written, the sink is open for the next batch."""
        silent = [row for row in rows if not row.partitions]
        sent = tuple(row for row in rows if row.partitions)
        if sent:
            self._outbox.effects.append(ev.SendSinkMarkers(self.name, sent))
        for row in silent:
            self._unmarked.discard(row.producer_id)
            self._free_slot(row.producer_id)
        if not self._unmarked:
            self._complete()

    def marked(self, event: ev.SlotMarked) -> None:
        """Free the slot of an attempt of this sink, after the attempt's last marker."""
        attempt = self._slots.attempts[event.producer_id]
        if attempt.slot.epoch + 1 != event.epoch or event.producer_id not in self._unmarked:
            return
        self._unmarked.discard(event.producer_id)
        self._free_slot(event.producer_id)
        if not self._unmarked:
            self._complete()

    def _free_slot(self, producer_id: int) -> None:
        """Free the producer id of a task attempt after its markers are written."""
        self.attempts.discard(producer_id)
        self._freeing[producer_id] = self._slots.attempts.pop(producer_id).slot.freed()
        self._write_free_slot(producer_id)

    def _write_free_slot(self, producer_id: int) -> None:
        """Append the record that frees a slot (producer id) for another task attempt.

        Without epochs left, the record deletes the slot instead."""
        slot = self._freeing[producer_id]
        is_last = slot.epoch > EPOCH_LAST

        def settled(error: LogbusError | None) -> None:
            if error is not None:
                self._refused.add(producer_id)
                self._retry_ms = self._outbox.now.monotonic_ms + RETRY_MS
                return
            del self._freeing[producer_id]
            if not is_last:
                self._slots.give(producer_id, slot)
            self._write_open_head()

        self._outbox.append_slot(producer_id, None if is_last else slot, settled)

    def _write_refused(self) -> None:
        """Append again the records that the log refused and for which no request waits."""
        refused, self._refused = self._refused, set()
        for producer_id in sorted(refused):
            self._write_free_slot(producer_id)
        if self._is_open_refused:
            self._is_open_refused = False
            self._write_open_head()

    def _complete(self) -> None:
        """Open the sink for its next batch after the last marker of the former batch.

        Answer the waiting EndBatch requests now: they do not wait for the record that opens the
        sink."""
        head = self.head
        assert head is not None
        self.head = replace(head, state=SinkState.OPEN, ends_batch=NO_BATCH, winners=frozenset())
        self._write_open_head()
        waiting, self._waiting = self._waiting, []
        for token, _ in waiting:
            self._outbox.reply(token)
        self._retry_parked()
        self._on_opened()

    def _write_open_head(self) -> None:
        """Append the record that opens the sink for its next batch, after a commit or abort.

        Does nothing while a record that frees a slot is being written: this method is called again
        when that record is committed. Does nothing while the record of the next commit or abort is
        being written, because it replaces this record."""
        if self._freeing or self._is_busy or self._logged == self.head:
            return
        opened = self.head

        def settled(error: LogbusError | None) -> None:
            if error is not None:
                self._retry_open_head()
                return
            self._logged = opened
            self._retry_parked()

        self._outbox.append_head(self.name, opened, settled)

    def _retry_open_head(self) -> None:
        """Let a TransactionTick append the record that opens the sink for its next batch."""
        self._is_open_refused = True
        self._retry_ms = self._outbox.now.monotonic_ms + RETRY_MS

    def _answer_after_markers(self, event: ev.EndBatch) -> None:
        assert self.head is not None
        if self.head.state is SinkState.OPEN:
            self._outbox.reply(event.token)
        else:
            self._waiting.append((event.token, self._outbox.now.monotonic_ms + ANSWER_MS))

    def _day(self) -> int:
        return self._outbox.now.wall_ms // _DAY_MS


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
