"""The client's requests DescribeProducers v0, DescribeTransactions v0 and ListTransactions v1, with
which an administrator looks at transactions and their producers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.transactions import TxnTopic
from broker_lite.wire.primitives import Reader, Writer


def _put_topic(writer: Writer, row: TxnTopic) -> None:
    writer.string(row.name)
    writer.array(row.partitions, writer.i32)
    writer.tag_end()


class ActiveProducer(NamedTuple):
    """A producer that has written to a partition. ``current_txn_start_offset`` is where its open
    transaction begins, or -1 without one."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class ProducersOfPartition(NamedTuple):
    partition_index: int
    error_code: int
    error_message: str | None
    active_producers: tuple[ActiveProducer, ...]


class ProducersOfTopic(NamedTuple):
    name: str
    partitions: tuple[ProducersOfPartition, ...]


class DescribeProducersResponse(NamedTuple):
    throttle_time_ms: int
    topics: tuple[ProducersOfTopic, ...]


@dataclass(frozen=True, slots=True)
class DescribeProducersRequest:
    """Request the producers that have written to partitions which the receiving broker leads."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_PRODUCERS
    VERSION: ClassVar[int] = 0

    topics: tuple[TxnTopic, ...]

    def encode(self, writer: Writer) -> None:
        writer.array(self.topics, lambda row: _put_topic(writer, row))
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> DescribeProducersResponse:
        return reader.ended(
            DescribeProducersResponse(reader.i32(), reader.array(_producers_of_topic))
        )


def _producers_of_topic(reader: Reader) -> ProducersOfTopic:
    return reader.ended(ProducersOfTopic(reader.string(), reader.array(_producers_of_partition)))


def _producers_of_partition(reader: Reader) -> ProducersOfPartition:
    return reader.ended(
        ProducersOfPartition(
            reader.i32(), reader.i16(), reader.nullable_string(), reader.array(_active_producer)
        )
    )


def _active_producer(reader: Reader) -> ActiveProducer:
    return reader.ended(
        ActiveProducer(
            reader.i64(), reader.i32(), reader.i32(), reader.i64(), reader.i32(), reader.i64()
        )
    )


class DescribedTopic(NamedTuple):
    topic: str
    partitions: tuple[int, ...]


class DescribedTransaction(NamedTuple):
    """The state of one transactional id. ``transaction_start_time_ms`` is -1 while no transaction
    is open."""

    error_code: int
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: int
    transaction_start_time_ms: int
    producer_id: int
    producer_epoch: int
    topics: tuple[DescribedTopic, ...]


class DescribeTransactionsResponse(NamedTuple):
    throttle_time_ms: int
    transaction_states: tuple[DescribedTransaction, ...]


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    """Request the state of transactional ids. The client sends the request to their coordinator."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_TRANSACTIONS
    VERSION: ClassVar[int] = 0

    transactional_ids: tuple[str, ...]

    def encode(self, writer: Writer) -> None:
        writer.array(self.transactional_ids, writer.string)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> DescribeTransactionsResponse:
        return reader.ended(
            DescribeTransactionsResponse(reader.i32(), reader.array(_described_transaction))
        )


def _described_transaction(reader: Reader) -> DescribedTransaction:
    return reader.ended(
        DescribedTransaction(
            reader.i16(),
            reader.string(),
            reader.string(),
            reader.i32(),
            reader.i64(),
            reader.i64(),
            reader.i16(),
            reader.array(_described_topic),
        )
    )


def _described_topic(reader: Reader) -> DescribedTopic:
    return reader.ended(DescribedTopic(reader.string(), reader.array(Reader.i32)))


class ListedTransaction(NamedTuple):
    """A transactional id, and the state of its latest transaction."""

    transactional_id: str
    producer_id: int
    transaction_state: str


class ListTransactionsResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    unknown_state_filters: tuple[str, ...]
    transaction_states: tuple[ListedTransaction, ...]


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    """List the transactional ids whose coordinator is the receiving broker. An empty filter selects
    all ids."""

    API_KEY: ClassVar[int] = ApiKey.LIST_TRANSACTIONS
    VERSION: ClassVar[int] = 1

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[int, ...] = ()
    duration_filter: int = -1

    def encode(self, writer: Writer) -> None:
        writer.array(self.state_filters, writer.string)
        writer.array(self.producer_id_filters, writer.i64)
        writer.i64(self.duration_filter)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> ListTransactionsResponse:
        return reader.ended(
            ListTransactionsResponse(
                reader.i32(),
                reader.i16(),
                reader.array(Reader.string),
                reader.array(_listed_transaction),
            )
        )


def _listed_transaction(reader: Reader) -> ListedTransaction:
    return reader.ended(ListedTransaction(reader.string(), reader.i64(), reader.string()))
