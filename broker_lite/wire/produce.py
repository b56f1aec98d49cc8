"""Encode and decode Produce requests and responses, versions 3 to 13.

This module neither copies nor inspects records: decoded records are slices of the frame, and an
encoded request has the caller's buffers. Topics have names up to version 12 and ids from 13; the
unused field has its null value. logbus's client uses version 13. If the cluster still uses
transaction version 1, the client sends transactional batches in version 11. From version 12 on the
broker itself would add the partitions to the transaction, which is part of transaction version 2
(KIP-890).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from broker_lite.errors import ProtocolError
from broker_lite.model import NO_BROKER, NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, NULL_TOPIC_ID
from broker_lite.wire.api import (
    BY_TOPIC_ID,
    PARTITIONS_MAX,
    ApiKey,
    NodeEndpoint,
    node_endpoints_bytes,
    read_response_header,
    read_topics,
    response_header_bytes,
    write_request_header,
)
from broker_lite.wire.primitives import (
    I32,
    Buffer,
    Reader,
    Writer,
    put_count,
    put_string,
    uuid_bytes,
    uvarint_bytes,
)

FLEXIBLE = 9
CLIENT_VERSION = 13
NAMES_LEADERS = 10
"""The first version whose NOT_LEADER_OR_FOLLOWER answers name the partition's leader (KIP-951)."""
ADDS_NO_PARTITIONS = 11
"""The last version of Produce in which the client must send AddPartitionsToTxn before batches. In
later versions, the broker adds the partitions to the transaction."""

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1

_ACKS_TIMEOUT = struct.Struct(">hi")
_PARTITION_V3 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_LEADER = struct.Struct(">ii")
_CURRENT_LEADER = struct.Struct(">BBBiiB")
"""Layout of the tagged fields of a refused partition: one field, number 0, of 9 bytes, with the
leader's id, the leader epoch, and no tagged fields of its own."""


class ProducePartition(NamedTuple):
    """The records of one partition in a decoded request, as a slice of the frame."""

    partition: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    """The records for one topic in a decoded request, by ``name`` in versions before 13, later by
    ``topic_id``."""

    name: str
    topic_id: str
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    """A decoded produce request.

    ``acks`` says which replicas must have the records before the broker answers: -1 means all
    in-sync replicas, and 1 only the leader. With 0, the broker sends no answer.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class RecordError(NamedTuple):
    """A record because of which the broker refused a batch. ``batch_index`` is its place in the
    batch."""

    batch_index: int
    message: str | None


class ProducedPartition(NamedTuple):
    """The result for the records of one partition. ``error_message`` and ``record_errors`` are sent
    from version 8 on."""

    partition: int
    error_code: int = 0
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    error_message: str | None = None
    record_errors: Sequence[RecordError] = ()
    leader_id: int = NO_BROKER
    leader_epoch: int = NO_EPOCH


_NO_ERROR = ProducedPartition(0)[5:]
_NO_ERROR_BYTES = b"\x01\x00\x00"
"""The last bytes of a result without errors in flexible versions: no record errors, no message and
no tagged fields."""


class ProducedTopic(NamedTuple):
    """The results for the partitions of one topic. The topic has the name or id of the request."""

    name: str
    topic_id: str
    partitions: Sequence[ProducedPartition]


class ProduceResponse(NamedTuple):
    """The answer to a produce request with acks other than 0. ``nodes`` has the addresses of the
    leaders to which refused partitions refer by ``leader_id``; versions before 10 omit it."""

    topics: Sequence[ProducedTopic]
    throttle_time_ms: int = 0
    nodes: Sequence[NodeEndpoint] = ()


def decode_request(frame: memoryview, version: int, at: int) -> ProduceRequest:
    """Decode the request in ``frame``, whose body begins at position ``at``. Raises
    ProtocolError."""
    reader = Reader(frame, at)
    if version < FLEXIBLE:
        return _decode_classic_request(reader)
    transactional_id = reader.nullable_string()
    acks, timeout_ms = reader.unpack(_ACKS_TIMEOUT)
    topics = []
    left = PARTITIONS_MAX
    for _ in range(reader.count()):
        name, topic_id = "", NULL_TOPIC_ID
        if version >= BY_TOPIC_ID:
            topic_id = reader.uuid()
        else:
            name = reader.string()
        partitions = []
        count = reader.count()
        left = _partitions_left(left, count)
        for _ in range(count):
            partitions.append(ProducePartition(reader.i32(), reader.view()))
            reader.skip_tags()
        reader.skip_tags()
        topics.append(ProduceTopic(name, topic_id, partitions))
    reader.skip_tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_classic_request(reader: Reader) -> ProduceRequest:
    transactional_id = reader.classic_nullable_string()
    acks, timeout_ms = reader.unpack(_ACKS_TIMEOUT)
    topics = []
    left = PARTITIONS_MAX
    for _ in range(reader.classic_count()):
        name = reader.classic_string()
        count = reader.classic_count()
        left = _partitions_left(left, count)
        partitions = [ProducePartition(reader.i32(), reader.classic_view()) for _ in range(count)]
        topics.append(ProduceTopic(name, NULL_TOPIC_ID, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _partitions_left(left: int, count: int) -> int:
    """Return how many more partitions a request may have after a topic with ``count`` partitions.

    ``left`` is the number before this topic. The topic itself counts as one partition. Raises
    ProtocolError if there are too many."""
    left -= 1 + max(count, 0)
    if left < 0:
        raise ProtocolError(f"a produce request names more than {PARTITIONS_MAX} partitions")
    return left


def encode_response(response: ProduceResponse, version: int, correlation_id: int) -> bytes:
    """Return a response as a frame, with its length before it."""
    flexible = version >= FLEXIBLE
    out = bytearray(4)
    out += response_header_bytes(ApiKey.PRODUCE, version, correlation_id)
    out += uvarint_bytes(len(response.topics) + 1) if flexible else I32.pack(len(response.topics))
    for topic in response.topics:
        if version >= BY_TOPIC_ID:
            out += uuid_bytes(topic.topic_id)
        else:
            put_string(out, topic.name, flexible)
        count = len(topic.partitions)
        out += uvarint_bytes(count + 1) if flexible else I32.pack(count)
        for partition in topic.partitions:
            _put_partition(out, partition, version)
        if flexible:
            out.append(0)
    out += I32.pack(response.throttle_time_ms)
    if flexible:
        out += node_endpoints_bytes(response.nodes if version >= NAMES_LEADERS else ())
    I32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _put_partition(out: bytearray, row: ProducedPartition, version: int) -> None:
    if version < 5:
        out += _PARTITION_V3.pack(*row[:4])
        return
    out += _PARTITION_V5.pack(*row[:5])
    if version < 8:
        return
    flexible = version >= FLEXIBLE
    if flexible and row[5:] == _NO_ERROR:
        out += _NO_ERROR_BYTES
        return
    count = len(row.record_errors)
    out += uvarint_bytes(count + 1) if flexible else I32.pack(count)
    for error in row.record_errors:
        out += I32.pack(error.batch_index)
        put_string(out, error.message, flexible)
        if flexible:
            out.append(0)
    put_string(out, row.error_message, flexible)
    if version >= NAMES_LEADERS and row.leader_epoch != NO_EPOCH:
        out += _CURRENT_LEADER.pack(1, 0, 9, row.leader_id, row.leader_epoch, 0)
    elif flexible:
        out.append(0)


class PartitionRecords(NamedTuple):
    """The batch that a client sends to one partition, in one or several buffers."""

    partition: int
    records: Buffer | Sequence[Buffer]


class TopicRecords(NamedTuple):
    """The batches that a client sends to one topic, by ``name`` in versions before 13, later by
    ``topic_id``."""

    name: str
    topic_id: str
    partitions: Sequence[PartitionRecords]


def encode_request(
    topics: Sequence[TopicRecords],
    *,
    acks: int,
    timeout_ms: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None = None,
    version: int = CLIENT_VERSION,
) -> list[Buffer]:
    """Return a request as the buffers of a frame, with its length before it, for ``sendmsg``. The
    records are not copied."""
    flexible = version >= FLEXIBLE
    writer = Writer()
    writer.i32(0)
    write_request_header(writer, ApiKey.PRODUCE, version, correlation_id, client_id)
    put_string(writer.buffer, transactional_id, flexible)
    writer.pack(_ACKS_TIMEOUT, acks, timeout_ms)
    parts: list[Buffer] = [writer.buffer]
    put_count(writer, len(topics), flexible)
    for topic in topics:
        if version >= BY_TOPIC_ID:
            writer.uuid(topic.topic_id)
        else:
            put_string(writer.buffer, topic.name, flexible)
        put_count(writer, len(topic.partitions), flexible)
        for partition, records in topic.partitions:
            buffers = [records] if isinstance(records, Buffer) else list(records)
            writer.i32(partition)
            put_count(writer, sum(map(len, buffers)), flexible)
            parts += buffers
            writer = Writer()
            parts.append(writer.buffer)
            if flexible:
                writer.tag_end()
        if flexible:
            writer.tag_end()
    if flexible:
        writer.tag_end()
    I32.pack_into(parts[0], 0, sum(map(len, parts)) - 4)
    return parts if parts[-1] else parts[:-1]


def decode_response(frame: memoryview, version: int = CLIENT_VERSION) -> ProduceResponse:
    """Decode the response in ``frame``, which begins with the response's header. Raises
    ProtocolError."""
    flexible = version >= FLEXIBLE
    _, reader = read_response_header(frame, ApiKey.PRODUCE, version)
    topics = [
        ProducedTopic(*row) for row in read_topics(reader, version, flexible, _take_partition)
    ]
    throttle_time_ms = reader.i32()
    if flexible:
        reader.skip_tags()
    return ProduceResponse(topics, throttle_time_ms)


def _take_partition(reader: Reader, version: int) -> ProducedPartition:
    if version < 5:
        index, error_code, base_offset, append_time_ms = reader.unpack(_PARTITION_V3)
        return ProducedPartition(index, error_code, base_offset, append_time_ms)
    index, error_code, base_offset, append_time_ms, start = reader.unpack(_PARTITION_V5)
    errors: list[RecordError] = []
    message: str | None = None
    leader_id, leader_epoch = NO_BROKER, NO_EPOCH
    if version >= FLEXIBLE:
        for _ in range(reader.count()):
            errors.append(RecordError(reader.i32(), reader.nullable_string()))
            reader.skip_tags()
        message = reader.nullable_string()
        tags = reader.tags()
        if 0 in tags:
            leader_id, leader_epoch = Reader(tags[0]).unpack(_LEADER)
    elif version == 8:
        for _ in range(reader.classic_count()):
            errors.append(RecordError(reader.i32(), reader.classic_nullable_string()))
        message = reader.classic_nullable_string()
    return ProducedPartition(
        index,
        error_code,
        base_offset,
        append_time_ms,
        start,
        message,
        errors,
        leader_id,
        leader_epoch,
    )
