"""ListOffsets v7, and our own OffsetsForBytes v0 and RecordTimes v0: where records are, and when.

All go to each partition's leader. Field names are Kafka's; topic ids are their 22 characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import NO_EPOCH
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer


class ListOffsetsPartition(NamedTuple):
    """``timestamp``: milliseconds, or -1 latest, -2 earliest, -3 that of the greatest timestamp."""

    partition_index: int
    timestamp: int
    current_leader_epoch: int = NO_EPOCH


class ListOffsetsTopic(NamedTuple):
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


class ListedPartition(NamedTuple):
    """``offset`` is -1 where no record is as late as the timestamp asked for."""

    partition_index: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int


class ListedTopic(NamedTuple):
    name: str
    partitions: tuple[ListedPartition, ...]


class ListOffsetsResponse(NamedTuple):
    throttle_time_ms: int
    topics: tuple[ListedTopic, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """``isolation_level`` 1 ends at the last stable offset instead of the high watermark."""

    API_KEY: ClassVar[int] = ApiKey.LIST_OFFSETS
    VERSION: ClassVar[int] = 7

    topics: tuple[ListOffsetsTopic, ...]
    isolation_level: int = 0

    def encode(self, writer: Writer) -> None:
        def put_partition(row: ListOffsetsPartition) -> None:
            writer.i32(row.partition_index)
            writer.i32(row.current_leader_epoch)
            writer.i64(row.timestamp)
            writer.tag_end()

        def put_topic(row: ListOffsetsTopic) -> None:
            writer.string(row.name)
            writer.array(row.partitions, put_partition)
            writer.tag_end()

        writer.i32(-1)  # replica_id
        writer.i8(self.isolation_level)
        writer.array(self.topics, put_topic)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> ListOffsetsResponse:
        response = ListOffsetsResponse(reader.i32(), reader.array(_listed_topic))
        reader.skip_tags()
        return response


def _listed_topic(reader: Reader) -> ListedTopic:
    row = ListedTopic(reader.string(), reader.array(_listed_partition))
    reader.skip_tags()
    return row


def _listed_partition(reader: Reader) -> ListedPartition:
    row = ListedPartition(reader.i32(), reader.i16(), reader.i64(), reader.i64(), reader.i32())
    reader.skip_tags()
    return row


class BytesPartition(NamedTuple):
    """How far ``max_bytes`` of stored batches reach from ``start_offset``."""

    topic_id: str
    partition: int
    start_offset: int
    max_bytes: int


class BytesAnswer(NamedTuple):
    """``end_offset`` is a batch boundary, at least one batch on; ``size_bytes`` as stored."""

    error_code: int
    end_offset: int
    size_bytes: int


class OffsetsForBytesResponse(NamedTuple):
    """One answer for each partition asked for, in the request's order."""

    answers: tuple[BytesAnswer, ...]


@dataclass(frozen=True, slots=True)
class OffsetsForBytesRequest:
    """Our own API: plan ranges by size, from the sparse index."""

    API_KEY: ClassVar[int] = ApiKey.OFFSETS_FOR_BYTES
    VERSION: ClassVar[int] = 0

    partitions: tuple[BytesPartition, ...]

    def encode(self, writer: Writer) -> None:
        def put(row: BytesPartition) -> None:
            writer.uuid(row.topic_id)
            writer.i32(row.partition)
            writer.i64(row.start_offset)
            writer.i64(row.max_bytes)
            writer.tag_end()

        writer.array(self.partitions, put)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> OffsetsForBytesResponse:
        response = OffsetsForBytesResponse(reader.array(_bytes_answer))
        reader.skip_tags()
        return response

    @staticmethod
    def decode_request(reader: Reader) -> OffsetsForBytesRequest:
        """The broker's side: the request whose body ``reader`` stands at."""
        request = OffsetsForBytesRequest(reader.array(_bytes_partition))
        reader.skip_tags()
        return request


def encode_offsets_for_bytes(response: OffsetsForBytesResponse, writer: Writer) -> None:
    """The broker's side: the response's body."""

    def put(row: BytesAnswer) -> None:
        writer.i16(row.error_code)
        writer.i64(row.end_offset)
        writer.i64(row.size_bytes)
        writer.tag_end()

    writer.array(response.answers, put)
    writer.tag_end()


def _bytes_answer(reader: Reader) -> BytesAnswer:
    row = BytesAnswer(reader.i16(), reader.i64(), reader.i64())
    reader.skip_tags()
    return row


def _bytes_partition(reader: Reader) -> BytesPartition:
    row = BytesPartition(reader.uuid(), reader.i32(), reader.i64(), reader.i64())
    reader.skip_tags()
    return row


class TimePartition(NamedTuple):
    """When was the first record written that is at or after ``offset``?"""

    topic_id: str
    partition: int
    offset: int


class TimeAnswer(NamedTuple):
    """That record's offset and timestamp in ms; both -1 where there is none yet."""

    error_code: int
    offset: int
    timestamp: int


class RecordTimesResponse(NamedTuple):
    """One answer for each partition asked for, in the request's order."""

    answers: tuple[TimeAnswer, ...]


@dataclass(frozen=True, slots=True)
class RecordTimesRequest:
    """Our own API: how old is what a reader has not read."""

    API_KEY: ClassVar[int] = ApiKey.RECORD_TIMES
    VERSION: ClassVar[int] = 0

    partitions: tuple[TimePartition, ...]

    def encode(self, writer: Writer) -> None:
        def put(row: TimePartition) -> None:
            writer.uuid(row.topic_id)
            writer.i32(row.partition)
            writer.i64(row.offset)
            writer.tag_end()

        writer.array(self.partitions, put)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> RecordTimesResponse:
        response = RecordTimesResponse(reader.array(_time_answer))
        reader.skip_tags()
        return response

    @staticmethod
    def decode_request(reader: Reader) -> RecordTimesRequest:
        """The broker's side: the request whose body ``reader`` stands at."""
        request = RecordTimesRequest(reader.array(_time_partition))
        reader.skip_tags()
        return request


def encode_record_times(response: RecordTimesResponse, writer: Writer) -> None:
    """The broker's side: the response's body."""

    def put(row: TimeAnswer) -> None:
        writer.i16(row.error_code)
        writer.i64(row.offset)
        writer.i64(row.timestamp)
        writer.tag_end()

    writer.array(response.answers, put)
    writer.tag_end()


def _time_answer(reader: Reader) -> TimeAnswer:
    row = TimeAnswer(reader.i16(), reader.i64(), reader.i64())
    reader.skip_tags()
    return row


def _time_partition(reader: Reader) -> TimePartition:
    row = TimePartition(reader.uuid(), reader.i32(), reader.i64())
    reader.skip_tags()
    return row
