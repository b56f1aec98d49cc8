"""The client's request DescribeLogDirs v4, which returns the sizes of partitions on a broker's disk
and, in a tagged field of logbus, the state of the broker."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import UnreadableZnode
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer, put_tag

TAG_ASKED_STATE = 10000
"""Number of a tagged field in a DescribeLogDirs request. The field's one byte, if not 0, asks for
the broker's state."""
TAG_STATE = 10000
"""Number of a tagged field in the answer to DescribeLogDirs. The field has the broker's state."""
UNREADABLE_MAX = 20
"""Maximum number of unreadable znodes that a broker lists in its answer to DescribeLogDirs."""
_AGE_AND_DISK = struct.Struct(">q?")


class LogDirPartition(NamedTuple):
    """The size in bytes of one partition on the broker's disk. ``offset_lag`` is the number of
    records by which the replica lags behind the high watermark; brokers of logbus send 0."""

    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool


class LogDirTopic(NamedTuple):
    name: str
    partitions: tuple[LogDirPartition, ...]


class LogDirRow(NamedTuple):
    """One data directory of the broker. The sizes of its file system, ``total_bytes`` and
    ``usable_bytes``, are -1 if unknown."""

    error_code: int
    log_dir: str
    topics: tuple[LogDirTopic, ...]
    total_bytes: int
    usable_bytes: int


class BrokerState(NamedTuple):
    """The state of a broker.

    ``metadata_age_ms`` is 0 while the broker is connected to ZooKeeper, else the time since it last
    knew that its metadata were current. A broker with ``is_disk_full`` refuses records.
    ``unreadable`` lists at most ``UNREADABLE_MAX`` znodes (ZooKeeper's nodes) whose content the
    broker cannot read."""

    version: str
    metadata_age_ms: int
    is_disk_full: bool
    unreadable: tuple[UnreadableZnode, ...] = ()


class DescribeLogDirsResponse(NamedTuple):
    """The answer to DescribeLogDirs. ``state`` is None if the broker does not report its state."""

    throttle_time_ms: int
    error_code: int
    results: tuple[LogDirRow, ...]
    state: BrokerState | None = None


class DescribableTopic(NamedTuple):
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest:
    """Request the sizes of partitions on the receiving broker's disk; of all partitions if
    ``topics`` is None."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_LOG_DIRS
    VERSION: ClassVar[int] = 4

    topics: tuple[DescribableTopic, ...] | None = None

    def encode(self, writer: Writer) -> None:
        def put_topic(row: DescribableTopic) -> None:
            writer.string(row.topic)
            writer.array(row.partitions, writer.i32)
            writer.tag_end()

        writer.nullable_array(self.topics, put_topic)
        put_tag(writer, TAG_ASKED_STATE, b"\1")

    @staticmethod
    def decode(reader: Reader) -> DescribeLogDirsResponse:
        answer = DescribeLogDirsResponse(reader.i32(), reader.i16(), reader.array(_log_dir))
        state = reader.tags().get(TAG_STATE)
        return answer if state is None else answer._replace(state=_state(Reader(state)))


def _state(reader: Reader) -> BrokerState:
    version = reader.string()
    age_ms, is_disk_full = reader.unpack(_AGE_AND_DISK)
    unreadable = reader.array(_unreadable) if reader.left else ()
    return BrokerState(version, age_ms, is_disk_full, unreadable)


def _unreadable(reader: Reader) -> UnreadableZnode:
    return UnreadableZnode(reader.string(), reader.string(), reader.string())


def encode_state(state: BrokerState) -> bytes:
    """Encode the broker's state as the value of the tagged field ``TAG_STATE``, on the broker's
    side."""
    writer = Writer()
    writer.string(state.version)
    writer.pack(_AGE_AND_DISK, state.metadata_age_ms, state.is_disk_full)

    def put(znode: UnreadableZnode) -> None:
        for text in znode:
            writer.string(text)

    writer.array(state.unreadable[:UNREADABLE_MAX], put)
    return bytes(writer.buffer)


def _log_dir(reader: Reader) -> LogDirRow:
    return reader.ended(
        LogDirRow(reader.i16(), reader.string(), reader.array(_topic), reader.i64(), reader.i64())
    )


def _topic(reader: Reader) -> LogDirTopic:
    return reader.ended(LogDirTopic(reader.string(), reader.array(_partition)))


def _partition(reader: Reader) -> LogDirPartition:
    return reader.ended(LogDirPartition(reader.i32(), reader.i64(), reader.i64(), reader.boolean()))
