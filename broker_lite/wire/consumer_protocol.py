"""What Kafka's consumers tell each other through their coordinator, as bytes: which topics a member
subscribed to, and which partitions it was given. Versions 0-3 are read, 0 is written. Pure.

Later versions only add fields behind those that are read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker_lite.errors import ProtocolError
from broker_lite.model import TopicPartition
from broker_lite.wire.primitives import Buffer, Reader, Writer

_VERSION = 0
_NO_DATA = -1


def encode_subscription(topics: Sequence[str]) -> bytes:
    """A member's metadata."""
    writer = Writer()
    writer.i16(_VERSION)
    writer.i32(len(topics))
    for topic in topics:
        writer.classic_string(topic)
    writer.i32(_NO_DATA)
    return bytes(writer.buffer)


def decode_subscription(data: Buffer) -> tuple[str, ...]:
    """The topics; none of a member that is not a consumer, or has no metadata yet."""
    if not len(data):
        return ()
    reader = Reader(data)
    reader.i16()
    return tuple(reader.classic_string() for _ in range(reader.classic_count()))


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """What a member was given."""
    rows: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        rows.setdefault(topic, []).append(partition)
    writer = Writer()
    writer.i16(_VERSION)
    writer.i32(len(rows))
    for topic, row in rows.items():
        writer.classic_string(topic)
        writer.i32(len(row))
        for partition in row:
            writer.i32(partition)
    writer.i32(_NO_DATA)
    return bytes(writer.buffer)


def decode_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """The partitions; none of a member without an assignment yet. Raises ProtocolError for bytes
    of other kinds of groups."""
    if not len(data):
        return ()
    reader = Reader(data)
    if reader.i16() < 0:
        raise ProtocolError("not a consumer's assignment")
    found = []
    for _ in range(reader.classic_count()):
        topic = reader.classic_string()
        found += [TopicPartition(topic, reader.i32()) for _ in range(reader.classic_count())]
    return tuple(sorted(found))
