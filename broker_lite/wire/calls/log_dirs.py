"""The client's request DescribeLogDirs v4, which returns the sizes of partitions on a broker's disk
and, in a tagged field of logbus, the state of the broker."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.model import UnreadableZnode
from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int16, Int32, Int64, InTag
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

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: bool


class LogDirTopic(NamedTuple):
    name: str
    partitions: tuple[LogDirPartition, ...]


class LogDirRow(NamedTuple):
    """One data directory of the broker. The sizes of its file system, ``total_bytes`` and
    ``usable_bytes``, are -1 if unknown."""

    error_code: Int16
    log_dir: str
    topics: tuple[LogDirTopic, ...]
    total_bytes: Int64
    usable_bytes: Int64


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

    throttle_time_ms: Int32
    error_code: Int16
    results: tuple[LogDirRow, ...]
    state: InTag[BrokerState | None] = None

    def with_tags(self, reader: Reader) -> DescribeLogDirsResponse:
        state = reader.tags().get(TAG_STATE)
        return self if state is None else self._replace(state=_state(Reader(state)))


class DescribableTopic(NamedTuple):
    topic: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest(DeclaredCall[DescribeLogDirsResponse]):
    """Request the sizes of partitions on the receiving broker's disk; of all partitions if
    ``topics`` is None."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_LOG_DIRS
    VERSION: ClassVar[int] = 4

    topics: tuple[DescribableTopic, ...] | None = None

    def put_tags(self, writer: Writer) -> None:
        put_tag(writer, TAG_ASKED_STATE, b"\1")


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
