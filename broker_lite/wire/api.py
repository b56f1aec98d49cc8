"""The APIs of the protocol, their versions, and the message headers.

An API is a kind of request, such as Produce, with a number (its key) and several versions.
``VERSIONS`` lists the versions that the broker serves. ``PROTOCOL.md`` explains the list. The later
versions of most APIs are flexible: lengths of strings and arrays are varints, and messages have
tagged fields, which a reader may skip.

A request has header version 1, or 2 with tagged fields in flexible versions. A response has header
version 0, or 1 in flexible versions. The response to ApiVersions always has header version 0."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from broker_lite.errors import ProtocolError
from broker_lite.model import NULL_TOPIC_ID
from broker_lite.wire.primitives import I32, Reader, Writer, put_tag


class ApiKey(IntEnum):
    """The keys of the APIs that logbus's clients and brokers use. Keys from 10000 up are logbus's
    own."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    OFFSETS_FOR_BYTES = 10000
    RECORD_TIMES = 10001
    END_GROUP_OFFSETS = 10002
    JOIN_BATCH = 10003
    END_BATCH = 10004
    KEEP_BATCH = 10005


NO_OPERATIONS = -(1 << 31)
"""The bit field of authorized operations in a response whose request did not ask for it."""

VERSIONS: Mapping[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 12),
    ApiKey.OFFSET_COMMIT: (0, 9),
    ApiKey.OFFSET_FETCH: (1, 8),
    ApiKey.FIND_COORDINATOR: (0, 4),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.ENVELOPE: (0, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ApiKey.OFFSETS_FOR_BYTES: (0, 0),
    ApiKey.RECORD_TIMES: (0, 0),
    ApiKey.END_GROUP_OFFSETS: (0, 0),
    ApiKey.JOIN_BATCH: (0, 0),
    ApiKey.END_BATCH: (0, 0),
    ApiKey.KEEP_BATCH: (0, 0),
}
"""The first and last version of each API that the broker serves."""

ADVERTISED: Mapping[int, tuple[int, int]] = {**VERSIONS, ApiKey.PRODUCE: (0, 13)}
"""The versions that the broker lists when it answers ApiVersions. They include Produce 0 to 2,
which the broker refuses: without them, librdkafka would assume that the broker does not support
compression."""

FLEXIBLE_FROM: Mapping[int, int] = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.SASL_HANDSHAKE: 1 << 15,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.DESCRIBE_ACLS: 2,
    ApiKey.CREATE_ACLS: 2,
    ApiKey.DELETE_ACLS: 2,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 2,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.CREATE_PARTITIONS: 2,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.OFFSET_DELETE: 1,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.UPDATE_FEATURES: 0,
    ApiKey.ENVELOPE: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.UNREGISTER_BROKER: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 0,
    ApiKey.LIST_CONFIG_RESOURCES: 0,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
    ApiKey.OFFSETS_FOR_BYTES: 0,
    ApiKey.RECORD_TIMES: 0,
    ApiKey.END_GROUP_OFFSETS: 0,
    ApiKey.JOIN_BATCH: 0,
    ApiKey.END_BATCH: 0,
    ApiKey.KEEP_BATCH: 0,
}
"""The first flexible version of each API; for SaslHandshake, which has none, a number above all
versions."""


def is_flexible(key: int, version: int) -> bool:
    """Return whether this version of API ``key`` is flexible, that is, has compact lengths and
    tagged fields; False for an unknown API."""
    return version >= FLEXIBLE_FROM.get(key, 1 << 15)


def is_served(key: int, version: int) -> bool:
    """Return whether the broker serves API ``key`` in this version."""
    first, last = VERSIONS.get(key, (0, -1))
    return first <= version <= last


REQUEST_BYTES_MAX = 2 << 20
"""Maximum bytes of a request other than Produce and SyncGroup.

Such a request can name 50,000 partitions with long topic names. Decoding a request of twice this
size with as many items as possible would block the broker's event loop for seconds."""
SYNC_BYTES_MAX = 16 << 20
"""Maximum bytes of a SyncGroup request, which carries the assignment of every member."""
PARTITIONS_MAX = 50_000
"""Maximum partitions of a Produce request, and maximum members of a SyncGroup request. Decoding
more of them would block the broker's event loop for too long."""
ITEMS_MAX = 2 * PARTITIONS_MAX
"""Maximum items in all arrays of a request other than Produce and Fetch: ``PARTITIONS_MAX``
partitions, each of a topic of its own. ``REQUEST_BYTES_MAX`` alone would allow 350,000 topics with
names of four characters, which would block the event loop for seconds."""

BY_TOPIC_ID = 13
"""The first version of Produce and of Fetch that names topics by id instead of by name."""


_REQUEST_BEGINS = struct.Struct(">hhi")


class RequestHeader(NamedTuple):
    """The header of a request. The response repeats ``correlation_id``. ``body_at`` is the position
    in the frame where the body begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def parse_header(frame: memoryview) -> RequestHeader:
    """Decode the header of the request in ``frame``. Raises ProtocolError.

    If the broker serves the version, ``body_at`` is after the header's tagged fields. In other
    versions these fields may have an unknown layout, so ``body_at`` is before them."""
    reader = Reader(frame)
    key, version, correlation_id = reader.unpack(_REQUEST_BEGINS)
    client_id = reader.classic_nullable_string()
    if is_flexible(key, version) and is_served(key, version):
        reader.skip_tags()
    return RequestHeader(key, version, correlation_id, client_id, reader.position)


def why_too_long(key: int, size: int) -> str:
    """Return an error message if a request of ``size`` bytes is too large for API ``key``, or "" if
    not. The limit of Produce is not checked here."""
    most = SYNC_BYTES_MAX if key == ApiKey.SYNC_GROUP else REQUEST_BYTES_MAX
    if size <= most or key == ApiKey.PRODUCE:
        return ""
    return f"a request of API {key} has {size} bytes; at most {most} are allowed"


def write_request_header(
    writer: Writer, key: int, version: int, correlation_id: int, client_id: str | None
) -> None:
    """Write the header of a request, which follows the length of the frame."""
    writer.i16(key)
    writer.i16(version)
    writer.i32(correlation_id)
    writer.classic_nullable_string(client_id)
    if is_flexible(key, version):
        writer.tag_end()


def response_header_bytes(key: int, version: int, correlation_id: int) -> bytes:
    """Return the bytes of a response's header, which follows the length of the frame."""
    if is_flexible(key, version) and key != ApiKey.API_VERSIONS:
        return I32.pack(correlation_id) + b"\x00"
    return I32.pack(correlation_id)


def read_response_header(frame: memoryview, key: int, version: int) -> tuple[int, Reader]:
    """Return the correlation id of the response in ``frame``, and a reader at the start of its
    body."""
    reader = Reader(frame)
    correlation_id = reader.i32()
    if is_flexible(key, version) and key != ApiKey.API_VERSIONS:
        reader.skip_tags()
    return correlation_id, reader


def correlation_id_of(frame: memoryview) -> int:
    """Return the correlation id of the response in ``frame``. Raises ProtocolError for a frame that
    is too short."""
    if len(frame) < 4:
        raise ProtocolError(f"a response of {len(frame)} bytes is too short for a correlation id")
    return int(I32.unpack_from(frame, 0)[0])


T = TypeVar("T")
ResponseT = TypeVar("ResponseT", covariant=True)


class Call(Protocol[ResponseT]):
    """A request of one API in one version, with its response of type ``ResponseT``: the interface
    of the request classes in ``wire.calls``."""

    API_KEY: ClassVar[int]
    VERSION: ClassVar[int]

    def encode(self, writer: Writer) -> None:
        """Write the body of the request."""

    @staticmethod
    def decode(reader: Reader) -> ResponseT:
        """Decode the response's body. Raises ProtocolError."""


def encode_call(call: Call[Any], correlation_id: int, client_id: str | None) -> bytearray:
    """Return the request as a frame, with its length before it."""
    writer = Writer()
    writer.i32(0)
    write_request_header(writer, call.API_KEY, call.VERSION, correlation_id, client_id)
    call.encode(writer)
    I32.pack_into(writer.buffer, 0, len(writer.buffer) - 4)
    return writer.buffer


def decode_call(call: Call[ResponseT] | type[Call[ResponseT]], frame: memoryview) -> ResponseT:
    """Decode the response to ``call``. The caller has checked that the correlation id matches."""
    _, reader = read_response_header(frame, call.API_KEY, call.VERSION)
    return call.decode(reader)


class NodeEndpoint(NamedTuple):
    """The id and address of a partition's leader, which another broker sends to clients that
    request the partition from it (KIP-951)."""

    broker_id: int
    host: str
    port: int
    rack: str | None


def node_endpoints_bytes(nodes: Sequence[NodeEndpoint]) -> bytes:
    """Return the tagged fields at the end of a Produce or Fetch response: field 0, with the
    addresses of leaders (``nodes``), if there are any.

    The refused partitions of the response name the ids of their leaders (KIP-951). Without the
    address, the Java client and franz-go ignore the id and wait for their next metadata request."""
    if not nodes:
        return b"\x00"
    field, section = Writer(), Writer()

    def put(node: NodeEndpoint) -> None:
        field.i32(node.broker_id)
        field.string(node.host)
        field.i32(node.port)
        field.nullable_string(node.rack)
        field.tag_end()

    field.array(nodes, put)
    put_tag(section, 0, bytes(field.buffer))
    return bytes(section.buffer)


def read_topics(
    reader: Reader, version: int, flexible: bool, item: Callable[[Reader, int], T]
) -> list[tuple[str, str, list[T]]]:
    """Decode the topics of a Produce or Fetch message. Return the name, id and partitions of each
    topic.

    A topic has either a name or an id, depending on the version; the other is empty. ``item``
    decodes one partition."""
    topics = []
    for _ in range(reader.count() if flexible else reader.classic_count()):
        name, topic_id = "", NULL_TOPIC_ID
        if version >= BY_TOPIC_ID:
            topic_id = reader.uuid()
        else:
            name = reader.string() if flexible else reader.classic_string()
        count = reader.count() if flexible else reader.classic_count()
        rows = [item(reader, version) for _ in range(count)]
        if flexible:
            reader.skip_tags()
        topics.append((name, topic_id, rows))
    return topics
