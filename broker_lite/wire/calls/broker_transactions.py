"""WriteTxnMarkers v2, with which a transaction's coordinator ends the transaction in its
partitions: the leaders of the partitions write a marker (commit or abort) to their logs.

The coordinator of a transactional id is the leader of one partition of ``__transaction_state``, its
state partition. In each marker of a request, a tagged field of logbus has the state partition and
the transaction's number, counted for each transactional id."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_TRANSACTION
from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int8, Int16, Int32, Int64, InTag, codec_of
from broker_lite.wire.primitives import Reader, Writer, put_tag

TAG_COORDINATOR = 10000
"""Number of a tagged field in each marker of a WriteTxnMarkers request. The field has the
transaction's number, and the partition of ``__transaction_state`` whose leader sends the marker."""

_MARKER = struct.Struct(">qi")


class MarkedTopic(NamedTuple):
    """The partitions of one topic that receive a marker."""

    name: str
    partitions: tuple[Int32, ...]


class TransactionMarker(NamedTuple):
    """The marker that ends one transaction in all its partitions.

    In transaction ``version`` 2, ``producer_epoch`` is the producer's next epoch, one above the
    epoch of the transaction. ``number`` counts the transactions of the transactional id.
    ``state_partition`` is the coordinator's partition of ``__transaction_state``, -1 in a request
    of a Kafka tool, and ``coordinator_epoch`` its leader epoch."""

    producer_id: Int64
    producer_epoch: Int16
    is_commit: bool
    topics: tuple[MarkedTopic, ...]
    coordinator_epoch: Int32
    version: Int8 = 2
    number: InTag[int] = NO_TRANSACTION
    state_partition: InTag[int] = -1

    def put_tags(self, writer: Writer) -> None:
        put_tag(writer, TAG_COORDINATOR, _MARKER.pack(self.number, self.state_partition))


class MarkerCode(NamedTuple):
    """The result of writing the marker of one producer to one partition."""

    producer_id: int
    name: str
    partition: int
    error_code: int


_Codes = tuple[tuple[Int64, tuple[tuple[str, tuple[tuple[Int32, Int16], ...]], ...]], ...]
"""The error codes of a response, by partition, by topic and by producer id."""


class WriteTxnMarkersResponse(NamedTuple):
    rows: tuple[MarkerCode, ...]


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest(DeclaredCall[WriteTxnMarkersResponse]):
    """Write transaction markers to partitions that the receiving broker leads."""

    API_KEY: ClassVar[int] = ApiKey.WRITE_TXN_MARKERS
    VERSION: ClassVar[int] = 2

    markers: tuple[TransactionMarker, ...]

    @classmethod
    def decode(cls, reader: Reader) -> WriteTxnMarkersResponse:
        rows = [
            MarkerCode(producer_id, name, *code)
            for producer_id, topics in codec_of(_Codes).take(reader)
            for name, codes in topics
            for code in codes
        ]
        return reader.ended(WriteTxnMarkersResponse(tuple(rows)))


def take_marker_tag(reader: Reader) -> tuple[int, int]:
    """Return ``number`` and ``state_partition`` of a ``TransactionMarker`` from the value of the
    tagged field ``TAG_COORDINATOR``."""
    number, state_partition = reader.unpack(_MARKER)
    return number, state_partition
