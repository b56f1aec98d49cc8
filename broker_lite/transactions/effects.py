"""The outputs of ``transaction.Transaction.step``, in the order in which to carry them out."""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import NO_PRODUCER, NO_TRANSACTION, PartitionKey
from broker_lite.transactions.records import NO_PRODUCER_EPOCH, TransactionRecord


class Persist(NamedTuple):
    """Append the record of the transactional id to the state topic. A record of None deletes the
    id. Answer with Persisted or RecordRefused once the outcome is known."""

    number: int
    record: TransactionRecord | None


class SendMarkers(NamedTuple):
    """Send the markers of a decided transaction to its participants, ``partitions`` and ``groups``.

    Retry without a time limit, and report each participant with ParticipantDone. ``transaction`` is
    the number of the transaction. ``open_epoch`` is the producer epoch of its records, and
    ``epoch`` the epoch of the markers. With transaction ``version`` 2, ``epoch`` is one higher than
    ``open_epoch``. With version 1 they are equal.
    """

    transaction: int
    producer_id: int
    epoch: int
    open_epoch: int
    is_commit: bool
    version: int
    partitions: frozenset[PartitionKey]
    groups: frozenset[str]


class FetchProducerId(NamedTuple):
    """Reserve a producer id. Answer with ProducerIdReady or ProducerIdFailed."""


class InitResult(NamedTuple):
    """The answer to Init: an error, or the producer id and epoch for the next transaction."""

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER_EPOCH


class AddResult(NamedTuple):
    """The answer to Add.

    ``transaction`` is the number of the transaction. After a failed verification, ``missing`` has
    the partitions that the transaction does not contain; the other partitions are verified.
    """

    error: LogbusError | None = None
    transaction: int = NO_TRANSACTION
    missing: frozenset[PartitionKey] = frozenset()


class EndResult(NamedTuple):
    """The answer to End: an error, or the producer id and epoch for the next transaction."""

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER_EPOCH


TransactionResult = InitResult | AddResult | EndResult


class TransactionReply(NamedTuple):
    """Answer the request that has ``token`` with ``result``."""

    token: int
    result: TransactionResult


TransactionEffect = Persist | SendMarkers | FetchProducerId | TransactionReply
