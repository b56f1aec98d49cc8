"""Decode the requests that a broker receives, and encode its responses, by the tables of the
library ``kafka.protocol``.

kafka-python generates these tables, which list every field in every version of an API, from Kafka's
definitions. The ``Reader`` of ``wire.primitives`` decodes requests by the tables and checks every
length and count. The library itself encodes responses. A message is an object of the library's
class, with field names in snake_case; an absent field has its default. ``own_tag`` returns the
tagged field that logbus has added to a request. A topic id is a text of 22 characters in a request,
and ``uuid(text)`` in a response. Only the broker imports this module: the import takes 0.15 s.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import kafka.protocol.admin as admin
import kafka.protocol.consumer as consumer
import kafka.protocol.metadata as metadata
import kafka.protocol.producer as producer
import kafka.protocol.sasl as sasl

from broker_lite.errors import LogbusError, ProtocolError, UnsupportedVersionError, wire_code
from broker_lite.wire.api import (
    ITEMS_MAX,
    PARTITIONS_MAX,
    VERSIONS,
    ApiKey,
    is_flexible,
    response_header_bytes,
)
from broker_lite.wire.calls import broker_transactions, groups, log_dirs, sinks, users, verification
from broker_lite.wire.calls.envelope import EnvelopeRequest, EnvelopeResponse
from broker_lite.wire.calls.group_transactions import (
    TAG_ADD_GROUP,
    AddGroupResponse,
    EndGroupOffsetsRequest,
    EndGroupOffsetsResponse,
)
from broker_lite.wire.calls.offsets import (
    OffsetsForBytesRequest,
    OffsetsForBytesResponse,
    RecordTimesRequest,
    RecordTimesResponse,
)
from broker_lite.wire.calls.replicas import UnregisterBrokerRequest, UnregisterBrokerResponse
from broker_lite.wire.calls.transaction_search import TAG_SEARCH, FoundTransactions
from broker_lite.wire.layout import codec_of
from broker_lite.wire.primitives import I32, Buffer, Reader, Writer, put_tag, uuid_bytes

Message = Any
"""A request or response, as an object of a class of ``kafka.protocol`` (kafka-python), whose
classes have no type annotations."""

SaslHandshakeResponse: Any = sasl.SaslHandshakeResponse
SaslAuthenticateResponse: Any = sasl.SaslAuthenticateResponse
AlterUserScramCredentialsResponse: Any = admin.AlterUserScramCredentialsResponse
ApiVersionsResponse: Any = metadata.ApiVersionsResponse
MetadataResponse: Any = metadata.MetadataResponse
FindCoordinatorResponse: Any = metadata.FindCoordinatorResponse
JoinGroupResponse: Any = consumer.JoinGroupResponse
SyncGroupResponse: Any = consumer.SyncGroupResponse
HeartbeatResponse: Any = consumer.HeartbeatResponse
LeaveGroupResponse: Any = consumer.LeaveGroupResponse
ListOffsetsResponse: Any = consumer.ListOffsetsResponse
OffsetCommitResponse: Any = consumer.OffsetCommitResponse
OffsetFetchResponse: Any = consumer.OffsetFetchResponse
OffsetForLeaderEpochResponse: Any = consumer.OffsetForLeaderEpochResponse
InitProducerIdResponse: Any = producer.InitProducerIdResponse
TxnOffsetCommitResponse: Any = producer.TxnOffsetCommitResponse
AddPartitionsToTxnResponse: Any = producer.AddPartitionsToTxnResponse
AddOffsetsToTxnResponse: Any = producer.AddOffsetsToTxnResponse
EndTxnResponse: Any = producer.EndTxnResponse
DescribeTransactionsResponse: Any = admin.DescribeTransactionsResponse
ListTransactionsResponse: Any = admin.ListTransactionsResponse
CreateTopicsResponse: Any = admin.CreateTopicsResponse
DeleteTopicsResponse: Any = admin.DeleteTopicsResponse
CreatePartitionsResponse: Any = admin.CreatePartitionsResponse
DeleteRecordsResponse: Any = admin.DeleteRecordsResponse
AlterConfigsResponse: Any = admin.AlterConfigsResponse
DeleteGroupsResponse: Any = admin.DeleteGroupsResponse
OffsetDeleteResponse: Any = consumer.OffsetDeleteResponse
DescribeAclsResponse: Any = admin.DescribeAclsResponse
CreateAclsResponse: Any = admin.CreateAclsResponse
DeleteAclsResponse: Any = admin.DeleteAclsResponse
DescribeClientQuotasResponse: Any = admin.DescribeClientQuotasResponse
AlterClientQuotasResponse: Any = admin.AlterClientQuotasResponse
DescribeConfigsResponse: Any = admin.DescribeConfigsResponse
IncrementalAlterConfigsResponse: Any = admin.IncrementalAlterConfigsResponse
ElectLeadersResponse: Any = admin.ElectLeadersResponse
AlterPartitionReassignmentsResponse: Any = admin.AlterPartitionReassignmentsResponse
ListPartitionReassignmentsResponse: Any = admin.ListPartitionReassignmentsResponse
DescribeClusterResponse: Any = admin.DescribeClusterResponse
DescribeLogDirsResponse: Any = admin.DescribeLogDirsResponse
ListGroupsResponse: Any = admin.ListGroupsResponse
DescribeGroupsResponse: Any = admin.DescribeGroupsResponse
UpdateFeaturesResponse: Any = admin.UpdateFeaturesResponse
DescribeProducersResponse: Any = admin.DescribeProducersResponse
WriteTxnMarkersResponse: Any = producer.WriteTxnMarkersResponse
ListConfigResourcesResponse: Any = admin.ListConfigResourcesResponse
DescribeTopicPartitionsResponse: Any = admin.DescribeTopicPartitionsResponse


def _message_classes() -> dict[int, tuple[Any, Any]]:
    classes = {}
    for module in (admin, consumer, metadata, producer, sasl):
        for name, kind in vars(module).items():
            answer = getattr(module, name.removesuffix("Request") + "Response", None)
            if name.endswith("Request") and hasattr(kind, "_struct") and answer is not None:
                classes[kind.API_KEY] = (kind, answer)
    return classes


MESSAGE_CLASSES = _message_classes()
"""The request and the response class of every API in ``kafka.protocol``, by API key."""


class RequestReader(Reader):
    """Reads the fields of a request. ``items_left`` is the number of items that further arrays may
    have."""

    __slots__ = ("items_left",)

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        super().__init__(buffer, position)
        self.items_left = ITEMS_MAX


Decoder = Callable[[RequestReader], Any]

_OWN_TAGS: dict[Any, tuple[int, Decoder]] = {
    consumer.OffsetCommitRequest.OffsetCommitRequestTopic: (
        groups.TAG_COMMIT_TOPIC_ID,
        Reader.uuid,
    ),
    producer.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic: (
        groups.TAG_COMMIT_TOPIC_ID,
        Reader.uuid,
    ),
    producer.AddOffsetsToTxnRequest: (TAG_ADD_GROUP, Reader.boolean),
    producer.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic: (
        verification.TAG_ASKED_TOPIC_ID,
        Reader.uuid,
    ),
    admin.AlterUserScramCredentialsRequest.ScramCredentialUpsertion: (
        users.TAG_KEEP_OLD,
        Reader.i64,
    ),
    consumer.OffsetFetchRequest: (groups.TAG_FETCH_ORIGIN, Reader.boolean),
    admin.DescribeLogDirsRequest: (log_dirs.TAG_ASKED_STATE, Reader.boolean),
    admin.ListTransactionsRequest: (TAG_SEARCH, Reader.boolean),
    producer.WriteTxnMarkersRequest.WritableTxnMarker: (
        broker_transactions.TAG_COORDINATOR,
        broker_transactions.take_marker_tag,
    ),
}
"""The tagged fields that logbus has added to requests. The key is the class, in ``kafka.protocol``,
of the structure that has the field. The value is the field's tag number, and the function that
decodes the field. Bytes after the value are ignored."""

_ROWS_MAX = {consumer.SyncGroupRequest.SyncGroupRequestAssignment: PARTITIONS_MAX}
"""Maximum number of items in an array of a request, by the class of the items. A SyncGroup request
needs the limit, because it may exceed ``REQUEST_BYTES_MAX``."""

_OWN_REQUESTS: dict[int, Decoder] = {
    UnregisterBrokerRequest.API_KEY: UnregisterBrokerRequest.decode_request,
    EnvelopeRequest.API_KEY: EnvelopeRequest.decode_request,
    OffsetsForBytesRequest.API_KEY: OffsetsForBytesRequest.decode_request,
    RecordTimesRequest.API_KEY: RecordTimesRequest.decode_request,
    EndGroupOffsetsRequest.API_KEY: EndGroupOffsetsRequest.decode_request,
    sinks.JoinBatchRequest.API_KEY: sinks.JoinBatchRequest.decode_request,
    sinks.EndBatchRequest.API_KEY: sinks.EndBatchRequest.decode_request,
    sinks.KeepBatchRequest.API_KEY: sinks.KeepBatchRequest.decode_request,
}
"""The function that decodes a request, for each API that has no tables in ``kafka.protocol``."""

REQUESTS: dict[int, Any] = {
    key: MESSAGE_CLASSES[key][0]
    for key in VERSIONS.keys() - _OWN_REQUESTS.keys() - {ApiKey.PRODUCE, ApiKey.FETCH}
}
"""The request class of each API whose messages are decoded and encoded by the tables of
``kafka.protocol``, by API key."""
_MESSAGES = frozenset(kind for pair in MESSAGE_CLASSES.values() for kind in pair)

_OWN_RESPONSES = frozenset(
    (
        UnregisterBrokerResponse,
        EnvelopeResponse,
        OffsetsForBytesResponse,
        RecordTimesResponse,
        EndGroupOffsetsResponse,
        sinks.SinkResponse,
        groups.OffsetFetchResponse,
        AddGroupResponse,
        users.DescribedUsers,
        verification.VerifiedPartitions,
        FoundTransactions,
    )
)
"""The classes of ``wire.calls`` with which the broker answers: the API has no tables in
``kafka.protocol``, or the response has tagged fields of logbus."""

_F64 = struct.Struct(">d")
_FIXED: dict[str, Decoder] = {
    "int8": Reader.i8,
    "int16": Reader.i16,
    "int32": Reader.i32,
    "int64": Reader.i64,
    "bool": Reader.boolean,
    "float64": lambda reader: reader.unpack(_F64)[0],
    "uuid": Reader.uuid,
}
_FLEXIBLE_STRING: dict[bool, Decoder] = {False: Reader.string, True: Reader.nullable_string}
_CLASSIC_STRING: dict[bool, Decoder] = {
    False: Reader.classic_string,
    True: Reader.classic_nullable_string,
}


def decode(api_key: int, version: int, frame: memoryview, at: int) -> Message:
    """Decode the request in ``frame``, whose body starts at position ``at``.

    An ApiVersions request of an unknown version is accepted, because a broker must answer it. Other
    unknown APIs and versions raise UnsupportedVersionError. A malformed request raises
    ProtocolError."""
    if api_key in _OWN_REQUESTS:
        return _OWN_REQUESTS[api_key](RequestReader(frame, at))
    first, last = VERSIONS.get(api_key, (0, -1))
    if not first <= version <= last or api_key not in REQUESTS:
        if api_key == ApiKey.API_VERSIONS:
            return build(REQUESTS[api_key])
        raise UnsupportedVersionError(f"API {api_key} version {version} is not supported")
    return _request_decoder(api_key, version)(RequestReader(frame, at))


def encode(api_key: int, version: int, correlation_id: int, response: Message) -> bytes:
    """Return ``response`` as a frame, with its length before it. The response to an ApiVersions
    request of an unknown version is encoded in version 0."""
    if type(response) in _OWN_RESPONSES:
        writer = Writer()
        writer.i32(0)
        writer.buffer += response_header_bytes(api_key, version, correlation_id)
        codec_of(type(response)).put(writer, response)
        I32.pack_into(writer.buffer, 0, len(writer.buffer) - 4)
        return bytes(writer.buffer)
    if api_key == ApiKey.API_VERSIONS and not 0 <= version <= VERSIONS[api_key][1]:
        version = 0
    # Drop the header of an earlier encoding: API_VERSION cannot be set while there is a header.
    response._header = None
    response.API_VERSION = version
    response.with_header(correlation_id)
    try:
        frame = response.encode(header=True, framed=True)
        own = response.unknown_tags
        return bytes(frame) if own is None else _tagged(frame, *own)
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        raise AssertionError(f"{type(response).__name__} v{version}: {error}") from error


def _tagged(frame: bytes, number: int, value: bytes) -> bytes:
    """Return the response ``frame`` with a tagged field added at its end. The frame's last byte
    must be 0: no tagged fields."""
    writer = Writer()
    writer.buffer += frame[:-1]
    put_tag(writer, number, value)
    I32.pack_into(writer.buffer, 0, len(writer.buffer) - 4)
    return bytes(writer.buffer)


def set_throttle(response: Message, wait_ms: int) -> None:
    """Set the field ``throttle_time_ms`` of a response, which tells the client how long to wait. A
    response that lacks the field, or whose class is not in ``kafka.protocol``, stays unchanged. The
    broker itself delays the client in any case."""
    if type(response) in _MESSAGES:
        response.throttle_time_ms = wait_ms


def own_tag(item: Message) -> Any:
    """Return the value of the tagged field that logbus has added to this request or item of a
    request; None if the client did not send the field."""
    return item.unknown_tags


def set_own_tag(response: Message, number: int, value: bytes) -> None:
    """Add a tagged field of logbus to a response, which must be of a flexible version and have no
    other tagged fields."""
    response.unknown_tags = (number, value)


def build(kind: Any, **fields: Any) -> Message:
    """Create an object of a message class of ``kafka.protocol``, or of a class inside it, such as
    ``MetadataResponse.MetadataResponseBroker``. Fields that are not given have the library's
    defaults."""
    item = kind.__new__(kind)
    item.tags = item.unknown_tags = item._version = None
    if kind in _MESSAGES:
        item._header = None
    for name, value in fields.items():
        setattr(item, name, value)
    return item


def error_fields(error: LogbusError | None) -> dict[str, Any]:
    """Return the fields ``error_code`` and ``error_message`` of a response or of an item in it.
    None stands for success."""
    message = None if error is None else error.message
    return {"error_code": wire_code(error), "error_message": message}


@lru_cache(maxsize=8192)
def uuid(topic_id: str) -> UUID:
    """Convert a topic id of 22 characters to a UUID object, which responses need."""
    return UUID(bytes=uuid_bytes(topic_id))


@cache
def _request_decoder(api_key: int, version: int) -> Decoder:
    kind = REQUESTS[api_key]
    return struct_decoder(kind, kind._struct, version, is_flexible(api_key, version))


def struct_decoder(kind: Any, table: Any, version: int, flexible: bool) -> Decoder:
    """Return a function that decodes a structure of a ``RequestReader`` by its table, to an object
    of ``kind`` (a class of ``kafka.protocol``) or, if ``kind`` is None, to a SimpleNamespace."""
    steps = [
        (field.name, _field_decoder(field, version, flexible))
        for field in table.untagged_fields(version)
    ]
    own = _OWN_TAGS.get(kind)

    def take(reader: RequestReader) -> Any:
        item = SimpleNamespace() if kind is None else build(kind)
        for name, decoder in steps:
            setattr(item, name, decoder(reader))
        if flexible and own is not None:
            number, value_of = own
            tag = reader.tags().get(number)
            item.unknown_tags = None if tag is None else value_of(RequestReader(tag))
        elif flexible:
            reader.skip_tags()
        return item

    return take


def _field_decoder(field: Any, version: int, flexible: bool) -> Decoder:
    nullable = field.nullable_for_version_q(version)
    if field.is_struct_array():
        inner = struct_decoder(field.data_class, field.array_of, version, flexible)
        return _array_decoder(
            inner, field.name, nullable, flexible, _ROWS_MAX.get(field.data_class)
        )
    if field.is_struct():
        whole = struct_decoder(field.data_class, field, version, flexible)
        return (lambda reader: None if reader.i8() < 0 else whole(reader)) if nullable else whole
    if field.is_array():
        item = _field_decoder(field.array_of, version, flexible)
        return _array_decoder(item, field.name, nullable, flexible)
    if field.type_str == "string":
        return (_FLEXIBLE_STRING if flexible else _CLASSIC_STRING)[nullable]
    if field.type_str in ("bytes", "records"):
        return _bytes_decoder(field.name, nullable, flexible)
    return _FIXED[field.type_str]


def _bytes_decoder(name: str, nullable: bool, flexible: bool) -> Decoder:
    view_of = Reader.view if flexible else Reader.classic_view

    def take(reader: Reader) -> bytes | None:
        view = view_of(reader)
        if view is None and not nullable:
            raise ProtocolError(f"the field {name!r} is null, but it needs bytes")
        return None if view is None else bytes(view)

    return take


def _array_decoder(
    item: Decoder, name: str, nullable: bool, flexible: bool, rows_max: int | None = None
) -> Decoder:
    count_of = Reader.count if flexible else Reader.classic_count

    def take(reader: RequestReader) -> list[Any] | None:
        count = count_of(reader)
        if count < 0:
            if not nullable:
                raise ProtocolError(
                    f"the array {name!r} is null; an array without items must be empty"
                )
            return None
        if rows_max is not None and count > rows_max:
            raise ProtocolError(
                f"the array {name!r} has {count} items; at most {rows_max} are allowed"
            )
        reader.items_left -= count
        if reader.items_left < 0:
            raise ProtocolError(
                f"the request has more than {ITEMS_MAX} items in its arrays; send several requests"
            )
        return [item(reader) for _ in range(count)]

    return take
