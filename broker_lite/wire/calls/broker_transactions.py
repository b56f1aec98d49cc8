"""Calls between brokers about transactions: AddPartitionsToTxn v5 adds or verifies partitions, and
WriteTxnMarkers v2 ends transactions.

Tagged fields of ours carry what Kafka's fields lack: topic ids, the number of the transaction, and
the state partition of its coordinator.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer, put_tag, uuid_bytes

TAG_TOPIC_ID = 10000
"""In a topic of AddPartitionsToTxn: the topic's id. A recreated topic is not the transaction's."""
TAG_COORDINATOR = 10000
"""In a result of AddPartitionsToTxn: the number of the transaction, and the state partition that
answers with its leader epoch. In a marker: the number and the state partition; the epoch is a field
of Kafka's."""
NO_NUMBER = -1
"""The transaction number of a sender that does not know one."""

_ANSWERED = struct.Struct(">qii")
_MARKER = struct.Struct(">qi")


class ParticipatingTopic(NamedTuple):
    """Partitions of one topic in a transaction."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


class AddedParticipants(NamedTuple):
    """The partitions of one transaction to add, or to verify only."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: tuple[ParticipatingTopic, ...]


class ParticipantCode(NamedTuple):
    """The error code of one partition."""

    name: str
    partition: int
    error_code: int


class AddedResult(NamedTuple):
    """The answer about one transaction. ``number`` counts the transactions of the id.
    ``coordinator_epoch`` is the leader epoch of ``state_partition``, which holds the id."""

    transactional_id: str
    rows: tuple[ParticipantCode, ...]
    number: int = NO_NUMBER
    state_partition: int = -1
    coordinator_epoch: int = NO_EPOCH


class AddParticipantsResponse(NamedTuple):
    error_code: int
    results: tuple[AddedResult, ...] = ()


@dataclass(frozen=True, slots=True)
class AddParticipantsRequest:
    """Add partitions to open transactions, or ask whether the transactions have them."""

    API_KEY: ClassVar[int] = ApiKey.ADD_PARTITIONS_TO_TXN
    VERSION: ClassVar[int] = 5

    transactions: tuple[AddedParticipants, ...]

    def encode(self, writer: Writer) -> None:
        def put_topic(row: ParticipatingTopic) -> None:
            writer.string(row.name)
            writer.array(row.partitions, writer.i32)
            put_tag(writer, TAG_TOPIC_ID, uuid_bytes(row.topic_id))

        def put_transaction(row: AddedParticipants) -> None:
            writer.string(row.transactional_id)
            writer.i64(row.producer_id)
            writer.i16(row.producer_epoch)
            writer.boolean(row.verify_only)
            writer.array(row.topics, put_topic)
            writer.tag_end()

        writer.array(self.transactions, put_transaction)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> AddParticipantsResponse:
        reader.i32()  # throttle_time_ms
        response = AddParticipantsResponse(reader.i16(), reader.array(_take_result))
        return reader.ended(response)


def _take_result(reader: Reader) -> AddedResult:
    transactional_id = reader.string()
    rows = [row for topic in reader.array(_take_topic_result) for row in topic]
    answered = reader.tags().get(TAG_COORDINATOR)
    if answered is None:
        return AddedResult(transactional_id, tuple(rows))
    return AddedResult(transactional_id, tuple(rows), *Reader(answered).unpack(_ANSWERED))


def _take_topic_result(reader: Reader) -> list[ParticipantCode]:
    name = reader.string()
    codes = reader.array(lambda it: it.ended((it.i32(), it.i16())))
    reader.skip_tags()
    return [ParticipantCode(name, *row) for row in codes]


def encode_add_participants(response: AddParticipantsResponse, writer: Writer) -> None:
    """Write the body of the answer to a broker, version 4 or 5."""

    def put_result(result: AddedResult) -> None:
        topics: dict[str, list[ParticipantCode]] = {}
        for row in result.rows:
            topics.setdefault(row.name, []).append(row)
        writer.string(result.transactional_id)
        writer.array(topics.items(), put_topic)
        put_tag(writer, TAG_COORDINATOR, _ANSWERED.pack(*result[2:]))

    def put_topic(topic: tuple[str, list[ParticipantCode]]) -> None:
        writer.string(topic[0])
        writer.array(topic[1], put_code)
        writer.tag_end()

    def put_code(row: ParticipantCode) -> None:
        writer.i32(row.partition)
        writer.i16(row.error_code)
        writer.tag_end()

    writer.i32(0)
    writer.i16(response.error_code)
    writer.array(response.results, put_result)
    writer.tag_end()


class MarkedTopic(NamedTuple):
    """Partitions of one topic that receive a marker."""

    name: str
    partitions: tuple[int, ...]


class TransactionMarker(NamedTuple):
    """The end of one transaction. ``producer_epoch`` is the bumped one if ``version`` is 2.

    ``number`` is the transaction's. ``coordinator_epoch`` is the leader epoch of
    ``state_partition``, -1 in a request of a Kafka tool.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    topics: tuple[MarkedTopic, ...]
    coordinator_epoch: int
    version: int = 2
    number: int = NO_NUMBER
    state_partition: int = -1


class MarkerCode(NamedTuple):
    """The error code of one partition for the marker of one producer."""

    producer_id: int
    name: str
    partition: int
    error_code: int


class WriteTxnMarkersResponse(NamedTuple):
    rows: tuple[MarkerCode, ...]


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest:
    """Write markers to partitions that the receiver leads."""

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
    topics = reader.array(_take_topic_result)
    reader.skip_tags()
    return [MarkerCode(producer_id, *row) for topic in topics for row in topic]


def take_marker_tag(reader: Reader) -> tuple[int, int]:
    """Return number and state partition from the value of a marker's tagged field."""
    number, state_partition = reader.unpack(_MARKER)
    return number, state_partition
