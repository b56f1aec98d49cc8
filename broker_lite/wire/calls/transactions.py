"""The client's requests in transactions: AddPartitionsToTxn v3, AddOffsetsToTxn v4, EndTxn v5 and
TxnOffsetCommit v5.

Kafka has two transaction versions (KIP-890), and a cluster uses one of them. In version 2, EndTxn
returns the producer epoch of the next transaction, and brokers add partitions and groups to a
transaction automatically. In version 1, the client must add them, with the first two requests.
EndTxn and TxnOffsetCommit have subclasses (``EndOldTxnRequest``, ``OldTxnOffsetCommitRequest``)
with the API version for transaction version 1. Field names are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH, NO_PRODUCER
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.groups import (
    OffsetCommitResponse,
    OffsetCommitTopic,
    put_committed_topics,
    take_committed_topics,
)
from broker_lite.wire.primitives import Reader, Writer


class TxnTopic(NamedTuple):
    """The partitions of one topic to which a transaction writes."""

    name: str
    partitions: tuple[int, ...]


class AddedPartition(NamedTuple):
    partition_index: int
    partition_error_code: int


class AddedTopic(NamedTuple):
    name: str
    results_by_partition: tuple[AddedPartition, ...]


class AddPartitionsToTxnResponse(NamedTuple):
    throttle_time_ms: int
    results_by_topic_v3_and_below: tuple[AddedTopic, ...]


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest:
    """Add partitions to a transaction. Only in transaction version 1, the client sends this request
    before its first batch to the partitions."""

    API_KEY: ClassVar[int] = ApiKey.ADD_PARTITIONS_TO_TXN
    VERSION: ClassVar[int] = 3

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topics: tuple[TxnTopic, ...]

    def encode(self, writer: Writer) -> None:
        def put_topic(row: TxnTopic) -> None:
            writer.string(row.name)
            writer.array(row.partitions, writer.i32)
            writer.tag_end()

        writer.string(self.transactional_id)
        writer.i64(self.producer_id)
        writer.i16(self.producer_epoch)
        writer.array(self.topics, put_topic)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> AddPartitionsToTxnResponse:
        return reader.ended(AddPartitionsToTxnResponse(reader.i32(), reader.array(_added_topic)))


def _added_topic(reader: Reader) -> AddedTopic:
    return reader.ended(AddedTopic(reader.string(), reader.array(_added_partition)))


def _added_partition(reader: Reader) -> AddedPartition:
    return reader.ended(AddedPartition(reader.i32(), reader.i16()))


class AddOffsetsToTxnResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest:
    """Add a group to a transaction. Only in transaction version 1, the client sends this request
    before its first TxnOffsetCommit for the group."""

    API_KEY: ClassVar[int] = ApiKey.ADD_OFFSETS_TO_TXN
    VERSION: ClassVar[int] = 4

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str

    def encode(self, writer: Writer) -> None:
        writer.string(self.transactional_id)
        writer.i64(self.producer_id)
        writer.i16(self.producer_epoch)
        writer.string(self.group_id)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> AddOffsetsToTxnResponse:
        return reader.ended(AddOffsetsToTxnResponse(reader.i32(), reader.i16()))


class EndTxnResponse(NamedTuple):
    """The answer to EndTxn, with the producer id and epoch of the producer's next transaction. Both
    are -1 in transaction version 1, in which the producer keeps its own."""

    throttle_time_ms: int
    error_code: int
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class EndTxnRequest:
    """Commit a transaction if ``committed``, otherwise abort it, in transaction version 2."""

    API_KEY: ClassVar[int] = ApiKey.END_TXN
    VERSION: ClassVar[int] = 5

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool

    def encode(self, writer: Writer) -> None:
        writer.string(self.transactional_id)
        writer.i64(self.producer_id)
        writer.i16(self.producer_epoch)
        writer.boolean(self.committed)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> EndTxnResponse:
        return reader.ended(EndTxnResponse(reader.i32(), reader.i16(), reader.i64(), reader.i16()))


class EndOldTxnRequest(EndTxnRequest):
    """Commit or abort a transaction, in transaction version 1. The producer keeps its epoch."""

    __slots__ = ()
    VERSION: ClassVar[int] = 4

    @staticmethod
    def decode(reader: Reader) -> EndTxnResponse:
        return reader.ended(EndTxnResponse(reader.i32(), reader.i16()))


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest:
    """Commit offsets of a group as part of a transaction: they take effect when the transaction
    commits. ``generation_id``, ``member_id`` and ``group_instance_id`` identify the consumer
    (KIP-447)."""

    API_KEY: ClassVar[int] = ApiKey.TXN_OFFSET_COMMIT
    VERSION: ClassVar[int] = 5

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    topics: tuple[OffsetCommitTopic, ...]
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def encode(self, writer: Writer) -> None:
        writer.string(self.transactional_id)
        writer.string(self.group_id)
        writer.i64(self.producer_id)
        writer.i16(self.producer_epoch)
        writer.i32(self.generation_id)
        writer.string(self.member_id)
        writer.nullable_string(self.group_instance_id)
        put_committed_topics(writer, self.topics)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> OffsetCommitResponse:
        return reader.ended(OffsetCommitResponse(reader.i32(), take_committed_topics(reader)))


class OldTxnOffsetCommitRequest(TxnOffsetCommitRequest):
    """Commit offsets of a group as part of a transaction, in transaction version 1, after
    AddOffsetsToTxn."""

    __slots__ = ()
    VERSION: ClassVar[int] = 4
