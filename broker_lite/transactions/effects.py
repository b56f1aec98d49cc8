"""The outputs of ``transaction.Transaction.step``, in the order in which the transaction
coordinator carries them out.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import NO_PRODUCER, NO_TRANSACTION, PartitionKey
from broker_lite.transactions.records import NO_PRODUCER_EPOCH, TransactionRecord


class Persist(NamedTuple):
    """Append the record of the transactional id to ``__transaction_state``. A record of None
    deletes the id. The result is the event Persisted or RecordRefused with the same ``number``."""

    number: int
    record: TransactionRecord | None


class SendMarkers(NamedTuple):
    """Send the commit or abort markers of a decided transaction to its participants, ``partitions``
    and ``groups``.

    The coordinator retries without a time limit, and reports each participant with the event
    ParticipantDone. ``transaction`` is the transaction's number. ``open_epoch`` is the producer
    epoch of the transaction's records, and ``epoch`` the epoch of the markers. With transaction
    ``version`` 2, ``epoch`` is one higher than ``open_epoch`` (KIP-890). With version 1 they are
    equal.
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
    """Reserve a producer id. The result is the event ProducerIdReady or ProducerIdFailed."""


class InitResult(NamedTuple):
    """The answer to the event Init (InitProducerId): an error, or the producer id and epoch for the
    next transaction.
    """

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER_EPOCH


class AddResult(NamedTuple):
    """The answer to the event Add: partitions or groups were added to the transaction, or verified.

    ``transaction`` is the number of the transaction. If a verification fails, ``missing`` has the
    partitions that the transaction does not contain; it contains the other partitions.
    """

    error: LogbusError | None = None
    transaction: int = NO_TRANSACTION
    missing: frozenset[PartitionKey] = frozenset()


class EndResult(NamedTuple):
    """The answer to the event End (EndTxn): an error, or the producer id and epoch for the next
    transaction.
    """

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER_EPOCH


TransactionResult = InitResult | AddResult | EndResult


class TransactionReply(NamedTuple):
    """Answer the request with this ``token`` with ``result``."""

    token: int
    result: TransactionResult


TransactionEffect = Persist | SendMarkers | FetchProducerId | TransactionReply
