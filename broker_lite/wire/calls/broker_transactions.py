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
from broker_lite.wire.primitives import Reader, Writer, put_tag

TAG_COORDINATOR = 10000
"""Number of a tagged field in each marker of a WriteTxnMarkers request. The field has the
transaction's number, and the partition of ``__transaction_state`` whose leader sends the marker."""

_MARKER = struct.Struct(">qi")


class MarkedTopic(NamedTuple):
    """The partitions of one topic that receive a marker."""

    name: str
    partitions: tuple[int, ...]


class TransactionMarker(NamedTuple):
    """The marker that ends one transaction in all its partitions.

    In transaction ``version`` 2, ``producer_epoch`` is the producer's next epoch, one above the
    epoch of the transaction. ``number`` counts the transactions of the transactional id.
    ``state_partition`` is the coordinator's partition of ``__transaction_state``, -1 in a request
    of a Kafka tool, and ``coordinator_epoch`` its leader epoch."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    topics: tuple[MarkedTopic, ...]
    coordinator_epoch: int
    version: int = 2
    number: int = NO_TRANSACTION
    state_partition: int = -1


class MarkerCode(NamedTuple):
    """The result of writing the marker of one producer to one partition."""

    producer_id: int
    name: str
    partition: int
    error_code: int


class WriteTxnMarkersResponse(NamedTuple):
    rows: tuple[MarkerCode, ...]


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest:
    """Write transaction markers to partitions that the receiving broker leads."""

    API_KEY: ClassVar[int] = ApiKey.WRITE_TXN_MARKERS
    VERSION: ClassVar[int] = 2

    markers: tuple[TransactionMarker, ...]

    def encode(self, writer: Writer) -> None:
        def put_topic(row: MarkedTopic) -> None:
            writer.string(row.name)
            writer.array(row.partitions, writer.i32)
            writer.tag_end()

        def put_marker(row: TransactionMarker) -> None:
            writer.i64(row.producer_id)
            writer.i16(row.producer_epoch)
            writer.boolean(row.is_commit)
            writer.array(row.topics, put_topic)
            writer.i32(row.coordinator_epoch)
            writer.i8(row.version)
            put_tag(writer, TAG_COORDINATOR, _MARKER.pack(row.number, row.state_partition))

        writer.array(self.markers, put_marker)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> WriteTxnMarkersResponse:
        rows = [row for marker in reader.array(_take_codes) for row in marker]
        return reader.ended(WriteTxnMarkersResponse(tuple(rows)))


def _take_codes(reader: Reader) -> list[MarkerCode]:
    producer_id = reader.i64()
    topics = reader.array(_take_topic)
    reader.skip_tags()
    return [MarkerCode(producer_id, *row) for topic in topics for row in topic]


def _take_topic(reader: Reader) -> list[tuple[str, int, int]]:
    name = reader.string()
    codes = reader.array(lambda it: it.ended((it.i32(), it.i16())))
    return reader.ended([(name, *row) for row in codes])


def take_marker_tag(reader: Reader) -> tuple[int, int]:
    """Return ``number`` and ``state_partition`` of a ``TransactionMarker`` from the value of the
    tagged field ``TAG_COORDINATOR``."""
    number, state_partition = reader.unpack(_MARKER)
    return number, state_partition
