"""Encode and decode Fetch requests and responses, versions 4 to 18.

The encoder returns a response as a list of parts, which are bytes or file ranges. The lengths of
file ranges are known in advance, so ``sendfile`` can send their bytes from the page cache. The
decoder copies no records: they are slices of the frame. Topics have names up to version 12 and ids
from 13; the other field is empty. logbus's client uses version 17.

logbus adds tagged fields (PROTOCOL.md). With one of them, a client says which version of column
batches (records stored by column) it can read. The broker does not support fetch sessions, so it
always answers with session id 0."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from broker_lite.errors import ProtocolError
from broker_lite.model import NO_BROKER, NO_EPOCH, NO_OFFSET, NULL_TOPIC_ID, OffsetAndEpoch
from broker_lite.wire.api import (
    BY_TOPIC_ID,
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
    Reader,
    Writer,
    put_count,
    put_string,
    uuid_bytes,
    uvarint_bytes,
)

FLEXIBLE = 12
CLIENT_VERSION = 17
NAMES_ADDRESSES = 16
"""The first version whose NOT_LEADER_OR_FOLLOWER answers have the leaders' addresses (KIP-951)."""

TAG_COLUMNS = 10000
"""Number of a tagged field of two bytes in a request: the highest version of column batches
(logbus's own format) that the sender reads, 0 if it reads only row batches, and the flags below
(``FLAG_*``)."""
FLAG_CHECKS_CRC = 1
"""Flag: the sender will check the CRC of every batch, so the broker need not check it."""
FLAG_ENDS_ONLY = 2
"""Flag: the sender needs only the end offsets of partitions. The broker waits for new records as
usual, but answers without records."""

FLAG_REPAIR = 4
"""Flag: the sender has received a corrupt batch. The broker checks the CRCs of the records before
it sends them, even if it has checked them before."""

FLAG_IDLE = 8
"""Flag: the sender is a follower that fetches its idle partitions, on a second connection to the
leader, where waiting delays no other fetch."""

TAG_FILES = 10001
"""Number of a tagged field in a request, with which the sender offers to read records from the
broker's files: its machine id (16 bytes), the maximum bytes to read of a partition (int32), and a
byte of flags (``FLAG_TAKES_TICKETS``), which older clients leave out."""
FLAG_TAKES_TICKETS = 1
"""Flag of ``TAG_FILES``: the sender accepts a ticket for an open file (``FileTicket``) in place of
the file's path."""
TAG_STORED = 10000
"""Number of a tagged field in a partition of a response, which says where in a segment file the
records are stored. The partition then has no records in the response."""
TAG_TRANSACTIONS = 10001
"""Number of a tagged field in a partition of a response: an offset below which the log has no
transaction. The broker sends it if the request has ``FLAG_ENDS_ONLY`` and the log has
transactions."""
TAG_TICKET = 10002
"""Number of a tagged field with the content of ``TAG_STORED``, but a ``FileTicket`` in place of the
file's path."""
MACHINE_BYTES = 16
"""Bytes of a machine id."""
TICKET_BYTES = 16
"""Bytes of the secret of a ``FileTicket``, and of its ``socket_id``."""

ANY_REPLICA = -2
"""Replica id of Kafka's debugging consumer (ReplicaVerificationTool), which may read from
followers."""

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
BYTES_UNLIMITED = 0x7FFFFFFF

_LIMITS_V4 = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_ERROR_SESSION = struct.Struct(">hi")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")
_REPLICA_STATE = struct.Struct(">iq")
_COLUMNS = struct.Struct(">BB")
_FILES = struct.Struct(">16si")
_STORED = struct.Struct(">QQqq")
_TICKET = struct.Struct(f">{TICKET_BYTES}s{TICKET_BYTES}s")
_OFFSET = struct.Struct(">q")
_ANSWER_V4 = struct.Struct(">ihqq")
_ANSWER_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")
# The bytes of a tagged field: number, length, and value with 0 nested tagged fields.
_TAGGED_REPLICA = struct.Struct(">BBiqB")
_TAGGED_EPOCH_END = struct.Struct(">BBiqB")
_TAGGED_LEADER = struct.Struct(">BBiiB")
_NO_PREFERRED_REPLICA = I32.pack(-1)
_NO_RECORDS = memoryview(b"")


class HasFileno(Protocol):
    """An object with an open file descriptor, which stays open as long as the object is
    referenced."""

    def fileno(self) -> int: ...


class FileRange(NamedTuple):
    """A range of a file that is sent as part of a response, without reading it into memory."""

    file: HasFileno
    position: int
    length: int


Part = bytes | bytearray | memoryview | FileRange


class FileTicket(NamedTuple):
    """A secret, which a client exchanges for an open descriptor of one of the broker's segment
    files, and the id of the Unix socket for the exchange. ``repr`` hides the secret."""

    secret: bytes
    socket_id: bytes

    def __repr__(self) -> str:
        return f"FileTicket([hidden], {self.socket_id.hex()})"


class StoredRange(NamedTuple):
    """The place of whole batches in a broker's file, for a client on the same machine. Device and
    inode identify the file, because ``path`` may now belong to another file.

    With a ``ticket``, ``path`` is empty: the broker exchanges the ticket for an open descriptor of
    the file."""

    path: str
    device: int
    inode: int
    position: int
    length: int
    ticket: FileTicket | None = None


class FileOffer(NamedTuple):
    """A reader's offer to read records from the files of a broker on its machine: the machine's id,
    and the maximum bytes of each partition. ``takes_tickets`` says that the reader also accepts a
    ticket for an open file in place of a path."""

    machine: bytes = b""
    file_bytes: int = 0
    takes_tickets: bool = False


NO_FILES = FileOffer()
"""The reader reads no files itself: the broker sends all records in its responses."""


class FetchPartition(NamedTuple):
    """One partition of a fetch request: read at most ``max_bytes`` from ``fetch_offset`` on. -1
    means that an epoch or offset is unknown. Field names are Kafka's."""

    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    log_start_offset: int = NO_OFFSET
    directory_id: str = NULL_TOPIC_ID


class FetchTopic(NamedTuple):
    """The requested partitions of one topic, by ``name`` in versions before 13, later by
    ``topic_id``."""

    name: str
    topic_id: str
    partitions: Sequence[FetchPartition]


class FetchRequest(NamedTuple):
    """A fetch request. ``replica_id`` is the broker id of a follower, -1 for other senders.

    ``columns_body_version`` is the highest version of column batches (logbus's own format) that the
    sender reads, 0 if it reads only row batches. ``flags`` are ``FLAG_*``. ``files`` is the offer
    of a sender on the broker's machine to read records from the broker's files."""

    topics: Sequence[FetchTopic]
    max_wait_ms: int
    min_bytes: int = 1
    max_bytes: int = BYTES_UNLIMITED
    isolation_level: int = READ_UNCOMMITTED
    replica_id: int = NO_BROKER
    replica_epoch: int = -1
    session_id: int = 0
    session_epoch: int = -1
    rack_id: str = ""
    columns_body_version: int = 0
    flags: int = 0
    files: FileOffer = NO_FILES


class AbortedTransaction(NamedTuple):
    """An aborted transaction among the fetched records. Readers skip the records of the producer
    from ``first_offset`` up to the producer's next abort marker."""

    producer_id: int
    first_offset: int


class PartitionAnswer(NamedTuple):
    """The broker's answer for one partition, before it is encoded.

    ``records`` are whole batches, as a list of bytes or file ranges. ``diverging`` tells a follower
    where its log differs from the leader's. ``leader_id`` and ``leader_epoch`` name the partition's
    leader, if this broker does not lead it. ``stored`` replaces the records by their place in a
    file. The log has no transactions below the offset ``transactions_from``; -1 means that it has
    none at all, or that the request had no ``FLAG_ENDS_ONLY``."""

    partition: int
    error_code: int = 0
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    records: Sequence[Part] = ()
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    diverging: OffsetAndEpoch | None = None
    leader_id: int = NO_BROKER
    leader_epoch: int = NO_EPOCH
    stored: StoredRange | None = None
    transactions_from: int = NO_OFFSET


class TopicAnswer(NamedTuple):
    """The answers for the partitions of one topic, which has a name or id as in the request."""

    name: str
    topic_id: str
    partitions: Sequence[PartitionAnswer]


class FetchedPartition(NamedTuple):
    """The answer for one partition, as the client decodes it.

    ``records`` may end within a batch. ``stored`` is the place in a file that the broker sent
    instead of records. The log has no transactions below the offset ``transactions_from``; -1 means
    that it has none at all, or that the request asked for records (had no ``FLAG_ENDS_ONLY``)."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview
    aborted_transactions: Sequence[AbortedTransaction] | None
    diverging: OffsetAndEpoch | None
    leader_id: int
    leader_epoch: int
    stored: StoredRange | None = None
    transactions_from: int = NO_OFFSET


class FetchedTopic(NamedTuple):
    """The decoded answers for the partitions of one topic, which has either a name or an id."""

    name: str
    topic_id: str
    partitions: list[FetchedPartition]


class FetchResponse(NamedTuple):
    """A fetch response, as the client decodes it. ``error_code`` applies to the whole request."""

    error_code: int
    session_id: int
    topics: list[FetchedTopic]
    throttle_time_ms: int


def decode_request(frame: memoryview, version: int, at: int) -> FetchRequest:
    """Decode the request in ``frame``, whose body starts at position ``at``. Raises
    ProtocolError."""
    reader = Reader(frame, at)
    flexible = version >= FLEXIBLE
    replica_id = NO_BROKER if version >= 15 else reader.i32()
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_LIMITS_V4)
    session_id, session_epoch = reader.unpack(_SESSION) if version >= 7 else (0, -1)
    topics = [FetchTopic(*row) for row in read_topics(reader, version, flexible, _take_wanted)]
    if version >= 7:
        _skip_forgotten(reader, version)
    rack_id, replica_epoch, body_version, flags = "", -1, 0, 0
    files = NO_FILES
    if flexible:
        rack_id = reader.string()
        tags = reader.tags()
        if 1 in tags and version >= 15:
            replica_id, replica_epoch = Reader(tags[1]).unpack(_REPLICA_STATE)
        if TAG_COLUMNS in tags:
            body_version, flags = Reader(tags[TAG_COLUMNS]).unpack(_COLUMNS)
        if TAG_FILES in tags:
            field = Reader(tags[TAG_FILES])
            files = FileOffer(*field.unpack(_FILES))
            if field.position < len(tags[TAG_FILES]):
                files = files._replace(takes_tickets=bool(field.i8() & FLAG_TAKES_TICKETS))
    elif version == 11:
        rack_id = reader.classic_string()
    return FetchRequest(
        topics,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        replica_id,
        replica_epoch,
        session_id,
        session_epoch,
        rack_id,
        body_version,
        flags,
        files,
    )


def _take_wanted(reader: Reader, version: int) -> FetchPartition:
    if version >= FLEXIBLE:
        index, epoch, offset, last_epoch, start, size = reader.unpack(_PARTITION_V12)
        tags = reader.tags()
        if not tags:
            return FetchPartition(index, offset, size, epoch, last_epoch, start)
        directory_id = Reader(tags[0]).uuid() if 0 in tags else NULL_TOPIC_ID
        return FetchPartition(index, offset, size, epoch, last_epoch, start, directory_id)
    if version >= 9:
        index, epoch, offset, start, size = reader.unpack(_PARTITION_V9)
        return FetchPartition(index, offset, size, epoch, NO_EPOCH, start)
    if version >= 5:
        index, offset, start, size = reader.unpack(_PARTITION_V5)
        return FetchPartition(index, offset, size, log_start_offset=start)
    index, offset, size = reader.unpack(_PARTITION_V4)
    return FetchPartition(index, offset, size)


def _skip_forgotten(reader: Reader, version: int) -> None:
    """Skip the request's list of topics that leave a fetch session, because the broker does not
    support sessions."""
    if version < FLEXIBLE:
        for _ in range(reader.classic_count()):
            reader.classic_string()
            for _ in range(reader.classic_count()):
                reader.i32()
        return
    for _ in range(reader.count()):
        if version >= BY_TOPIC_ID:
            reader.uuid()
        else:
            reader.string()
        reader.array(Reader.i32)
        reader.skip_tags()


def encode_response(
    topics: Sequence[TopicAnswer],
    version: int,
    correlation_id: int,
    *,
    error_code: int = 0,
    throttle_time_ms: int = 0,
    nodes: Sequence[NodeEndpoint] = (),
) -> list[Part]:
    """Return a response as the parts (bytes or file ranges) of a frame, with its length before it.

    ``error_code`` applies to the whole request; versions before 7 omit it. ``nodes`` has the
    addresses of the leaders that the partitions name by id; versions before 16 omit it."""
    flexible = version >= FLEXIBLE
    out = bytearray(4)
    out += response_header_bytes(ApiKey.FETCH, version, correlation_id)
    out += I32.pack(throttle_time_ms)
    if version >= 7:
        out += _ERROR_SESSION.pack(error_code, 0)
    out += uvarint_bytes(len(topics) + 1) if flexible else I32.pack(len(topics))
    head = out
    parts: list[Part] = [out]
    size = -4
    for topic in topics:
        if version >= BY_TOPIC_ID:
            out += uuid_bytes(topic.topic_id)
        else:
            put_string(out, topic.name, flexible)
        count = len(topic.partitions)
        out += uvarint_bytes(count + 1) if flexible else I32.pack(count)
        for row in topic.partitions:
            _put_answer(out, row, version)
            length = 0
            for part in row.records:
                length += part.length if isinstance(part, FileRange) else len(part)
            out += uvarint_bytes(length + 1) if flexible else I32.pack(length)
            if length:
                size += length + len(out)
                parts += row.records
                out = bytearray()
                parts.append(out)
            if flexible:
                _put_answer_tags(out, row)
        if flexible:
            out.append(0)
    if flexible:
        out += node_endpoints_bytes(nodes if version >= NAMES_ADDRESSES else ())
    if not out:
        parts.pop()
    I32.pack_into(head, 0, size + len(out))
    return parts


def _put_answer(out: bytearray, row: PartitionAnswer, version: int) -> None:
    out += _ANSWER_V5.pack(*row[:5]) if version >= 5 else _ANSWER_V4.pack(*row[:4])
    aborted = row.aborted_transactions
    if version < FLEXIBLE:
        out += I32.pack(-1 if aborted is None else len(aborted))
        for each in aborted or ():
            out += _ABORTED.pack(*each)
    else:
        out += uvarint_bytes(0 if aborted is None else len(aborted) + 1)
        for each in aborted or ():
            out += _ABORTED.pack(*each)
            out.append(0)
    if version >= 11:
        out += _NO_PREFERRED_REPLICA


def _put_answer_tags(out: bytearray, row: PartitionAnswer) -> None:
    diverging, leader_epoch = row.diverging, row.leader_epoch
    stored, transactions_from = row.stored, row.transactions_from
    count = (diverging is not None) + (leader_epoch != NO_EPOCH) + (stored is not None)
    out.append(count + (transactions_from != NO_OFFSET))
    if diverging is not None:
        out += _TAGGED_EPOCH_END.pack(0, 13, diverging.leader_epoch, diverging.offset, 0)
    if leader_epoch != NO_EPOCH:
        out += _TAGGED_LEADER.pack(1, 9, row.leader_id, leader_epoch, 0)
    if stored is not None and stored.ticket is None:
        value = _STORED.pack(*stored[1:5]) + stored.path.encode("utf-8", "surrogateescape")
        out += uvarint_bytes(TAG_STORED) + uvarint_bytes(len(value)) + value
    if transactions_from != NO_OFFSET:
        out += uvarint_bytes(TAG_TRANSACTIONS) + uvarint_bytes(_OFFSET.size)
        out += _OFFSET.pack(transactions_from)
    if stored is not None and stored.ticket is not None:
        value = _STORED.pack(*stored[1:5]) + _TICKET.pack(*stored.ticket)
        out += uvarint_bytes(TAG_TICKET) + uvarint_bytes(len(value)) + value


def encode_request(
    request: FetchRequest,
    *,
    correlation_id: int,
    client_id: str | None,
    version: int = CLIENT_VERSION,
) -> bytearray:
    """Return a request as a frame, with its length before it."""
    flexible = version >= FLEXIBLE
    writer = Writer()
    writer.i32(0)
    write_request_header(writer, ApiKey.FETCH, version, correlation_id, client_id)
    out = writer.buffer
    if version < 15:
        out += I32.pack(request.replica_id)
    out += _LIMITS_V4.pack(
        request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level
    )
    if version >= 7:
        out += _SESSION.pack(request.session_id, request.session_epoch)
    put_count(writer, len(request.topics), flexible)
    for topic in request.topics:
        if version >= BY_TOPIC_ID:
            writer.uuid(topic.topic_id)
        else:
            put_string(out, topic.name, flexible)
        put_count(writer, len(topic.partitions), flexible)
        for row in topic.partitions:
            _put_wanted(out, row, version)
        if flexible:
            writer.tag_end()
    if version >= 7:
        # The field forgotten_topics_data is empty, because logbus uses no fetch sessions.
        put_count(writer, 0, flexible)
    if version >= 11:
        put_string(out, request.rack_id, flexible)
    if flexible:
        _put_request_tags(writer, request, version)
    I32.pack_into(out, 0, len(out) - 4)
    return out


def _put_wanted(out: bytearray, row: FetchPartition, version: int) -> None:
    index, offset, size, epoch, last_epoch, start, directory_id = row
    if version >= FLEXIBLE:
        out += _PARTITION_V12.pack(index, epoch, offset, last_epoch, start, size)
        if version >= 17 and directory_id != NULL_TOPIC_ID:
            out += b"\x01\x00\x10"
            out += uuid_bytes(directory_id)
        else:
            out.append(0)
    elif version >= 9:
        out += _PARTITION_V9.pack(index, epoch, offset, start, size)
    elif version >= 5:
        out += _PARTITION_V5.pack(index, offset, start, size)
    else:
        out += _PARTITION_V4.pack(index, offset, size)


def _put_request_tags(writer: Writer, request: FetchRequest, version: int) -> None:
    is_replica = version >= 15 and request.replica_id != NO_BROKER
    knows_columns = bool(request.columns_body_version or request.flags)
    writer.uvarint(is_replica + knows_columns + bool(request.files.machine))
    if is_replica:
        writer.pack(_TAGGED_REPLICA, 1, 13, request.replica_id, request.replica_epoch, 0)
    if knows_columns:
        writer.uvarint(TAG_COLUMNS)
        writer.uvarint(_COLUMNS.size)
        writer.pack(_COLUMNS, request.columns_body_version, request.flags)
    if request.files.machine:
        writer.uvarint(TAG_FILES)
        writer.uvarint(_FILES.size + 1)
        writer.pack(_FILES, *request.files[:2])
        writer.i8(FLAG_TAKES_TICKETS if request.files.takes_tickets else 0)


def decode_response(frame: memoryview, version: int = CLIENT_VERSION) -> FetchResponse:
    """Decode the response in ``frame``, which starts with the response's header. Raises
    ProtocolError."""
    flexible = version >= FLEXIBLE
    _, reader = read_response_header(frame, ApiKey.FETCH, version)
    throttle_time_ms = reader.i32()
    error_code, session_id = reader.unpack(_ERROR_SESSION) if version >= 7 else (0, 0)
    topics = [FetchedTopic(*row) for row in read_topics(reader, version, flexible, _take_fetched)]
    if flexible:
        reader.skip_tags()
    return FetchResponse(error_code, session_id, topics, throttle_time_ms)


def _take_fetched(reader: Reader, version: int) -> FetchedPartition:
    start = NO_OFFSET
    if version >= 5:
        index, error_code, high_watermark, stable, start = reader.unpack(_ANSWER_V5)
    else:
        index, error_code, high_watermark, stable = reader.unpack(_ANSWER_V4)
    flexible = version >= FLEXIBLE
    aborted: list[AbortedTransaction] | None = None
    count = reader.count() if flexible else reader.classic_count()
    if count >= 0:
        aborted = []
        for _ in range(count):
            aborted.append(AbortedTransaction(*reader.unpack(_ABORTED)))
            if flexible:
                reader.skip_tags()
    if version >= 11:
        reader.i32()  # Skip preferred_read_replica: clients read from leaders only.
    records = reader.view() if flexible else reader.classic_view()
    diverging: OffsetAndEpoch | None = None
    leader_id, leader_epoch = NO_BROKER, NO_EPOCH
    stored: StoredRange | None = None
    transactions_from = NO_OFFSET
    if flexible:
        tags = reader.tags()
        if 0 in tags:
            epoch, end = Reader(tags[0]).unpack(_EPOCH_END)
            diverging = OffsetAndEpoch(end, epoch)
        if 1 in tags:
            leader_id, leader_epoch = Reader(tags[1]).unpack(_LEADER)
        if TAG_STORED in tags:
            stored = _stored_by_path(tags[TAG_STORED])
        if TAG_TICKET in tags:
            stored = _stored_by_ticket(tags[TAG_TICKET])
        if TAG_TRANSACTIONS in tags:
            (transactions_from,) = Reader(tags[TAG_TRANSACTIONS]).unpack(_OFFSET)
    return FetchedPartition(
        index,
        error_code,
        high_watermark,
        stable,
        start,
        _NO_RECORDS if records is None else records,
        aborted,
        diverging,
        leader_id,
        leader_epoch,
        stored,
        transactions_from,
    )


def _stored_by_path(value: memoryview) -> StoredRange:
    tag = Reader(value)
    place = tag.unpack(_STORED)
    path = bytes(value[tag.position :])
    if not path or b"\0" in path:
        raise ProtocolError(
            f"the response names file {path[:80]!r}; a path is not empty and has no NUL byte"
        )
    return _checked(StoredRange(path.decode("utf-8", "surrogateescape"), *place))


def _stored_by_ticket(value: memoryview) -> StoredRange:
    tag = Reader(value)
    place = tag.unpack(_STORED)
    return _checked(StoredRange("", *place)._replace(ticket=FileTicket(*tag.unpack(_TICKET))))


def _checked(stored: StoredRange) -> StoredRange:
    if stored.position < 0 or stored.length <= 0:
        raise ProtocolError(
            f"the response names {stored.length} bytes at position {stored.position} of file "
            f"{stored.path[:80]!r}, which is not a valid file range"
        )
    return stored
