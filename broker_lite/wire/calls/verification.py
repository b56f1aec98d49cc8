"""AddPartitionsToTxn v5, with which the leader of a partition asks a transaction's coordinator
whether the transaction includes the partition.

In transaction version 2 the coordinator adds a missing partition; in version 1 the client must have
added it. The *state partition* is the partition of ``__transaction_state`` whose leader is the
coordinator. In tagged fields of logbus, the request has each topic's id, and the answer has the
transaction's number, the state partition and its leader epoch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.transactions import AddedPartition, AddedTopic
from broker_lite.wire.primitives import Reader, Writer, put_tag, uuid_bytes

TAG_ASKED_TOPIC_ID = 10000
"""Number of a tagged field in each topic of an AddPartitionsToTxn request. The field has the
topic's id."""
TAG_VERIFIED = 10000
"""Number of a tagged field in each transaction of the answer to AddPartitionsToTxn. The field has
the transaction's number, the coordinator's partition of ``__transaction_state``, and the leader
epoch of that partition."""
_VERIFIED = struct.Struct(">qii")
NO_TRANSACTION = -1


class AskedTopic(NamedTuple):
    """The partitions of one topic in an AddPartitionsToTxn request. The id distinguishes a
    recreated topic from the former topic of that name, which the transaction may include."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


class AskedTransaction(NamedTuple):
    """A transaction, and the partitions that it should include. With ``verify_only``, the
    coordinator refuses missing partitions; otherwise it adds them."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: Sequence[AskedTopic]


class VerifiedTransaction(NamedTuple):
    """The answer to AddPartitionsToTxn for one transaction, with an error code for each partition.
    ``coordinator_epoch`` is the leader epoch of ``state_partition``, the coordinator's partition of
    ``__transaction_state``."""

    transactional_id: str
    topic_results: Sequence[AddedTopic]
    number: int = NO_TRANSACTION
    state_partition: int = -1
    coordinator_epoch: int = NO_EPOCH


class VerifiedPartitions(NamedTuple):
    """The answer to a broker's AddPartitionsToTxn request. ``error_code`` is not 0 if the whole
    request failed."""

    error_code: int
    results_by_transaction: Sequence[VerifiedTransaction] = ()


@dataclass(frozen=True, slots=True)
class VerifyPartitionsRequest:
    """Check that several transactions include the given partitions, or add these to them. Each
    transactional id occurs once."""

    API_KEY: ClassVar[int] = ApiKey.ADD_PARTITIONS_TO_TXN
    VERSION: ClassVar[int] = 5

    transactions: Sequence[AskedTransaction]

    def encode(self, writer: Writer) -> None:
        def put_topic(row: AskedTopic) -> None:
            writer.string(row.name)
            writer.array(row.partitions, writer.i32)
            put_tag(writer, TAG_ASKED_TOPIC_ID, uuid_bytes(row.topic_id))

        def put_transaction(row: AskedTransaction) -> None:
            writer.string(row.transactional_id)
            writer.i64(row.producer_id)
            writer.i16(row.producer_epoch)
            writer.boolean(row.verify_only)
            writer.array(row.topics, put_topic)
            writer.tag_end()

        writer.array(self.transactions, put_transaction)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> VerifiedPartitions:
        reader.i32()  # throttle_time_ms
        return reader.ended(VerifiedPartitions(reader.i16(), reader.array(_transaction)))


def _transaction(reader: Reader) -> VerifiedTransaction:
    name, topics = reader.string(), reader.array(_topic)
    verified = reader.tags().get(TAG_VERIFIED)
    if verified is None:
        return VerifiedTransaction(name, topics)
    return VerifiedTransaction(name, topics, *Reader(verified).unpack(_VERIFIED))


def _topic(reader: Reader) -> AddedTopic:
    return reader.ended(AddedTopic(reader.string(), reader.array(_partition)))


def _partition(reader: Reader) -> AddedPartition:
    return reader.ended(AddedPartition(reader.i32(), reader.i16()))


def encode_verified(response: VerifiedPartitions, writer: Writer) -> None:
    """Write the body of the answer to AddPartitionsToTxn v4 or v5, on the transaction's
    coordinator."""

    def put_partition(row: AddedPartition) -> None:
        writer.i32(row.partition_index)
        writer.i16(row.partition_error_code)
        writer.tag_end()

    def put_topic(row: AddedTopic) -> None:
        writer.string(row.name)
        writer.array(row.results_by_partition, put_partition)
        writer.tag_end()

    def put_transaction(row: VerifiedTransaction) -> None:
        writer.string(row.transactional_id)
        writer.array(row.topic_results, put_topic)
        put_tag(writer, TAG_VERIFIED, _VERIFIED.pack(*row[2:]))

    writer.i32(0)
    writer.i16(response.error_code)
    writer.array(response.results_by_transaction, put_transaction)
    writer.tag_end()
