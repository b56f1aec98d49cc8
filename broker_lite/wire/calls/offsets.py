"""Lookups of offsets in a partition's log: ListOffsets v7, and logbus's own OffsetsForBytes v0 and
RecordTimes v0.

Each lookup is sent to the leader of its partition. Field names are Kafka's. A topic id is a text of
22 characters."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from broker_lite.errors import ProtocolError
from broker_lite.model import NO_OFFSET
from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int8, Int16, Int32, Int64, InTag, TopicId
from broker_lite.wire.primitives import Reader, Writer, put_tag


class ListOffsetsPartition(NamedTuple):
    """A lookup in one partition: the first record at or after ``timestamp`` (in ms).

    Three timestamps ask for another offset: -1 for the latest offset, -2 for the earliest, -3 for
    that of the record with the maximum timestamp."""

    partition_index: Int32
    current_leader_epoch: Int32
    timestamp: Int64


class ListOffsetsTopic(NamedTuple):
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


class ListedPartition(NamedTuple):
    """The result of a ListOffsets lookup in one partition. ``offset`` is -1 if no record has the
    requested timestamp or a later one."""

    partition_index: Int32
    error_code: Int16
    timestamp: Int64
    offset: Int64
    leader_epoch: Int32


class ListedTopic(NamedTuple):
    name: str
    partitions: tuple[ListedPartition, ...]


class ListOffsetsResponse(NamedTuple):
    throttle_time_ms: Int32
    topics: tuple[ListedTopic, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(DeclaredCall[ListOffsetsResponse]):
    """Look up offsets by timestamp. With ``isolation_level`` 1, the latest offset is the last
    stable offset instead of the high watermark."""

    API_KEY: ClassVar[int] = ApiKey.LIST_OFFSETS
    VERSION: ClassVar[int] = 7

    replica_id: Int32 = field(default=-1, kw_only=True)
    isolation_level: Int8 = field(default=0, kw_only=True)
    topics: tuple[ListOffsetsTopic, ...]


TAG_BOUNDS = 10000
"""Number of a tagged field of OffsetsForBytes. In a request it asks for the bounds of the logs, the
earliest and the latest offset of each. In the answer it has the bounds."""


class BytesPartition(NamedTuple):
    """A lookup in one partition: the end of the range that begins at ``start_offset`` (-2 for the
    start of the log) and has at most ``max_bytes`` in the log."""

    topic_id: TopicId
    partition: Int32
    start_offset: Int64
    max_bytes: Int64


class BytesAnswer(NamedTuple):
    """The result of a ``BytesPartition`` lookup.

    ``end_offset`` is the end of a batch; the range has at least one batch. ``size_bytes`` is the
    stored size of the range. The bounds of the log are ``start_offset``, where it starts, and
    ``latest_offset``, up to which the client may read. They are -1 if the request did not ask for
    them, or if the broker's version does not send them."""

    error_code: Int16
    end_offset: Int64
    size_bytes: Int64
    start_offset: InTag[int] = NO_OFFSET
    latest_offset: InTag[int] = NO_OFFSET


class OffsetsForBytesResponse(NamedTuple):
    """The answer to OffsetsForBytes: a result for each requested partition, in the request's order.
    With ``has_bounds``, each result also has its log's earliest and latest offset."""

    answers: tuple[BytesAnswer, ...]
    has_bounds: InTag[bool] = False

    def put_tags(self, writer: Writer) -> None:
        if self.has_bounds:
            put_tag(writer, TAG_BOUNDS, b"".join(_BOUNDS.pack(*row[3:]) for row in self.answers))
        else:
            writer.tag_end()

    def with_tags(self, reader: Reader) -> OffsetsForBytesResponse:
        bounds = reader.tags().get(TAG_BOUNDS)
        if bounds is None:
            return self
        if len(bounds) != len(self.answers) * _BOUNDS.size:
            raise ProtocolError(
                f"the response has {len(bounds)} bytes for the bounds (earliest and latest offset) "
                f"of {len(self.answers)} logs; each log takes {_BOUNDS.size}"
            )
        rows = zip(self.answers, _BOUNDS.iter_unpack(bounds))
        return OffsetsForBytesResponse(tuple(BytesAnswer(*row[:3], *of) for row, of in rows), True)


class TimePartition(NamedTuple):
    """A lookup in one partition: the timestamp of the first record at or after ``offset``."""

    topic_id: TopicId
    partition: Int32
    offset: Int64


class TimeAnswer(NamedTuple):
    """The result of a ``TimePartition`` lookup: the offset and timestamp (ms) of the record; both
    -1 if there is no such record yet."""

    error_code: Int16
    offset: Int64
    timestamp: Int64


class RecordTimesResponse(NamedTuple):
    """The answer to RecordTimes: a result for each requested partition, in the request's order."""

    answers: tuple[TimeAnswer, ...]


_BOUNDS = struct.Struct(">qq")
"""The layout of the bounds (earliest and latest offset) of one log, in the tagged field
``TAG_BOUNDS`` of an answer."""


@dataclass(frozen=True, slots=True)
class OffsetsForBytesRequest(DeclaredCall[OffsetsForBytesResponse]):
    """Find the offset at which a range of a given number of bytes ends, in each partition. This API
    is logbus's own. The size is approximate: the broker uses its sparse offset index.

    With an ``isolation_level``, the answer also has the bounds of the logs, and no range ends after
    the high watermark (level 0) or the last stable offset (level 1). A broker of an older version
    ignores the level, and does not know the ``start_offset`` -2 (the log's start)."""

    API_KEY: ClassVar[int] = ApiKey.OFFSETS_FOR_BYTES
    VERSION: ClassVar[int] = 0

    partitions: tuple[BytesPartition, ...]
    isolation_level: InTag[int | None] = None

    def put_tags(self, writer: Writer) -> None:
        if self.isolation_level is None:
            writer.tag_end()
        else:
            put_tag(writer, TAG_BOUNDS, bytes((self.isolation_level,)))

    def with_tags(self, reader: Reader) -> OffsetsForBytesRequest:
        level = reader.tags().get(TAG_BOUNDS)
        return replace(self, isolation_level=level[0]) if level else self


@dataclass(frozen=True, slots=True)
class RecordTimesRequest(DeclaredCall[RecordTimesResponse]):
    """Find the timestamps of records by offset, by logbus's own API. Clients compute from them by
    how much time a reader lags behind."""

    API_KEY: ClassVar[int] = ApiKey.RECORD_TIMES
    VERSION: ClassVar[int] = 0

    partitions: tuple[TimePartition, ...]
