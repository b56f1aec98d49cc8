"""Derive the true outcome of transactions; check invariants after every step.

The truth comes from committed records alone: a transaction is decided when its Prepare record is
below the highest high watermark that a leader of its partition ever returned. ``TransactionTruth``
sees every committed batch of ``__transaction_state`` and of the topics that transactions write to.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sim.checker import Violation

from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Operation, Set
from broker_lite.model import TRANSACTION_STATE, PartitionKey
from broker_lite.record.batch import BatchHeader
from broker_lite.record.control import decode_marker
from broker_lite.record.records import decode_entries
from broker_lite.replication.partition import Partition
from broker_lite.storage.open_transactions import UnstableTransactions
from broker_lite.transactions.records import (
    TransactionRecord,
    TransactionState,
    decode_transaction,
    transactional_id_of,
)
from broker_lite.transactions.sink_records import (
    SinkHead,
    SinkSlot,
    SinkState,
    decode_head,
    decode_slot,
    sink_of,
    slot_of,
)

if TYPE_CHECKING:
    from sim.cluster import SimCluster
    from sim.process import Process

_RANK = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.PREPARE_COMMIT: 2,
    TransactionState.PREPARE_ABORT: 2,
    TransactionState.COMPLETE_COMMIT: 3,
    TransactionState.COMPLETE_ABORT: 3,
}
_PREPARED = {TransactionState.PREPARE_COMMIT: True, TransactionState.PREPARE_ABORT: False}


class Pair(NamedTuple):
    """A producer id and the producer epoch of one transaction's records."""

    producer_id: int
    epoch: int


class Written(NamedTuple):
    """A committed batch in a topic that transactions write to. ``pair`` names its producer; it
    is None for a control batch."""

    base_offset: int
    next_offset: int
    pair: Pair | None


class _Open(NamedTuple):
    """A transaction without a committed marker."""

    epoch: int
    first_offset: int


class _Shown(NamedTuple):
    """The last stable offset of a leader after its latest step, with the high watermark and the
    unstable transactions that determine it."""

    stable: int
    high_watermark: int
    unstable: UnstableTransactions | None


@dataclass
class _Partition:
    batches: list[Written] = field(default_factory=list)
    open: dict[int, _Open] = field(default_factory=dict)
    """Each producer's open transaction."""
    ended: dict[int, int] = field(default_factory=dict)
    """The epoch of each producer's last transaction with a marker."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first offset and marker's offset of each aborted transaction."""
    shown: dict[tuple[int, int], _Shown] = field(default_factory=dict)
    """The last stable offset that each process returned in each leader epoch."""


class TransactionTruth:
    """The transactions of one cluster.

    ``topics`` holds the topic ids that transactions write to.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.topics: set[str] = set()
        self.decided: dict[Pair, bool] = {}
        """Whether each decided transaction was committed."""
        self.slots: dict[int, SinkSlot] = {}
        """The last committed slot of each producer id of a sink."""
        self.has_decided = asyncio.Event()
        """An event that wakes its waiters after each decided transaction."""
        self.heads: dict[str, SinkHead] = {}
        """The last committed head of each sink."""
        self._ended_attempts: dict[str, set[Pair]] = defaultdict(set)
        """The attempts of each sink that have an outcome."""
        self._answered: dict[str, Pair] = {}
        """The last producer id and epoch that a client of each transactional id received."""
        self._numbers: dict[Pair, int] = {}
        self.of_version_1: set[str] = set()
        """Transactional ids of clients with version 1.

        A late request of such a client may start another transaction with the producer id and epoch
        of an ended transaction. This transaction has no records and is aborted.
        """
        self.records: dict[str, TransactionRecord] = {}
        """The last committed record of each transactional id."""
        self._partitions: dict[PartitionKey, _Partition] = defaultdict(_Partition)
        self._state_topic = ""
        self._offsets: dict[str, int] = {}
        """Last committed offset of each znode of a group's offsets."""
        cluster.checker.transactions = self

    # The methods below receive committed batches.

    def follows(self, topic_id: str) -> bool:
        """Return whether the caller must pass the batches of this topic to the method
        ``committed``.
        """
        return topic_id in self.topics or topic_id == self.state_topic

    @property
    def state_topic(self) -> str:
        """Return the id of ``__transaction_state``; empty before the topic exists."""
        if not self._state_topic:
            path = znodes.topic_path(TRANSACTION_STATE)
            znode = self._cluster.zk.peek(path)
            if znode is not None:
                self._state_topic = znodes.decode_assignment(path, znode.data).topic_id
        return self._state_topic

    def committed(self, key: PartitionKey, batch: memoryview, header: BatchHeader) -> None:
        """Record a committed batch; the caller passes the batches of a partition in order."""
        if key.topic_id != self._state_topic:
            self._written(key, batch, header)
            return
        for row_key, value in decode_entries(batch, header):
            name = None if row_key is None else transactional_id_of(row_key)
            # The first byte of a value holds the flags of the state log.
            if name is not None and value is not None:
                self._recorded(name, decode_transaction(value[1:]))
            elif row_key is not None and value is not None:
                self._sink_recorded(row_key, value[1:])

    def _sink_recorded(self, key: bytes, value: bytes) -> None:
        producer_id, name = slot_of(key), sink_of(key)
        if producer_id is not None:
            slot = decode_slot(value)
            before = self.slots.get(producer_id)
            if before is not None and slot.epoch < before.epoch:
                raise Violation(f"producer {producer_id}: {slot} follows {before}")
            self.slots[producer_id] = slot
        if name is not None:
            self._head_recorded(name, decode_head(value))

    def _head_recorded(self, name: str, head: SinkHead) -> None:
        """Check that the micro-batch number of a Spark sink never falls.

        A micro-batch may be committed or aborted only after the markers of the previous one are
        written.
        """
        last, self.heads[name] = self.heads.get(name), head
        if last is not None and head.batch < last.batch:
            raise Violation(f"{name}: {head} follows {last}")
        if head.state is SinkState.OPEN or head == last:
            return
        ended = self._ended_attempts[name]
        for key, partition in self._partitions.items():
            for producer_id, opened in partition.open.items():
                if Pair(producer_id, opened.epoch) in ended:
                    raise Violation(
                        f"{name}: {head} is decided, and in {key} the attempt of producer "
                        f"{producer_id} epoch {opened.epoch}, decided before, has no marker"
                    )
        for producer_id, slot in self.slots.items():
            is_of_sink = slot.sink == name and not slot.is_free
            if is_of_sink and (slot.run != head.run or slot.batch <= head.ends_batch):
                pair = Pair(producer_id, slot.epoch)
                is_commit = head.state is SinkState.PREPARE_COMMIT and pair in head.winners
                ended.add(pair)
                if self.decided.setdefault(pair, is_commit) is not is_commit:
                    raise Violation(f"{name}: {pair} of {slot} has both outcomes")

    def _recorded(self, name: str, record: TransactionRecord) -> None:
        before = self.records.get(name)
        self.records[name] = record
        # Seeds are too short for a transactional id to expire or exhaust its epochs.
        if before is not None and (
            before.producer_id != record.producer_id or _progress(record) < _progress(before)
        ):
            raise Violation(f"{name}: {record} follows {before}")
        outcome = _PREPARED.get(record.state)
        if outcome is not None:
            epoch = record.epoch - 1 if record.version > 1 else record.epoch
            self._decide(name, Pair(record.producer_id, epoch), record, outcome)

    def _decide(self, name: str, pair: Pair, record: TransactionRecord, is_commit: bool) -> None:
        self.has_decided.set()
        is_new = pair not in self.decided
        if self.decided.setdefault(pair, is_commit) is is_commit:
            self._numbers.setdefault(pair, record.number)
            answered = self._answered.get(name, pair)
            is_fenced = is_new and answered.producer_id == pair.producer_id
            if is_commit and is_fenced and pair.epoch < answered.epoch:
                raise Violation(f"{name}: {pair} commits after {answered} was answered")
        elif name not in self.of_version_1 or record.number == self._numbers[pair]:
            raise Violation(f"{name}: {pair} has both outcomes")

    def _written(self, key: PartitionKey, batch: memoryview, header: BatchHeader) -> None:
        partition, producer_id = self._partitions[key], header.producer_id
        pair = None
        if header.is_control:
            end = decode_marker(batch, header)
            assert end is not None
            opened = partition.open.pop(producer_id, None)
            if opened is not None:
                epoch = partition.ended[producer_id] = opened.epoch
                if not end.is_commit:
                    aborted = producer_id, opened.first_offset, header.base_offset
                    partition.aborted.append(aborted)
                decided = self.decided.get(Pair(producer_id, epoch))
                if decided is not end.is_commit:
                    raise Violation(
                        f"{key}: the marker at {header.base_offset} says commit={end.is_commit} of "
                        f"producer {producer_id} epoch {epoch}, which is decided: {decided}"
                    )
        elif header.is_transactional:
            pair = Pair(producer_id, header.producer_epoch)
            opened = _Open(pair.epoch, header.base_offset)
            before = partition.open.setdefault(producer_id, opened)
            if before.epoch != pair.epoch or partition.ended.get(producer_id, -1) >= pair.epoch:
                raise Violation(
                    f"{key}: a record of {pair} at {header.base_offset} follows the end of its "
                    "transaction, or joins another one"
                )
        partition.batches.append(Written(header.base_offset, header.next_offset, pair))

    # The methods below check responses and reads of clients.

    def initialized(self, name: str, pair: Pair) -> None:
        """Check that the state log has committed the producer id and epoch of an InitProducerId
        response."""
        record = self.records.get(name)
        if record is None or (record.producer_id == pair.producer_id and record.epoch < pair.epoch):
            raise Violation(f"{name}: the client received {pair}, but {record} is committed")
        self._answered[name] = max(pair, self._answered.get(name, pair))

    def answered(self, name: str, pair: Pair, is_commit: bool) -> None:
        """Check that a transaction is decided when its client receives the response to EndTxn."""
        if self.decided.get(pair, False) is not is_commit:
            raise Violation(
                f"{name}: the end of {pair} was answered with commit={is_commit}, decided: "
                f"{self.decided.get(pair)}"
            )

    def read(self, key: PartitionKey, start: int, end: int, returned: set[int]) -> None:
        """Check the batches that a read_committed reader returned from offsets [start, end)."""
        for batch in self._partitions[key].batches:
            if batch.next_offset <= start or batch.base_offset >= end:
                continue
            decided = None if batch.pair is None else self.decided.get(batch.pair)
            is_due = batch.pair is not None and decided is True
            if batch.pair is not None and decided is None:
                raise Violation(f"{key}: {batch} was passed by a reader, but is not decided")
            if (batch.base_offset in returned) is not is_due:
                raise Violation(f"{key}: {batch} was read: {not is_due}, committed: {is_due}")

    # The methods below check replicas.

    def stepped(self, process: Process, role: Partition) -> None:
        """Check a leader's last stable offset.

        The offset never decreases and never exceeds the high watermark. It must be the first offset
        of the oldest transaction without a committed marker.
        """
        if role.key.topic_id not in self.topics or not role.is_leader:
            return
        log, leader_epoch = process.log(role.key), role.leader_epoch
        if log is None:
            return
        high_watermark, unstable = role.high_watermark, log.reader.unstable
        partition = self._partitions[log.key]
        name = process.number, leader_epoch
        before = partition.shown.get(name)
        if (
            before is not None
            and before.high_watermark == high_watermark
            and before.unstable is unstable
        ):
            return
        stable = log.reader.last_stable_offset(high_watermark)
        partition.shown[name] = _Shown(stable, high_watermark, unstable)
        if stable > high_watermark or (before is not None and stable < before.stable):
            raise Violation(
                f"{log.key} on broker {process.broker_id}: last stable offset {stable} after "
                f"{before}, high watermark {high_watermark}"
            )
        starts = [opened.first_offset for opened in partition.open.values()]
        true_stable = min([high_watermark, *starts])
        is_whole = high_watermark == self._cluster.checker.true_end(log.key)
        if is_whole and stable != true_stable:
            raise Violation(
                f"{log.key} on broker {process.broker_id}: last stable offset {stable}, high "
                f"watermark {high_watermark}; the oldest open transaction makes it {true_stable}"
            )

    def check_replica(self, process: Process, key: PartitionKey) -> None:
        """Check a replica that has the whole log. All transactions have ended, so its index lists
        every aborted one, and none is open."""
        log = process.log(key)
        assert log is not None
        end, found = log.log_end_offset, log.reader.aborted_in(0, log.log_end_offset)
        stable = log.reader.last_stable_offset(end)
        entries = [(one.producer_id, one.first_offset, one.last_offset) for one in found]
        wanted = self._partitions[key].aborted
        if stable != end or entries != wanted:
            wrong = set(entries).symmetric_difference(wanted)
            raise Violation(
                f"{key} on broker {process.broker_id}: last stable offset {stable} of {end}; "
                f"{len(entries)} aborted transactions in the index, {len(wanted)} in the log: "
                f"{sorted(wrong)[:3]}"
            )

    # The method below checks offsets of groups.

    def written(self, operations: Sequence[Operation]) -> None:
        """Check that a written offset of a group is not lower than the one before."""
        for operation in operations:
            path = operation.path
            if not isinstance(operation, Create | Set) or "/offsets/numbers/" not in path:
                continue
            if not path.startswith(znodes.CONSUMERS):
                continue
            offset = znodes.decode_offset(path, operation.data).offset
            if offset < self._offsets.get(path, 0):
                raise Violation(f"{path}: {offset} follows {self._offsets[path]}")
            self._offsets[path] = offset

    # The method below runs at the end of a seed.

    def unfinished(self) -> str | None:
        """Return a description of a transaction that is still open, else None."""
        for name, record in self.records.items():
            if record.is_open:
                return f"{name} is {record.state.label}"
        for producer_id, slot in self.slots.items():
            if not slot.is_free:
                return f"the attempt of producer {producer_id} is open: {slot}"
        for name, head in self.heads.items():
            if head.state is not SinkState.OPEN:
                return f"{name} is {head.state.name}"
        return None


def _progress(record: TransactionRecord) -> tuple[int, int, int]:
    return record.epoch, record.number, _RANK[record.state]
