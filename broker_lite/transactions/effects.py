"""The outputs of ``transaction.Transaction.step``, in the order in which to carry them out."""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import NO_PRODUCER, PartitionKey
from broker_lite.transactions.participant import NO_NUMBER
from broker_lite.transactions.records import NO_PRODUCER_EPOCH, TransactionRecord


class Persist(NamedTuple):
    """Append the record; None deletes the id. Answer with Persisted or RecordRefused once the
    outcome is known."""

    number: int
    record: TransactionRecord | None


class SendMarkers(NamedTuple):
    """Write these markers, and retry without a time limit. Report each participant with
    ParticipantDone.

    ``transaction`` is the transaction's number, ``open_epoch`` the epoch of its records. With
    ``version`` 2, ``epoch`` is the raised epoch.
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
    """The answer to Init: the producer id and epoch that the producer uses from now on."""

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER_EPOCH


class AddResult(NamedTuple):
    """The answer to Add.

    ``transaction`` is the transaction's number. If only some partitions failed, ``missing`` holds
    them, and the others are verified.
    """

    error: LogbusError | None = None
    transaction: int = NO_NUMBER
    missing: frozenset[PartitionKey] = frozenset()


class EndResult(NamedTuple):
    """The answer to End: the producer id and epoch of the next transaction."""

    error: LogbusError | None = None
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER_EPOCH


TransactionResult = InitResult | AddResult | EndResult


class TransactionReply(NamedTuple):
    """Answer the request with this token."""

    token: int
    result: TransactionResult


TransactionEffect = Persist | SendMarkers | FetchProducerId | TransactionReply
