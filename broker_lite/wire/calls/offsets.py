"""Lookups of offsets in a partition's log: ListOffsets v7, and logbus's own OffsetsForBytes v0 and
RecordTimes v0.

Each lookup is sent to the leader of its partition. Field names are Kafka's. A topic id is a text of
22 characters."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from broker_lite.errors import ProtocolError
from broker_lite.model import NO_EPOCH, NO_OFFSET
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer, put_tag

Row = TypeVar("Row")


class ListOffsetsPartition(NamedTuple):
    """A lookup in one partition: the first record at or after ``timestamp`` (in ms).

    Three timestamps ask for another offset: -1 for the latest offset, -2 for the earliest, -3 for
    that of the record with the maximum timestamp."""

    partition_index: int
    timestamp: int
    current_leader_epoch: int = NO_EPOCH


class ListOffsetsTopic(NamedTuple):
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


class ListedPartition(NamedTuple):
    """The result of a ListOffsets lookup in one partition. ``offset`` is -1 if no record has the
    requested timestamp or a later one."""

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
    """Look up offsets by timestamp. With ``isolation_level`` 1, the latest offset is the last
    stable offset instead of the high watermark."""

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
        return reader.ended(ListOffsetsResponse(reader.i32(), reader.array(_listed_topic)))


def _listed_topic(reader: Reader) -> ListedTopic:
    return reader.ended(ListedTopic(reader.string(), reader.array(_listed_partition)))


def _listed_partition(reader: Reader) -> ListedPartition:
    return reader.ended(
        ListedPartition(reader.i32(), reader.i16(), reader.i64(), reader.i64(), reader.i32())
    )


TAG_BOUNDS = 10000
"""Number of a tagged field of OffsetsForBytes. In a request it asks for the bounds of the logs, the
earliest and the latest offset of each. In the answer it has the bounds."""


class BytesPartition(NamedTuple):
    """A lookup in one partition: the end of the range that begins at ``start_offset`` (-2 for the
    start of the log) and has at most ``max_bytes`` in the log."""

    topic_id: str
    partition: int
    start_offset: int
    max_bytes: int


class BytesAnswer(NamedTuple):
    """The result of a ``BytesPartition`` lookup.

    ``end_offset`` is the end of a batch; the range has at least one batch. ``size_bytes`` is the
    stored size of the range. The bounds of the log are ``start_offset``, where it starts, and
    ``latest_offset``, up to which the client may read. They are -1 if the request did not ask for
    them, or if the broker's version does not send them."""

    error_code: int
    end_offset: int
    size_bytes: int
    start_offset: int = NO_OFFSET
    latest_offset: int = NO_OFFSET


class OffsetsForBytesResponse(NamedTuple):
    """The answer to OffsetsForBytes: a result for each requested partition, in the request's order.
    With ``has_bounds``, each result also has its log's earliest and latest offset."""

    answers: tuple[BytesAnswer, ...]
    has_bounds: bool = False


class TimePartition(NamedTuple):
    """A lookup in one partition: the timestamp of the first record at or after ``offset``."""

    topic_id: str
    partition: int
    offset: int


class TimeAnswer(NamedTuple):
    """The result of a ``TimePartition`` lookup: the offset and timestamp (ms) of the record; both
    -1 if there is no such record yet."""

    error_code: int
    offset: int
    timestamp: int


class RecordTimesResponse(NamedTuple):
    """The answer to RecordTimes: a result for each requested partition, in the request's order."""

    answers: tuple[TimeAnswer, ...]


_BYTES_ASKED, _TIME_ASKED = struct.Struct(">iqq"), struct.Struct(">iq")
"""The layout of one lookup, after the topic id, in an OffsetsForBytes and in a RecordTimes
request."""
_ANSWERED = struct.Struct(">hqq")
"""The layout of one result in the answers to OffsetsForBytes and RecordTimes."""
_BOUNDS = struct.Struct(">qq")
"""The layout of the bounds (earliest and latest offset) of one log, in the tagged field
``TAG_BOUNDS`` of an answer."""


@dataclass(frozen=True, slots=True)
class OffsetsForBytesRequest:
    """Find the offset at which a range of a given number of bytes ends, in each partition. This API
    is logbus's own. The size is approximate: the broker uses its sparse offset index.

    With an ``isolation_level``, the answer also has the bounds of the logs, and no range ends after
    the high watermark (level 0) or the last stable offset (level 1). A broker of an older version
    ignores the level, and does not know the ``start_offset`` -2 (the log's start)."""

    API_KEY: ClassVar[int] = ApiKey.OFFSETS_FOR_BYTES
    VERSION: ClassVar[int] = 0

    partitions: tuple[BytesPartition, ...]
    isolation_level: int | None = None

    def encode(self, writer: Writer) -> None:
        _put_rows(writer, self.partitions, _BYTES_ASKED)
        if self.isolation_level is None:
            writer.tag_end()
        else:
            put_tag(writer, TAG_BOUNDS, bytes((self.isolation_level,)))

    @staticmethod
    def decode(reader: Reader) -> OffsetsForBytesResponse:
        answers = _answers(reader, BytesAnswer)
        bounds = reader.tags().get(TAG_BOUNDS)
        if bounds is None:
            return OffsetsForBytesResponse(answers)
        if len(bounds) != len(answers) * _BOUNDS.size:
            raise ProtocolError(
                f"the response has {len(bounds)} bytes for the bounds (earliest and latest offset) "
                f"of {len(answers)} logs; each log takes {_BOUNDS.size}"
            )
        rows = zip(answers, _BOUNDS.iter_unpack(bounds))
        return OffsetsForBytesResponse(tuple(BytesAnswer(*row[:3], *of) for row, of in rows), True)

    @staticmethod
    def decode_request(reader: Reader) -> OffsetsForBytesRequest:
        """Decode an OffsetsForBytes request from the start of its body, on the broker's side."""
        rows = _requested_rows(reader, BytesPartition, _BYTES_ASKED)
        level = reader.tags().get(TAG_BOUNDS)
        return OffsetsForBytesRequest(rows, level[0] if level else None)


@dataclass(frozen=True, slots=True)
class RecordTimesRequest:
    """Find the timestamps of records by offset, by logbus's own API. Clients compute from them by
    how much time a reader lags behind."""

    API_KEY: ClassVar[int] = ApiKey.RECORD_TIMES
    VERSION: ClassVar[int] = 0

    partitions: tuple[TimePartition, ...]

    def encode(self, writer: Writer) -> None:
        _put_rows(writer, self.partitions, _TIME_ASKED)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> RecordTimesResponse:
        return reader.ended(RecordTimesResponse(_answers(reader, TimeAnswer)))

    @staticmethod
    def decode_request(reader: Reader) -> RecordTimesRequest:
        """Decode a RecordTimes request from the start of its body, on the broker's side."""
        return reader.ended(RecordTimesRequest(_requested_rows(reader, TimePartition, _TIME_ASKED)))


def encode_answers(response: OffsetsForBytesResponse | RecordTimesResponse, writer: Writer) -> None:
    """Write the body of the answer to OffsetsForBytes or RecordTimes, on the broker's side."""

    rows: tuple[tuple[int, ...], ...] = response.answers

    def put(row: tuple[int, ...]) -> None:
        writer.pack(_ANSWERED, *row[:3])
        writer.tag_end()

    writer.array(rows, put)
    if isinstance(response, OffsetsForBytesResponse) and response.has_bounds:
        put_tag(writer, TAG_BOUNDS, b"".join(_BOUNDS.pack(*row[3:]) for row in rows))
    else:
        writer.tag_end()


def _answers(reader: Reader, kind: Callable[..., Row]) -> tuple[Row, ...]:
    return reader.array(lambda row: row.ended(kind(*row.unpack(_ANSWERED))))


def _put_rows(writer: Writer, rows: tuple[tuple[Any, ...], ...], fields: struct.Struct) -> None:
    def put(row: tuple[Any, ...]) -> None:
        topic_id, *rest = row
        writer.uuid(topic_id)
        writer.pack(fields, *rest)
        writer.tag_end()

    writer.array(rows, put)


def _requested_rows(
    reader: Reader, kind: Callable[..., Row], fields: struct.Struct
) -> tuple[Row, ...]:
    return reader.array(lambda row: row.ended(kind(row.uuid(), *row.unpack(fields))))
