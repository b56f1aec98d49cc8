"""The client's requests in transactions: AddPartitionsToTxn v3, AddOffsetsToTxn v4, EndTxn v5 and
TxnOffsetCommit v5.

Kafka has two transaction versions (KIP-890), and a cluster uses one of them. In version 2, EndTxn
returns the producer epoch of the next transaction, and brokers add partitions and groups to a
transaction automatically. In version 1, the client must add them, with the first two requests.
EndTxn and TxnOffsetCommit have subclasses (``EndOldTxnRequest``, ``OldTxnOffsetCommitRequest``)
with the API version for transaction version 1. Field names are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH, NO_PRODUCER
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.groups import (
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from broker_lite.wire.layout import DeclaredCall, Int16, Int32, Int64
from broker_lite.wire.primitives import Reader


class TxnTopic(NamedTuple):
    """The partitions of one topic to which a transaction writes."""

    name: str
    partitions: tuple[Int32, ...]


class AddedPartition(NamedTuple):
    partition_index: Int32
    partition_error_code: Int16


class AddedTopic(NamedTuple):
    name: str
    results_by_partition: tuple[AddedPartition, ...]


class AddPartitionsToTxnResponse(NamedTuple):
    throttle_time_ms: Int32
    results_by_topic_v3_and_below: tuple[AddedTopic, ...]


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest(DeclaredCall[AddPartitionsToTxnResponse]):
    """Add partitions to a transaction. Only in transaction version 1, the client sends this request
    before its first batch to the partitions."""

    API_KEY: ClassVar[int] = ApiKey.ADD_PARTITIONS_TO_TXN
    VERSION: ClassVar[int] = 3

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[TxnTopic, ...]


class AddOffsetsToTxnResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest(DeclaredCall[AddOffsetsToTxnResponse]):
    """Add a group to a transaction. Only in transaction version 1, the client sends this request
    before its first TxnOffsetCommit for the group."""

    API_KEY: ClassVar[int] = ApiKey.ADD_OFFSETS_TO_TXN
    VERSION: ClassVar[int] = 4

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


class EndTxnResponse(NamedTuple):
    """The answer to EndTxn, with the producer id and epoch of the producer's next transaction. Both
    are -1 in transaction version 1, in which the producer keeps its own."""

    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64 = NO_PRODUCER
    producer_epoch: Int16 = NO_EPOCH


@dataclass(frozen=True, slots=True)
class EndTxnRequest(DeclaredCall[EndTxnResponse]):
    """Commit a transaction if ``committed``, otherwise abort it, in transaction version 2."""

    API_KEY: ClassVar[int] = ApiKey.END_TXN
    VERSION: ClassVar[int] = 5

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool


class EndOldTxnRequest(EndTxnRequest):
    """Commit or abort a transaction, in transaction version 1. The producer keeps its epoch."""

    __slots__ = ()
    VERSION: ClassVar[int] = 4

    @classmethod
    def decode(cls, reader: Reader) -> EndTxnResponse:
        return reader.ended(EndTxnResponse(reader.i32(), reader.i16()))


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest(DeclaredCall[OffsetCommitResponse]):
    """Commit offsets of a group as part of a transaction: they take effect when the transaction
    commits. ``generation_id``, ``member_id`` and ``group_instance_id`` identify the consumer
    (KIP-447)."""

    API_KEY: ClassVar[int] = ApiKey.TXN_OFFSET_COMMIT
    VERSION: ClassVar[int] = 5

    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = field(default=-1, kw_only=True)
    member_id: str = field(default="", kw_only=True)
    group_instance_id: str | None = field(default=None, kw_only=True)
    topics: tuple[OffsetCommitTopic, ...]


class OldTxnOffsetCommitRequest(TxnOffsetCommitRequest):
    """Commit offsets of a group as part of a transaction, in transaction version 1, after
    AddOffsetsToTxn."""

    __slots__ = ()
    VERSION: ClassVar[int] = 4
