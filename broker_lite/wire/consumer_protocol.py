"""Encode and decode the subscriptions and assignments that members of a consumer group exchange.

Each member sends its subscription, which lists its topics. One member, the group's leader, computes
which partitions each member reads, by an algorithm that is called an assignor. It sends these
assignments to the broker, which passes them on.

The formats are versions 0 to 3 of Kafka's ConsumerProtocolSubscription and
ConsumerProtocolAssignment, and the user data of Kafka's sticky assignors. Later versions only
append fields, so a reader decodes the fields that it knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker_lite.errors import ProtocolError
from broker_lite.model import TopicPartition
from broker_lite.wire.primitives import Buffer, Reader, Writer

_VERSION = 0
_NO_DATA = -1
OWNED_FROM, GENERATION_FROM, RACK_FROM = 1, 2, 3
SUBSCRIPTION_VERSION_MAX = 3
NO_GENERATION = -1


class Subscription(NamedTuple):
    """A member's subscription.

    ``owned`` are the partitions that the member already reads when it joins the group (KIP-429),
    and ``generation`` is the generation in which the member received them (KIP-792). The member's
    assignor defines the format of ``user_data``."""

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


def encode_member(member: Subscription, version: int = SUBSCRIPTION_VERSION_MAX) -> bytes:
    """Encode a subscription in this version. Fields that the version does not have are left out."""
    writer = Writer()
    writer.i16(version)
    writer.i32(len(member.topics))
    for topic in member.topics:
        writer.classic_string(topic)
    writer.i32(len(member.user_data) or _NO_DATA)
    writer.buffer += member.user_data
    if version >= OWNED_FROM:
        _put_partitions(writer, member.owned)
    if version >= GENERATION_FROM:
        writer.i32(member.generation)
    if version >= RACK_FROM:
        writer.classic_nullable_string(member.rack)
    return bytes(writer.buffer)


def decode_member(data: Buffer) -> Subscription:
    """Decode a subscription of any version. Raises ProtocolError.

    Several clients (@platformatic/kafka, older Go clients) send a later version number but only the
    fields of version 0. Like Kafka, logbus accepts such a subscription; its ``owned`` is empty."""
    reader = Reader(data)
    version = reader.i16()
    if version < 0:
        raise ProtocolError(f"a consumer's subscription has the negative version {version}")
    topics = tuple(reader.classic_string() for _ in range(_count(reader)))
    member = Subscription(topics, bytes(reader.classic_view() or b""))
    if not reader.left:
        return member
    if version >= OWNED_FROM:
        member = member._replace(owned=_partitions(reader))
    if version >= GENERATION_FROM:
        member = member._replace(generation=reader.i32())
    if version >= RACK_FROM:
        member = member._replace(rack=reader.classic_nullable_string())
    return member


def encode_sticky(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Encode the user data of the ``sticky`` assignor (KIP-54): the partitions that the member
    owns, and the generation in which it received them (KIP-341)."""
    writer = Writer()
    _put_partitions(writer, owned)
    writer.i32(generation)
    return bytes(writer.buffer)


def decode_sticky(data: Buffer) -> tuple[tuple[TopicPartition, ...], int]:
    """Return the owned partitions in the user data of the ``sticky`` assignor, and their
    generation; no partitions if the data cannot be decoded.

    The generation is -1 in the format before KIP-341."""
    if not len(data):
        return (), NO_GENERATION
    reader = Reader(data)
    try:
        owned = _partitions(reader)
        return owned, reader.i32() if reader.left else NO_GENERATION
    except ProtocolError:
        return (), NO_GENERATION


def encode_subscription(topics: Sequence[str]) -> bytes:
    """Encode a subscription to these topics, in version 0."""
    return encode_member(Subscription(tuple(topics)), _VERSION)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode an assignment of these partitions to one member."""
    writer = Writer()
    writer.i16(_VERSION)
    _put_partitions(writer, partitions)
    writer.i32(_NO_DATA)
    return bytes(writer.buffer)


def decode_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment, none for empty bytes. Raises ProtocolError for bytes
    that are not a consumer's assignment."""
    if not len(data):
        return ()
    reader = Reader(data)
    version = reader.i16()
    if version < 0:
        raise ProtocolError(f"a consumer's assignment has the negative version {version}")
    return tuple(sorted(_partitions(reader)))


def _put_partitions(writer: Writer, partitions: Iterable[TopicPartition]) -> None:
    rows: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        rows.setdefault(topic, []).append(partition)
    writer.i32(len(rows))
    for topic, row in rows.items():
        writer.classic_string(topic)
        writer.i32(len(row))
        for partition in row:
            writer.i32(partition)


def _partitions(reader: Reader) -> tuple[TopicPartition, ...]:
    tps = []
    for _ in range(_count(reader)):
        topic = reader.classic_string()
        tps += [TopicPartition(topic, reader.i32()) for _ in range(_count(reader))]
    return tuple(tps)


def _count(reader: Reader) -> int:
    count = reader.classic_count()
    if count < 0:
        raise ProtocolError(
            "the subscription or assignment of a group member has a null array of topics or "
            "partitions; send an empty array"
        )
    return count
