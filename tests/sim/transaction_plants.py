"""Rules of transactions, each with a switch that removes the rule. The simulator must then
detect a fault; see ``plants``.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from sim.damage_plants import PLAIN, planted
from sim.plants import PLANTS, Patch

from broker_lite.metadata.group_offsets import FetchedOffsets, GroupOffsets
from broker_lite.metadata.pending_offsets import PartOperations
from broker_lite.metadata.store import Delete
from broker_lite.replication.events import ACKS_ALL
from broker_lite.server.coordinators import state_log
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.transaction_coordinator import TransactionCoordinator
from broker_lite.server.coordinators.transaction_markers import MarkerJob
from broker_lite.storage.log import Log
from broker_lite.storage.open_transactions import OpenTransactions
from broker_lite.storage.reader import LogReader
from broker_lite.storage.transaction_index import TransactionIndex
from broker_lite.transactions import effects as fx
from broker_lite.transactions import events as ev
from broker_lite.transactions import keyed_state
from broker_lite.transactions.hanging import CoordinatorAnswers, Verdict
from broker_lite.transactions.keyed_state import DeleteBefore, KeyedState
from broker_lite.transactions.participant import Participant, Verification
from broker_lite.transactions.records import OPEN_STATES, TransactionState
from broker_lite.transactions.sink import SparkSink
from broker_lite.transactions.sink_records import SinkState
from broker_lite.transactions.transaction import Transaction

__all__ = ["PLANTS", "TRANSACTION_PLANTS"]

TRANSACTS = {**PLAIN, "transacts": True}
SEGMENTS = {**TRANSACTS, "segment_ms": 2_000}
DEPOSES = {**TRANSACTS, "faults": ("depose_a_coordinator",)}
SEARCHES = {**TRANSACTS, "searches": True}
OVERTAKES = {**TRANSACTS, "faults": ("overtake_a_verification",), "fault_pause_s": 1.0}
_BEFORE = len(PLANTS)
_DECIDED = OPEN_STATES - {TransactionState.ONGOING}


# The next functions remove rules that the transaction coordinator obeys.


@planted(TRANSACTS)
def end_is_answered_before_its_decision_is_committed(patch: Patch) -> None:
    """Plant a fault: EndTxn is answered when its decision is appended, before the decision is
    committed."""
    append = TransactionCoordinator._append

    def eager(self: TransactionCoordinator, held: Any, effect: fx.Persist) -> None:
        append(self, held, effect)
        pending = held.machine._pending
        if pending is None or not isinstance(pending.request, ev.End):
            return
        record = effect.record
        assert record is not None
        held.parked.reply(
            pending.request.token, fx.TransactionResult(None, record.producer_id, record.epoch)
        )

    patch.setattr(TransactionCoordinator, "_append", eager)


@planted(TRANSACTS)
def markers_sent_before_the_decision_is_committed(patch: Patch) -> None:
    """Plant a fault: markers are sent when the decision is appended, before the decision is
    committed."""
    append = TransactionCoordinator._append

    def eager(self: TransactionCoordinator, held: Any, effect: fx.Persist) -> None:
        append(self, held, effect)
        record = effect.record
        if record is None or record.state not in _DECIDED:
            return
        markers = fx.SendMarkers(
            record.number,
            record.producer_id,
            record.epoch,
            record.epoch - 1 if record.version > 1 else record.epoch,
            record.state is TransactionState.PREPARE_COMMIT,
            record.version,
            record.partitions,
            record.groups,
        )
        led = held.led
        job = MarkerJob(held.machine.name, markers, led.partition, led.epoch, lambda done: None)
        self._markers._send(job)

    patch.setattr(TransactionCoordinator, "_append", eager)


@planted(TRANSACTS)
def state_loaded_before_it_is_committed(patch: Patch) -> None:
    """Plant a fault: a coordinator loads its state only up to its own high watermark.

    Committed records may lie above, until its high watermark reaches its leader epoch's start.
    """

    async def at_once(self: Any) -> int:
        return int(self.replica.high_watermark)

    patch.setattr(state_log._LedPartition, "_committed_end", at_once)


@planted(TRANSACTS)
def new_coordinator_sends_no_markers(patch: Patch) -> None:
    """Plant a fault: a new coordinator sends no markers for decided transactions."""
    patch.setattr(Transaction, "_load", lambda self: None)


@planted(TRANSACTS)
def late_state_appends_count_as_refused(patch: Patch) -> None:
    """Plant a fault: a coordinator treats a state record that was acknowledged late as refused,
    although the log has it.
    """

    def write(self: Any, write: Any) -> None:
        manager = self._owner.replicas
        batch = state_log.AppendBatch(
            memoryview(write.batch), state_log.read_header(write.batch), 1 << 20
        )
        deadline_ms = self._owner.clock.monotonic_ms() + 200
        manager.append(
            self.replica, ACKS_ALL, batch, deadline_ms, partial(self._written, write.number)
        )

    patch.setattr(state_log._LedPartition, "_write", write)


@planted(TRANSACTS)
def end_of_a_transaction_keeps_the_epoch(patch: Patch) -> None:
    """Plant a fault: EndTxn does not bump the producer epoch in transaction version 2."""

    def end(self: Transaction, event: ev.End) -> None:
        self._end_keeping_epoch(event)

    patch.setattr(Transaction, "_end_bumping_epoch", end)


@planted(DEPOSES)
def deposed_coordinators_decide(patch: Patch) -> None:
    """Plant a fault: a deposed coordinator's responses and markers are accepted."""
    patch.setattr(CoordinatorEpochs, "check", lambda self, partition, epoch: None)


# The next functions remove rules about the coordinator's state log.


@planted(TRANSACTS)
def state_deleted_before_its_copy_is_committed(patch: Patch) -> None:
    """Plant a fault: older state records are deleted before the full copy that replaces them is
    committed."""
    copied = KeyedState._copied

    def early(self: KeyedState, batch: Any) -> Any:
        effects = copied(self, batch)
        is_begin = batch.kind == keyed_state._BEGIN
        return [DeleteBefore(batch.base_offset)] if is_begin else effects

    patch.setattr(KeyedState, "_copied", early)


@planted(TRANSACTS)
def state_copies_hold_old_values_of_keys_in_flight(patch: Patch) -> None:
    """Plant a fault: a copy of all keys in the state log has the old value of a key whose new value
    is not committed yet."""
    next_slice = KeyedState._next_slice

    def careless(self: KeyedState, left: dict[bytes, None]) -> list[bytes]:
        pending, self._pending = self._pending, {}
        try:
            return next_slice(self, left)
        finally:
            self._pending = pending

    patch.setattr(KeyedState, "_next_slice", careless)


# The next functions remove rules about partitions that a transaction writes to.


@planted(TRANSACTS)
def producers_are_not_verified(patch: Patch) -> None:
    """Plant a fault: a leader does not verify transactional batches with the coordinator."""
    patch.setattr(Participant, "admit", lambda self, producer_id, epoch: None)


@planted(OVERTAKES)
def verification_counts_after_a_marker(patch: Patch) -> None:
    """Plant a fault: a leader accepts a verification after a marker has ended the transaction."""
    verify = Participant.verify

    def careless(self: Participant, asked: Verification, number: int = -1) -> bool:
        if self._holder(asked) is None and asked.producer_id not in self._producers:
            self.admit(asked.producer_id, asked.epoch)
            self._producers[asked.producer_id].token = asked.token
        return verify(self, asked, number)

    patch.setattr(Participant, "verify", careless)


# The next functions remove rules about logs that hold transactions.


@planted(TRANSACTS)
def last_stable_offset_exceeds_the_high_watermark(patch: Patch) -> None:
    """Plant a fault: the last stable offset may exceed the high watermark."""

    def stable(self: LogReader, high_watermark: int) -> int:
        unstable = self.unstable
        return min(self.log_end_offset, 1 << 62 if unstable is None else unstable.open_start)

    patch.setattr(LogReader, "last_stable_offset", stable)


@planted(SEGMENTS)
def aborted_transactions_of_one_segment_only(patch: Patch) -> None:
    """Plant a fault: a fetch looks for aborted transactions only in the first segment it reads."""
    collect = TransactionIndex.collect

    def first(self: TransactionIndex, start: int, end: int, found: Any) -> bool:
        collect(self, start, end, found)
        return True

    patch.setattr(TransactionIndex, "collect", first)


@planted(TRANSACTS)
def truncation_keeps_transactions(patch: Patch) -> None:
    """Plant a fault: a truncated log keeps the transactions of the truncated records."""
    rebuild = Log.rebuild_producers

    def keeping(self: Log, now_ms: int) -> None:
        before = getattr(self, "producers", None)
        rebuild(self, now_ms)
        if before is not None and before.next_offset > self.producers.next_offset:
            self.producers.transactions = before.transactions
            self._note_transactions()

    patch.setattr(Log, "rebuild_producers", keeping)
    patch.setattr(TransactionIndex, "cut", lambda self, offset: self)


@planted(TRANSACTS)
def followers_track_no_transactions(patch: Patch) -> None:
    """Plant a fault: followers do not track open transactions, so a new leader knows no open
    transaction."""
    append = Log.append_as_follower

    def forgetting(self: Log, buffer: memoryview, leader_epoch: int, now_ms: int) -> int:
        try:
            return append(self, buffer, leader_epoch, now_ms)
        finally:
            self.producers.transactions = _Nothing()
            self.reader.unstable = None

    patch.setattr(Log, "append_as_follower", forgetting)


class _Nothing(OpenTransactions):
    """Stands for the tracker of open transactions; records no transaction."""

    def end(self, producer_id: int, marker_offset: int) -> int:
        self._starts.setdefault(producer_id, marker_offset)
        return super().end(producer_id, marker_offset)


# The next functions remove rules about offsets in transactions.


@planted(TRANSACTS)
def applied_offsets_stay_pending(patch: Patch) -> None:
    """Plant a fault: offsets of a committed transaction are applied, but also stay pending."""
    end = PartOperations.end

    def keeping(self: PartOperations, write: Any) -> None:
        end(self, write)
        self.operations[:] = [
            operation
            for operation in self.operations
            if not (isinstance(operation, Delete) and "/pending/" in operation.path)
        ]

    patch.setattr(PartOperations, "end", keeping)


@planted(TRANSACTS)
def committed_offsets_are_read_before_pending_ones(patch: Patch) -> None:
    """Plant a fault: OffsetFetch with require_stable reads the committed offsets before the pending
    ones."""

    async def fetch(self: Any, group: str, partitions: Any, **options: Any) -> FetchedOffsets:
        offsets = await self.fetch(group, partitions, **options)
        await asyncio.sleep(0)
        pending = await self.pending(group)
        rows = {key for part in pending for key in part.value.offsets}
        stable = {key: row for key, row in offsets.items() if key not in rows}
        return FetchedOffsets(stable, frozenset(rows))

    patch.setattr(GroupOffsets, "fetch_stable", fetch)


# The next function removes a rule about hanging transactions.


@planted(SEARCHES)
def silent_coordinators_do_not_know_a_transaction(patch: Patch) -> None:
    """Plant a fault: a leader aborts a transaction that no coordinator knows, although not all
    coordinators have answered."""
    judge = CoordinatorAnswers.judge

    def careless(self: CoordinatorAnswers, transaction: Any) -> Verdict:
        self.missing.clear()
        return judge(self, transaction)

    patch.setattr(CoordinatorAnswers, "judge", careless)


# The next functions remove rules about Spark's exactly-once sink.


@planted(TRANSACTS)
def sink_writes_committed_batches_again(patch: Patch) -> None:
    """Plant a fault: a Spark sink writes a committed batch again."""
    handle = SparkSink.handle

    def forgetting(self: SparkSink, event: Any) -> None:
        head = self.head
        named = getattr(event, "run", None), getattr(event, "batch", None)
        if head is None or named != (head.run, head.batch):
            handle(self, event)
            return
        before = self.head = replace(head, batch=head.batch - 1)
        handle(self, event)
        if self.head is before:
            self.head = head

    patch.setattr(SparkSink, "handle", forgetting)


@planted(TRANSACTS)
def losing_attempts_stay_open(patch: Patch) -> None:
    """Plant a fault: the commit of a batch does not abort the transactions of its other task
    attempts."""
    send = SparkSink._send_markers

    def careless(self: SparkSink, head: Any) -> None:
        winners = {pair.producer_id for pair in head.winners}
        attempts, losers = self.attempts, set()
        if head.state is SinkState.PREPARE_COMMIT:
            losers = attempts - winners
            self.attempts = attempts & winners
        send(self, head)
        self.attempts |= losers

    patch.setattr(SparkSink, "_send_markers", careless)


TRANSACTION_PLANTS = PLANTS[_BEFORE:]
"""The plants of this module."""
