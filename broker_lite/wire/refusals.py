"""Encode error responses to requests that the broker does not carry out: unsupported requests, and
requests that failed because of an error in the broker's code.

The response has the layout that the client expects for its request. As in Kafka, each object in the
request (topic, partition, group) has a row (an item of an array) in the response, and each row gets
the error. The library ``kafka.protocol`` (kafka-python) knows most layouts; the module
``refused_tables`` has the others. Only the broker imports this module, on the event loop's
thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, RequestHeader, is_served
from broker_lite.wire.calls.envelope import EnvelopeResponse
from broker_lite.wire.calls.group_transactions import EndGroupOffsetsResponse
from broker_lite.wire.calls.replicas import UnregisterBrokerResponse
from broker_lite.wire.calls.sinks import SinkResponse
from broker_lite.wire.primitives import I32
from broker_lite.wire.refused_tables import NEWEST, OLD

REFUSED_BYTES_MAX = 256 << 10
"""Maximum bytes of a refused request for which the broker sends an error for each object in it.
Decoding a longer one would block the event loop for too long."""
_ROWS = {
    "coordinators": ("coordinator_keys",),
    "groups": ("group_ids",),
    "responses": ("topic_data", "topics", "topic_names", "resources"),
    "partition_responses": ("partition_data",),
    "partitions": ("partition_indexes",),
    "replica_election_results": ("topic_partitions",),
    "partition_result": ("partitions",),
    "results": ("resources", "topics", "groups_names", "creations", "deletions", "upsertions"),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
    "filter_results": ("filters",),
    "transaction_states": ("transactional_ids",),
}
"""For each array of a response, the possible names of the request's array that lists the same
objects, such as topics."""
_FIELDS = {"topic_name": "name", "partition_index": "partition"}
"""Response fields that identify an object, each with the name of that field in requests."""
_ABSENT = {"node_id": -1, "port": -1, "offset": -1, "timestamp": -1, "base_offset": -1}
"""Values of fields that an error response cannot fill, and whose default (0) would look like a real
value."""
_BY_HAND: Mapping[int, Callable[[int, str], Any]] = {
    ApiKey.ENVELOPE: lambda code, reason: EnvelopeResponse(None, code),
    ApiKey.UNREGISTER_BROKER: lambda code, reason: UnregisterBrokerResponse(0, code, reason),
    ApiKey.END_GROUP_OFFSETS: lambda code, reason: EndGroupOffsetsResponse(code),
    ApiKey.JOIN_BATCH: SinkResponse,
    ApiKey.END_BATCH: SinkResponse,
    ApiKey.KEEP_BATCH: SinkResponse,
}
"""The functions that create an error response from a code and a message, for APIs that are not in
``kafka.protocol`` and whose response has one error for the whole request."""
_DESCRIBE_TOPIC_PARTITIONS = 75
"""API key of DescribeTopicPartitions. An empty list of topics in its request means all topics; the
error response then has one row without a topic name, which carries the error."""


class _Layout(NamedTuple):
    """The tables (lists of fields) to decode a request and to encode its response.

    ``request`` is None if the response does not depend on the request. ``kind`` is the request's
    class in ``kafka.protocol``, or None."""

    request: Any
    response: Any
    kind: Any
    flexible: bool


def refused(request: RequestHeader, frame: memoryview, code: int, reason: str) -> bytes | None:
    """Return a frame with the error response to ``request``, or None if no response exists that the
    client would read and understand; the broker then closes the connection. Raises ProtocolError
    for a malformed request."""
    version = request.api_version
    if request.api_key in _BY_HAND and is_served(request.api_key, version):
        answer = _BY_HAND[request.api_key](code, reason)
        return tables.encode(request.api_key, version, request.correlation_id, answer)
    layout = _layout(request.api_key, version)
    if layout is None:
        return None
    is_long = len(frame) > REFUSED_BYTES_MAX
    if layout.request is None or (is_long and _is_of_the_whole(layout, version)):
        requested: Any = SimpleNamespace()
    elif is_long:
        return None
    else:
        requested = _decoded_request(layout, request, frame)
    if request.api_key == ApiKey.PRODUCE and requested.acks == 0:
        return None
    if request.api_key == _DESCRIBE_TOPIC_PARTITIONS and not requested.topics:
        requested = SimpleNamespace(topics=[SimpleNamespace()])
    refusal = _Refusal(version, code, reason)
    body = refusal.struct(layout.response, requested)
    if not refusal.said and not _asks_nothing(layout.request, version, requested):
        return None
    tagged = None if layout.flexible else False
    header = I32.pack(request.correlation_id) + (b"\x00" if layout.flexible else b"")
    data = header + layout.response.encode(
        body, version=version, compact=layout.flexible, tagged=tagged
    )
    return I32.pack(len(data)) + bytes(data)


def name_of(key: int) -> str:
    """Return Kafka's name of the API ``key``, or "" for an unknown API."""
    if key in NEWEST:
        return NEWEST[key].name
    classes = tables.MESSAGE_CLASSES.get(key)
    return "" if classes is None else str(classes[0].__name__).removesuffix("Request")


def _is_of_the_whole(layout: _Layout, version: int) -> bool:
    """Return whether the response has an error field for the whole request."""
    return any(field.name == "error_code" for field in layout.response.untagged_fields(version))


def _decoded_request(layout: _Layout, request: RequestHeader, frame: memoryview) -> Any:
    reader = tables.RequestReader(frame, request.body_at)
    if layout.flexible and not is_served(request.api_key, request.api_version):
        # Skip the tagged fields of the header. ``parse_header`` skips them only in versions that
        # the broker serves.
        reader.skip_tags()
    decode = tables.struct_decoder(
        layout.kind, layout.request, request.api_version, layout.flexible
    )
    return decode(reader)


class _Refusal:
    """Creates the fields of an error response. ``said`` is true once a field has the error code;
    until then the client could not see the error."""

    def __init__(self, version: int, code: int, reason: str) -> None:
        self.version = version
        self.code = code
        self.reason = reason
        self.said = False

    def struct(self, table: Any, requested: Any, *, is_row: bool = False) -> dict[str, Any]:
        fields = table.untagged_fields(self.version)
        whole = any(field.name == "error_code" for field in fields)
        body = {field.name: self._value(field, requested, whole) for field in fields}
        if not is_row:
            return body
        if isinstance(requested, int | str):
            # The request lists only names or ids, such as those of topics. The answer has a struct
            # for each, with the name or the id as a field.
            body[_name_of(fields, isinstance(requested, str))] = requested
            return body
        for field in fields:
            given = getattr(
                requested, field.name, getattr(requested, _FIELDS.get(field.name, ""), None)
            )
            is_name = not field.is_array() and field.type_str != "bytes"
            if given is not None and is_name and field.name not in _ABSENT:
                is_id = field.type_str == "uuid"
                body[field.name] = tables.uuid(given) if is_id else given
        return body

    def _value(self, field: Any, requested: Any, whole: bool) -> Any:
        if field.name in ("error_code", "partition_error_code"):
            self.said = True
            return self.code
        if field.name == "error_message":
            return self.reason
        if field.is_struct_array():
            # A response with an error for the whole request needs no items, such as topics.
            rows = [] if whole else _requested_rows(field.name, requested)
            return [self.struct(field.array_of, row, is_row=True) for row in rows]
        if field.name in _ABSENT:
            return _ABSENT[field.name]
        nullable = field.nullable_for_version_q(self.version)
        return None if nullable or field.is_struct() else field.default


def _name_of(fields: list[Any], is_text: bool) -> str:
    """Return the name of the field that identifies an object, such as a topic, in a response: the
    first text field if ``is_text``, otherwise the first field of another type."""
    return next(
        str(field.name)
        for field in fields
        if "error" not in field.name and (field.type_str == "string") is is_text
    )


def _asks_nothing(table: Any, version: int, requested: Any) -> bool:
    """Return whether all arrays of the request are empty: a response without items is then correct.
    A null array does not count as empty, because it usually requests everything."""
    arrays = [field for field in table.untagged_fields(version) if field.is_array()]
    given = [getattr(requested, field.name) for field in arrays]
    return bool(arrays) and all(
        rows is not None
        and (not rows or field.is_struct_array())
        and all(_asks_nothing(field.array_of, version, row) for row in rows)
        for field, rows in zip(arrays, given, strict=True)
    )


def _requested_rows(name: str, requested: Any) -> list[Any]:
    """Return the objects of the request, such as topics, that the response lists in its array
    ``name``."""
    rows: list[Any] = []
    for candidate in (name, *_ROWS.get(name, ())):
        rows += getattr(requested, candidate, None) or ()
    if name == "results":
        # Collect the topics of all directories: the response to AlterReplicaLogDirs lists topics,
        # while the request lists directories with topics.
        rows += [topic for row in getattr(requested, "dirs", None) or () for topic in row.topics]
    return rows


@cache
def _layout(key: int, version: int) -> _Layout | None:
    if key in OLD:
        request, response = OLD[key]
        if version <= request._versions[1]:
            return _Layout(request, response, None, False)
    if key == ApiKey.API_VERSIONS:
        return None  # The broker never refuses ApiVersions.
    if key not in tables.MESSAGE_CLASSES:
        return _newer_layout(key, version)
    asks, answers = tables.MESSAGE_CLASSES[key]
    first, last = asks.valid_versions
    if not first <= version <= last:
        return None
    return _Layout(asks._struct, answers._struct, asks, asks.flexible_version_q(version))


def _newer_layout(key: int, version: int) -> _Layout | None:
    newer = NEWEST.get(key)
    if newer is None or not newer.versions[0] <= version <= newer.versions[1]:
        return None
    return _Layout(newer.request, newer.response, None, version >= newer.flexible_from)
