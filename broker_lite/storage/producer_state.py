"""The recent batches and the open transaction of each producer of one log.

A leader uses the state to detect duplicates, gaps and old epochs (``check``); every replica records
its appended batches (``update``). The last stable offset is computed from the state. The state
holds the last five batches of each producer, because clients have at most five in flight.

Replicas drop idle producers at different times, so a follower never checks the leader's batches
against its state. A snapshot file holds the state at one offset; a broker start replays the batches
after it. Only the log's writer thread uses the state."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from broker_lite.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from broker_lite.model import NO_OFFSET, NO_PRODUCER, PartitionKey
from broker_lite.record.batch import BatchHeader
from broker_lite.record.control import EndOfTransaction, Marker, OpenTransaction
from broker_lite.record.crc32c import crc32c
from broker_lite.storage.open_transactions import OpenTransactions
from broker_lite.storage.refused_batches import RefusedBatch
from broker_lite.storage.transaction_index import AbortedEntry

BATCHES_MAX = 5
SEQUENCE_MASK = 0x7FFFFFFF

_SNAPSHOT = struct.Struct(">4sHHqI")
"""Layout of a snapshot's header: magic, version, flags, end offset, producer count.

The producers follow, in version 2 the ended transactions, and a CRC-32C of all bytes before it."""
_PRODUCER = struct.Struct(">qhiqqB")
"""Layout of one producer: producer id, epoch, coordinator epoch, last append ms, first offset of
the open transaction, batch count."""
_BATCH = struct.Struct(">iiqi")
"""Layout of one batch: first sequence, last sequence, base offset, last offset delta."""
_ENDED = struct.Struct(">qq")
"""Layout of an ended transaction whose marker may be above the high watermark: first offset and
marker offset.

Only a snapshot of version 2 has ended transactions. It has their number after the producers, and
then each of them."""
_COUNT = struct.Struct(">I")
_MAGIC, _VERSION, _VERSION_TRANSACTIONS = b"LBPS", 1, 2
_FLAG_FORGOT = 1


class CorruptSnapshot(Exception):
    """A snapshot failed a check. The broker uses an older one and replays more batches."""


class ProducedBatch(NamedTuple):
    """The sequences and offsets of one recorded batch."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset_delta: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


class ProducerEntry:
    """The state of one producer id in one log."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "is_whole",
        "last_append_ms",
        "transaction_start",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_MAX)
        self.is_whole = False
        """Whether the log received every sequence of the epoch, from 0 on. Snapshots do not store
        it, so a loaded producer has False."""
        self.coordinator_epoch = -1
        self.last_append_ms = -1
        self.transaction_start = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """The sequence of the producer's last record; -1 before the first."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        """The base offset of the producer's last batch; -1 before the first."""
        return self.batches[-1].base_offset if self.batches else NO_OFFSET

    def recorded(self, header: BatchHeader, *, may_lack_batches: bool) -> ProducedBatch | None:
        """Return the recorded batch with the sequences of ``header``, or None for a new batch.

        A duplicate may be older than all recorded batches, so that its offsets are unknown. The
        result then has base offset ``NO_OFFSET``, and as next offset the base offset of the oldest
        recorded batch. With ``may_lack_batches``, a batch older than that counts as
        new unless the log got every sequence (``is_whole``)."""
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        if not self.batches or (may_lack_batches and not self.is_whole):
            return None
        oldest = self.batches[0]
        if first <= last < oldest.first_sequence <= first + SEQUENCE_MASK // 2:
            # The batch is older than the oldest recorded batch. The sequences of an epoch begin at
            # 0 and have no gap, so the log once got the batch: it is a duplicate. If its sequence
            # is lower by more than half the sequence range, the sequences have wrapped instead, and
            # the batch is newer.
            return ProducedBatch(first, last, NO_OFFSET, oldest.base_offset)
        return None


class ProducerState:
    """The state of all producers of one log."""

    __slots__ = ("_producers", "forgot", "next_offset", "transactions")

    def __init__(self, next_offset: int = 0) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self.transactions = OpenTransactions()
        self.next_offset = next_offset
        """Exclusive end: the state covers every batch below this offset."""
        self.forgot = False
        """Whether the state ever dropped a producer.

        An unknown producer may then be a dropped one, whose first sequence need not be 0."""

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._producers.items())

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    def check(
        self,
        key: PartitionKey,
        header: BatchHeader,
        *,
        may_have_forgotten: bool,
        refused: RefusedBatch | None = None,
        begins_at_zero: bool = False,
    ) -> ProducedBatch | None:
        """Check a client's batch: return None to append it, or the recorded batch that it
        duplicates (see ``ProducerEntry.recorded``). Errors name the partition ``key``.

        - ``may_have_forgotten``: records of this log were deleted, so an unknown producer may
          continue at any sequence.
        - ``refused``: the producer's last batch of the same epoch that was refused with a retriable
          error. A later batch that arrives before its retry leaves a gap and gets this error.
        - ``begins_at_zero``: an unknown producer must begin at sequence 0 even if
          ``may_have_forgotten``: in transaction version 2, each transaction has a new epoch.

        Raises InvalidProducerEpochError, InvalidTxnStateError for a batch outside of the producer's
        open transaction, also for the first batch of a later transaction, and for a gap
        OutOfOrderSequenceError or the error of ``refused``.
        """
        producer = self._producers.get(header.producer_id)
        has_forgotten = may_have_forgotten or self.forgot
        if producer is None:
            _check_unknown(key, header, refused, begins_at_zero=begins_at_zero or not has_forgotten)
            return None
        if header.producer_epoch < producer.epoch:
            raise InvalidProducerEpochError(
                f"{key}: producer {header.producer_id} has epoch {producer.epoch}, which fences "
                f"this batch of epoch {header.producer_epoch}; create a new producer"
            )
        expected, first = 0, header.base_sequence
        if header.producer_epoch > producer.epoch and producer.transaction_start != NO_OFFSET:
            raise InvalidTxnStateError(
                f"{key}: producer {header.producer_id} sent a batch of epoch "
                f"{header.producer_epoch}, but its transaction of epoch {producer.epoch} is still "
                f"open from offset {producer.transaction_start}: the log lost the transaction's "
                "end. Find it with: logbus transactions hanging"
            )
        if header.producer_epoch == producer.epoch:
            recorded = producer.recorded(header, may_lack_batches=has_forgotten)
            if recorded is not None:
                return recorded
            expected = (producer.last_sequence + 1) & SEQUENCE_MASK
        if first != expected:
            if refused is not None and refused.makes_gap(expected, first):
                raise refused.error
            raise OutOfOrderSequenceError(
                f"{key}: producer {header.producer_id} epoch {header.producer_epoch} sent sequence "
                f"{first}, but the partition expects {expected}"
            )
        if producer.transaction_start != NO_OFFSET and not header.is_transactional:
            raise InvalidTxnStateError(
                f"{key}: producer {header.producer_id} has an open transaction in this partition "
                "and sent a batch outside of it; end the transaction first"
            )
        return None

    def judge(self, key: PartitionKey, marker: Marker) -> bool:
        """Return whether to append a transaction's marker. Errors name the partition ``key``.

        Without an open transaction, return False for a marker of an old epoch, because its
        transaction has ended, but True for the current epoch: only the replicated append proves
        that this replica still leads, and makes every later leader refuse a late batch.

        Raises TransactionCoordinatorFencedError for a marker of an old coordinator epoch,
        InvalidProducerEpochError if the marker's epoch is too old for the open transaction, and
        InvalidTxnStateError if the open transaction is not as ``Marker.last_offset`` requires.
        """
        producer = self._producers.get(marker.producer_id)
        if marker.last_offset != NO_OFFSET and (
            producer is None
            or producer.transaction_start == NO_OFFSET
            or producer.last_offset != marker.last_offset
        ):
            raise InvalidTxnStateError(
                f"{key}: producer {marker.producer_id} has ended its transaction, or has written "
                f"to it since the batch at offset {marker.last_offset}"
            )
        if producer is None:
            return True
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"{key}: transaction coordinator of epoch {marker.coordinator_epoch} is fenced: "
                f"a coordinator of epoch {producer.coordinator_epoch} ended a transaction of "
                f"producer {marker.producer_id}"
            )
        if producer.transaction_start == NO_OFFSET:
            return marker.producer_epoch >= producer.epoch + marker.raises_epoch
        if marker.producer_epoch < producer.epoch + marker.raises_epoch:
            raise InvalidProducerEpochError(
                f"{key}: the transaction marker has producer epoch {marker.producer_epoch}, but "
                f"producer {marker.producer_id} wrote with epoch {producer.epoch}"
            )
        return True

    def continues(self, header: BatchHeader) -> bool:
        """Return whether a batch has no producer id or continues its producer's sequence."""
        if header.producer_id == NO_PRODUCER:
            return True
        producer = self._producers.get(header.producer_id)
        return (
            producer is not None
            and header.producer_epoch == producer.epoch
            and header.base_sequence == (producer.last_sequence + 1) & SEQUENCE_MASK
            and not header.is_control
            and header.is_transactional == (producer.transaction_start != NO_OFFSET)
        )

    def update(
        self,
        header: BatchHeader,
        base_offset: int,
        now_ms: int,
        marker: EndOfTransaction | None = None,
    ) -> AbortedEntry | None:
        """Record an appended batch. A batch without producer id only moves ``next_offset``.

        ``marker`` is the content of a control batch. Return the transaction that the marker aborts,
        or None."""
        self.next_offset = base_offset + header.last_offset_delta + 1
        if header.producer_id == NO_PRODUCER:
            return None
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = ProducerEntry(header.producer_epoch)
        elif header.producer_epoch > producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        producer.last_append_ms = now_ms
        if marker is not None:
            return self._end_transaction(header.producer_id, producer, base_offset, marker)
        if header.is_control:
            return None
        if header.is_transactional and producer.transaction_start == NO_OFFSET:
            producer.transaction_start = base_offset
            self.transactions.begin(header.producer_id, base_offset)
        if header.base_sequence >= 0:
            continues = header.base_sequence == (producer.last_sequence + 1) & SEQUENCE_MASK
            producer.is_whole = continues and (producer.is_whole or not producer.batches)
            producer.batches.append(
                ProducedBatch(
                    header.base_sequence,
                    header.last_sequence,
                    base_offset,
                    header.last_offset_delta,
                )
            )
        return None

    def _end_transaction(
        self, producer_id: int, producer: ProducerEntry, offset: int, marker: EndOfTransaction
    ) -> AbortedEntry | None:
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        first, producer.transaction_start = producer.transaction_start, NO_OFFSET
        if first == NO_OFFSET:
            return None
        stable = self.transactions.end(producer_id, offset)
        return None if marker.is_commit else AbortedEntry(producer_id, first, offset, stable)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions without a marker, the oldest first."""
        rows = [(producer_id, self._producers[producer_id]) for producer_id in self.transactions]
        return [
            OpenTransaction(
                producer_id, each.epoch, each.coordinator_epoch, each.transaction_start,
                each.last_offset,
            )
            for producer_id, each in rows
        ]  # fmt: skip

    def raise_starts(self, log_start: int) -> None:
        """Move the first offsets of open transactions up to ``log_start``, after records were
        deleted."""
        self.transactions.raise_to(log_start)
        for producer in self._producers.values():
            if NO_OFFSET < producer.transaction_start < log_start:
                producer.transaction_start = log_start

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers idle for ``expiration_ms`` without open transaction. Return their
        number."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.last_append_ms >= expiration_ms
            and producer.transaction_start == NO_OFFSET
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        self.forgot = self.forgot or bool(expired)
        return len(expired)

    def forget_all(self, next_offset: int) -> None:
        """Remove all producers and set ``next_offset``.

        If ``next_offset`` is above 0, set ``forgot``, because a producer of earlier records
        may continue its sequence."""
        self._producers.clear()
        self.transactions = OpenTransactions()
        self.forgot = self.forgot or next_offset > 0
        self.next_offset = next_offset

    def encode(self) -> bytes:
        """Return a snapshot of the state at ``next_offset``: in version 1 if it has no
        transactions, else in version 2."""
        flags = _FLAG_FORGOT if self.forgot else 0
        ended = self.transactions.ended
        is_transactional = bool(ended or self.transactions) or any(
            producer.coordinator_epoch >= 0 for producer in self._producers.values()
        )
        version = _VERSION_TRANSACTIONS if is_transactional else _VERSION
        parts = [_SNAPSHOT.pack(_MAGIC, version, flags, self.next_offset, len(self._producers))]
        for producer_id, producer in self._producers.items():
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    producer.coordinator_epoch,
                    producer.last_append_ms,
                    producer.transaction_start,
                    len(producer.batches),
                )
            )
            parts.extend(_BATCH.pack(*batch) for batch in producer.batches)
        if is_transactional:
            parts.append(_COUNT.pack(len(ended)))
            parts.extend(_ENDED.pack(*one) for one in ended)
        body = b"".join(parts)
        return body + crc32c(body).to_bytes(4, "big")


def _check_unknown(
    key: PartitionKey, header: BatchHeader, refused: RefusedBatch | None, *, begins_at_zero: bool
) -> None:
    """Check the first batch of a producer that the log does not know.

    A sequence other than 0 raises the error of the batch ``refused``, if its refusal left the gap,
    or else, with ``begins_at_zero``, OutOfOrderSequenceError."""
    first = header.base_sequence
    if first == 0:
        return
    if refused is not None and refused.makes_gap(0 if begins_at_zero else None, first):
        raise refused.error
    if begins_at_zero:
        raise OutOfOrderSequenceError(
            f"{key}: producer {header.producer_id} has no batch in this partition and must begin "
            f"at sequence 0, not {first}"
        )


def decode(data: bytes) -> ProducerState:
    """Decode a snapshot. Raises CorruptSnapshot."""
    body = data[:-4]
    if len(data) < _SNAPSHOT.size + 4 or crc32c(body) != int.from_bytes(data[-4:], "big"):
        raise CorruptSnapshot("the producer snapshot has a wrong checksum")
    magic, version, flags, next_offset, count = _SNAPSHOT.unpack_from(body)
    if magic != _MAGIC or version not in (_VERSION, _VERSION_TRANSACTIONS):
        raise CorruptSnapshot("the file is no producer snapshot of this version")
    state = ProducerState(next_offset)
    state.forgot = bool(flags & _FLAG_FORGOT)
    at = _SNAPSHOT.size
    try:
        for _ in range(count):
            at = _decode_producer(state, body, at)
        if version == _VERSION_TRANSACTIONS:
            _decode_transactions(state, body, at)
    except struct.error as error:
        raise CorruptSnapshot(str(error)) from None
    return state


def _decode_transactions(state: ProducerState, body: bytes, at: int) -> None:
    starts = [(p.transaction_start, producer_id) for producer_id, p in state]
    for start, producer_id in sorted(starts):
        if start != NO_OFFSET:
            state.transactions.begin(producer_id, start)
    (count,) = _COUNT.unpack_from(body, at)
    for i in range(count):
        row = at + _COUNT.size + i * _ENDED.size
        state.transactions.add_ended(*_ENDED.unpack_from(body, row))


def _decode_producer(state: ProducerState, body: bytes, at: int) -> int:
    producer_id, epoch, coordinator, last_ms, start, batches = _PRODUCER.unpack_from(body, at)
    at += _PRODUCER.size
    producer = state._producers[producer_id] = ProducerEntry(epoch)
    producer.coordinator_epoch = coordinator
    producer.last_append_ms = last_ms
    producer.transaction_start = start
    for _ in range(batches):
        producer.batches.append(ProducedBatch._make(_BATCH.unpack_from(body, at)))
        at += _BATCH.size
    return at
