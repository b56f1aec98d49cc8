"""Client side of DescribeLogDirs v4: the sizes of partitions on a broker's disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer


class LogDirPartition(NamedTuple):
    """One partition. ``partition_size`` is in bytes; ``offset_lag`` is the number of records behind
    the high watermark.
    """

    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool


class LogDirTopic(NamedTuple):
    name: str
    partitions: tuple[LogDirPartition, ...]


class LogDirRow(NamedTuple):
    """One data directory; the sizes of its file system are -1 if unknown."""

    error_code: int
    log_dir: str
    topics: tuple[LogDirTopic, ...]
    total_bytes: int
    usable_bytes: int


class DescribeLogDirsResponse(NamedTuple):
    throttle_time_ms: int
    error_code: int
    results: tuple[LogDirRow, ...]


class DescribableTopic(NamedTuple):
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest:
    """Describe the data directories of a broker. ``topics`` None selects all topics."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_LOG_DIRS
    VERSION: ClassVar[int] = 4

    topics: tuple[DescribableTopic, ...] | None = None

    def encode(self, writer: Writer) -> None:
        def put_topic(row: DescribableTopic) -> None:
            writer.string(row.topic)
            writer.array(row.partitions, writer.i32)
            writer.tag_end()

        writer.nullable_array(self.topics, put_topic)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> DescribeLogDirsResponse:
        return reader.ended(
            DescribeLogDirsResponse(reader.i32(), reader.i16(), reader.array(_log_dir))
        )


def _log_dir(reader: Reader) -> LogDirRow:
    return reader.ended(
        LogDirRow(reader.i16(), reader.string(), reader.array(_topic), reader.i64(), reader.i64())
    )


def _topic(reader: Reader) -> LogDirTopic:
    return reader.ended(LogDirTopic(reader.string(), reader.array(_partition)))


def _partition(reader: Reader) -> LogDirPartition:
    return reader.ended(LogDirPartition(reader.i32(), reader.i64(), reader.i64(), reader.boolean()))
