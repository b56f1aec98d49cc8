"""ListTransactions v1 with tagged fields of logbus, with which the leader of a partition asks
transaction coordinators for the last transactions of producers.

The leader asks about transactions that may hang in its log, and may abort those that no coordinator
knows. The answer must therefore tell which coordinators gave it: it has the partitions of
``__transaction_state`` whose leadership the answering broker has confirmed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH
from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import CodeAfterThrottle, DeclaredCall, Int64, InTag
from broker_lite.wire.primitives import Reader, Writer, put_tag

TAG_SEARCH = 10000
"""Number of logbus's tagged fields in ListTransactions between brokers.

In the request, the field is the byte 1: select producers by the producer id in the batches of their
last transaction. In each row of the answer, the field has the epoch in these batches. At the end of
the answer, the field has each searched partition and its leader epoch."""

_EPOCH = struct.Struct(">h")
_PARTITION = struct.Struct(">ii")


class FoundTransaction(NamedTuple):
    """The last transaction of a transactional id. ``producer_id`` and ``producer_epoch`` are those
    in the transaction's batches."""

    transactional_id: str
    producer_id: Int64
    transaction_state: str
    producer_epoch: InTag[int] = NO_EPOCH

    def put_tags(self, writer: Writer) -> None:
        put_tag(writer, TAG_SEARCH, _EPOCH.pack(self.producer_epoch))

    def with_tags(self, reader: Reader) -> FoundTransaction:
        epoch = reader.tags().get(TAG_SEARCH)
        if epoch is None:
            return self
        return self._replace(producer_epoch=Reader(epoch).unpack(_EPOCH)[0])


class SearchedPartition(NamedTuple):
    """A partition of ``__transaction_state`` that the answering broker leads in
    ``leader_epoch``."""

    partition: int
    leader_epoch: int


class FoundTransactions(NamedTuple):
    """The last transactions of the requested producers in the partitions ``searched``."""

    error_code: CodeAfterThrottle
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[FoundTransaction, ...] = ()
    searched: InTag[tuple[SearchedPartition, ...]] = ()

    def put_tags(self, writer: Writer) -> None:
        value = b"".join(_PARTITION.pack(*each) for each in self.searched)
        put_tag(writer, TAG_SEARCH, value)

    def with_tags(self, reader: Reader) -> FoundTransactions:
        rows = Reader(reader.tags().get(TAG_SEARCH, b""))
        searched = []
        while rows.left:
            searched.append(SearchedPartition(*rows.unpack(_PARTITION)))
        return self._replace(searched=tuple(searched))


@dataclass(frozen=True, slots=True)
class FindTransactionsRequest(DeclaredCall[FoundTransactions]):
    """Request the last transactions of producers from a broker that coordinates transactions."""

    API_KEY: ClassVar[int] = ApiKey.LIST_TRANSACTIONS
    VERSION: ClassVar[int] = 1

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter: Int64 = -1

    def put_tags(self, writer: Writer) -> None:
        put_tag(writer, TAG_SEARCH, b"\1")
