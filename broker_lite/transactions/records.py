"""Encode and decode the records of transactional ids in the internal topic ``__transaction_state``.

A key begins with one byte for its kind, because a partition holds records of transactional ids and
of Spark sinks. A value begins with the version of the format and the wall time of the last change,
which readers can decode without the other fields. Later versions can add tagged fields at the
end."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

from broker_lite.errors import ProtocolError
from broker_lite.model import NO_PRODUCER, NO_TIMESTAMP, PartitionKey
from broker_lite.wire.primitives import Reader, Writer

NO_PRODUCER_EPOCH = -1
FLAG_OPEN = 1
"""Flag of a transactional id's record while its transaction has not ended. A new coordinator that
loads the partition continues these transactions, so it decodes only records with this flag."""

_TRANSACTION = 0
"""First byte of the key of a transactional id's record. Keys of Spark sinks begin with 1 or 2
(``sink_records``)."""
_VERSION = 0
_HEAD = struct.Struct(">hq")
_FIELDS = struct.Struct(">qhhqqqibbq")
"""Layout of a value after the version and the time of the last change: producer id, epoch, last
epoch, previous id, next id, number of transactions, timeout, state, transaction version, start
time."""


class TransactionState(IntEnum):
    """The states of a transactional id, with Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The state's name as clients receive it, such as ``PrepareCommit``."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The state of one transactional id, as ``__transaction_state`` stores it.

    - ``last_epoch``: the producer epoch before its last increase; -1 if a new producer has taken
      over the transactional id since.
    - ``previous_id``: the producer id before that increase, if it changed; otherwise -1.
    - ``next_id``: the producer id that follows at the end of the transaction, because
      ``producer_id`` has no more epochs; otherwise -1.
    - ``number``: how many transactions the transactional id has begun, which identifies the latest.
    - ``start_ms`` and ``changed_ms``: wall-clock times of the transaction's start and of the last
      change."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    last_epoch: int = NO_PRODUCER_EPOCH
    previous_id: int = NO_PRODUCER
    next_id: int = NO_PRODUCER
    number: int = 0
    version: int = 2
    """The transaction version. With version 2, each end of a transaction raises the producer epoch
    (KIP-890)."""
    partitions: frozenset[PartitionKey] = frozenset()
    groups: frozenset[str] = frozenset()
    start_ms: int = NO_TIMESTAMP
    changed_ms: int = NO_TIMESTAMP

    @property
    def is_open(self) -> bool:
        """Whether the transaction has begun and at least one of its markers is not written yet."""
        return self.state in OPEN_STATES

    @property
    def written_by(self) -> tuple[int, int]:
        """The producer id and epoch in the batches of the last transaction.

        The producer id is -1 if the record does not tell the outcome of any transaction."""
        if self.state in (TransactionState.EMPTY, TransactionState.DEAD):
            return NO_PRODUCER, NO_PRODUCER_EPOCH
        if self.version < 2 or self.state is TransactionState.ONGOING:
            return self.producer_id, self.epoch
        if self.epoch == 0:
            # The end of the transaction switched to another producer id (``next_id``).
            return self.previous_id, self.last_epoch
        return self.producer_id, self.epoch - 1


OPEN_STATES = frozenset(
    (
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
    )
)


def transaction_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id's record."""
    return bytes((_TRANSACTION,)) + transactional_id.encode("utf-8")


def transactional_id_of(key: bytes) -> str | None:
    """Return the transactional id in a key; None for a key of another kind."""
    return str(key[1:], "utf-8") if key and key[0] == _TRANSACTION else None


def changed_ms_of(value: bytes) -> int:
    """Return the wall time (ms) of the last change in an encoded record."""
    return int(_HEAD.unpack_from(value)[1])


def encode_transaction(record: TransactionRecord) -> bytes:
    """Return the record as bytes, for the value in the log. Equal records have equal bytes."""
    writer = Writer()
    writer.pack(_HEAD, _VERSION, record.changed_ms)
    writer.pack(
        _FIELDS,
        record.producer_id,
        record.epoch,
        record.last_epoch,
        record.previous_id,
        record.next_id,
        record.number,
        record.timeout_ms,
        record.state,
        record.version,
        record.start_ms,
    )
    put_partitions(writer, record.partitions)
    writer.array(sorted(record.groups), writer.string)
    writer.tag_end()
    return bytes(writer.buffer)


def decode_transaction(value: bytes) -> TransactionRecord:
    """Return the record from the value in the log. Raises ProtocolError if the bytes are no such
    record."""
    reader = Reader(value)
    version, changed_ms = reader.unpack(_HEAD)
    if version != _VERSION:
        raise ProtocolError(
            f"a transaction's record has version {version}; this broker reads {_VERSION}: "
            "upgrade the broker"
        )
    (
        producer_id,
        epoch,
        last_epoch,
        previous_id,
        next_id,
        number,
        timeout_ms,
        state,
        transaction_version,
        start_ms,
    ) = reader.unpack(_FIELDS)
    partitions = take_partitions(reader)
    groups = frozenset(reader.array(Reader.string))
    reader.skip_tags()
    if state not in TransactionState.__members__.values():
        raise ProtocolError(
            f"a transaction's record has the unknown state {state}; if a newer logbus wrote it, "
            "upgrade the broker"
        )
    return TransactionRecord(
        producer_id,
        epoch,
        timeout_ms,
        TransactionState(state),
        last_epoch,
        previous_id,
        next_id,
        number,
        transaction_version,
        partitions,
        groups,
        start_ms,
        changed_ms,
    )


def put_partitions(writer: Writer, partitions: frozenset[PartitionKey]) -> None:
    """Write the partitions into an encoded record, grouped by topic id and sorted."""
    topics = groupby(sorted(partitions), key=lambda row: row.topic_id)

    def put_topic(topic: tuple[str, Iterable[PartitionKey]]) -> None:
        writer.uuid(topic[0])
        writer.array((row.partition for row in topic[1]), writer.i32)

    writer.array([(topic_id, list(rows)) for topic_id, rows in topics], put_topic)


def take_partitions(reader: Reader) -> frozenset[PartitionKey]:
    """Read from an encoded record the partitions that ``put_partitions`` has written."""
    topics = reader.array(lambda it: (it.uuid(), it.array(Reader.i32)))
    return frozenset(PartitionKey(topic_id, row) for topic_id, rows in topics for row in rows)
