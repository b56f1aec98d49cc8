"""The client's requests DescribeProducers v0, DescribeTransactions v0 and ListTransactions v1, with
which an administrator looks at transactions and their producers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.transactions import TxnTopic
from broker_lite.wire.layout import DeclaredCall, Int16, Int32, Int64, InTag
from broker_lite.wire.primitives import Reader

TAG_VERSIONS = 10000
"""Number of a tagged field in a DescribeTransactions response. The field has one byte for each
transactional id, in the response's order: the version of its last transaction."""


class ActiveProducer(NamedTuple):
    """A producer that has written to a partition. ``current_txn_start_offset`` is where its open
    transaction begins, or -1 without one."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32
    last_timestamp: Int64
    coordinator_epoch: Int32
    current_txn_start_offset: Int64


class ProducersOfPartition(NamedTuple):
    partition_index: Int32
    error_code: Int16
    error_message: str | None
    active_producers: tuple[ActiveProducer, ...]


class ProducersOfTopic(NamedTuple):
    name: str
    partitions: tuple[ProducersOfPartition, ...]


class DescribeProducersResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[ProducersOfTopic, ...]


@dataclass(frozen=True, slots=True)
class DescribeProducersRequest(DeclaredCall[DescribeProducersResponse]):
    """Request the producers that have written to partitions which the receiving broker leads."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_PRODUCERS
    VERSION: ClassVar[int] = 0

    topics: tuple[TxnTopic, ...]


class DescribedTopic(NamedTuple):
    topic: str
    partitions: tuple[Int32, ...]


class DescribedTransaction(NamedTuple):
    """The state of one transactional id. ``transaction_start_time_ms`` is -1 while no transaction
    is open."""

    error_code: Int16
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[DescribedTopic, ...]


class DescribeTransactionsResponse(NamedTuple):
    """``transaction_versions`` has the value of ``TAG_VERSIONS``; it is empty if the broker did not
    send the field."""

    throttle_time_ms: Int32
    transaction_states: tuple[DescribedTransaction, ...]
    transaction_versions: InTag[bytes] = b""

    def with_tags(self, reader: Reader) -> DescribeTransactionsResponse:
        versions = reader.tags().get(TAG_VERSIONS, b"")
        return self._replace(transaction_versions=bytes(versions))


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest(DeclaredCall[DescribeTransactionsResponse]):
    """Request the state of transactional ids. The client sends the request to their coordinator."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_TRANSACTIONS
    VERSION: ClassVar[int] = 0

    transactional_ids: tuple[str, ...]


class ListedTransaction(NamedTuple):
    """A transactional id, and the state of its latest transaction."""

    transactional_id: str
    producer_id: Int64
    transaction_state: str


class ListTransactionsResponse(NamedTuple):
    throttle_time_ms: Int32
    error_code: Int16
    unknown_state_filters: tuple[str, ...]
    transaction_states: tuple[ListedTransaction, ...]


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest(DeclaredCall[ListTransactionsResponse]):
    """List the transactional ids whose coordinator is the receiving broker. An empty filter selects
    all ids."""

    API_KEY: ClassVar[int] = ApiKey.LIST_TRANSACTIONS
    VERSION: ClassVar[int] = 1

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter: Int64 = -1
