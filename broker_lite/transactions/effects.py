"""The operations (effects) that ``transaction.Transaction.step`` returns, in the order in which the
transaction coordinator carries them out."""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import NO_PRODUCER, NO_TRANSACTION, PartitionKey
from broker_lite.transactions.records import NO_PRODUCER_EPOCH, TransactionRecord


class Persist(NamedTuple):
    """Append the record of the transactional id to ``__transaction_state``; a ``record`` of None
    deletes the id. The event Persisted or RecordRefused with the same ``number`` reports the
    result."""

    number: int
    record: TransactionRecord | None


class SendMarkers(NamedTuple):
    """Send the commit or abort markers of a decided transaction to its ``partitions`` and
    ``groups``.

    The coordinator retries without a time limit. The event ParticipantDone reports each participant
    whose marker is written. ``transaction`` is the transaction's number. ``open_epoch`` is the
    producer epoch of the transaction's records. ``epoch``, that of the markers, is one higher in
    transaction ``version`` 2 (KIP-890), equal in version 1."""

    transaction: int
    producer_id: int
    epoch: int
    open_epoch: int
    is_commit: bool
    version: int
    partitions: frozenset[PartitionKey]
    groups: frozenset[str]


class FetchProducerId(NamedTuple):
    """Reserve a producer id. The event ProducerIdReady or ProducerIdFailed reports the result."""


class TransactionResult(NamedTuple):
    """The answer to a request: an error, or the fields of this kind of request.

    For the events Init and End, it has the producer id and epoch for the next transaction. For Add,
    ``transaction`` is the transaction's number. If a verification fails, ``missing`` has the
    partitions that the transaction does not contain."""

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER_EPOCH
    transaction: int = NO_TRANSACTION
    missing: frozenset[PartitionKey] = frozenset()


class TransactionReply(NamedTuple):
    """Send ``result`` as the answer to the request that has this ``token``."""

    token: int
    result: TransactionResult


TransactionEffect = Persist | SendMarkers | FetchProducerId | TransactionReply
