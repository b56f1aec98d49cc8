"""Encode a request frame of any served API in any version, with resources that the caller names.

Requests of Kafka's APIs are built from kafka-python's message tables. A new version or API needs
code here only if it has a field with a new name. Requests of logbus's own APIs are encoded by
logbus.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import kafka.protocol.consumer as consumer
import kafka.protocol.producer as producer

from broker_lite.model import PartitionKey, topic_id_bytes
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, Call, decode_call, encode_call
from broker_lite.wire.calls.envelope import EnvelopeRequest
from broker_lite.wire.calls.group_transactions import EndGroupOffsetsRequest
from broker_lite.wire.calls.offsets import (
    BytesPartition,
    OffsetsForBytesRequest,
    RecordTimesRequest,
    TimePartition,
)
from broker_lite.wire.calls.replicas import UnregisterBrokerRequest
from broker_lite.wire.calls.sinks import EndBatchRequest, JoinBatchRequest, KeepBatchRequest
from broker_lite.wire.consumer_protocol import encode_subscription
from support.row_codec import Row, encode_rows

LIBRARY: Mapping[int, Any] = {
    **tables.REQUESTS,
    ApiKey.PRODUCE: producer.ProduceRequest,
    ApiKey.FETCH: consumer.FetchRequest,
}
"""kafka-python's request class of each API."""

TOPIC, TOPIC_ID, GROUP, TRANSACTIONAL_ID, USER = "topic", "topic_id", "group", "txn", "user"
"""Kinds of resources whose names the caller gives for a request's fields."""

CALL = "call"
"""The key in a request's fields of a function that returns the call for the names of resources. Its
frame is sent instead of one from kafka-python's tables."""


class NameOf(NamedTuple):
    """The value of a field that has the name of a resource of this kind."""

    kind: str


_RESOURCE_FIELDS = {
    "topics.name": TOPIC, "topic_data.name": TOPIC, "v3_and_below_topics.name": TOPIC,
    "topic": TOPIC, "topic_name": TOPIC, "topic_names": TOPIC, "resource_name": TOPIC,
    "topic_id": TOPIC_ID, "group_id": GROUP, "groups": GROUP, "groups_names": GROUP, "key": GROUP,
    "coordinator_keys": GROUP, "transactional_id": TRANSACTIONAL_ID,
    "v3_and_below_transactional_id": TRANSACTIONAL_ID, "transactional_ids": TRANSACTIONAL_ID,
    "users.name": USER, "upsertions.name": USER, "deletions.name": USER,
}  # fmt: skip
_VALUES: Mapping[str, Any] = {
    "acks": -1, "timeout_ms": 1000, "max_wait_ms": 0, "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20, "replica_id": -1, "replica_epoch": -1, "timestamp": -1,
    "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "transaction_timeout_ms": 10_000,
    "num_partitions": 1, "replication_factor": 1, "assignments": [], "forgotten_topics_data": [],
    "configs.name": "retention.ms", "configs.value": "86400000", "protocols.name": "range",
    "metadata": encode_subscription(["t"]), "protocol_type": "consumer", "protocol_name": "range",
    "resource_type": 2, "resource_pattern_type": 3, "principal": "User:new", "host": "*",
    "operation": 3, "permission_type": 3, "resource_type_filter": 1, "pattern_type_filter": 1,
    "configuration_keys": None, "states_filter": [], "types_filter": [], "resource_types": [],
    "state_filters": [], "producer_id_filters": [], "duration_filter": -1, "cursor": None,
    "current_leader_epoch": -1, "member_epoch": -1, "generation_id_or_member_epoch": -1,
    "generation_id": -1, "producer_id": 1, "v3_and_below_producer_id": 1, "count": 2,
    "commit_timestamp": -1, "retention_time_ms": -1, "response_partition_limit": 100,
    "mechanism": 1, "iterations": 4096, "salt": b"0123456789abcdef", "salted_password": b"x" * 32,
    "feature": "group.version", "max_version_level": 1, "upgrade_type": 1, "endpoint_type": 1,
    "session_epoch": -1, "broker_ids": [1], "replicas": None, "transaction_version": 0,
    "include_topic_authorized_operations": True, "include_cluster_authorized_operations": True,
    "include_authorized_operations": True, "election_type": 0, "users": [],
    "client_software_name": "tests", "client_software_version": "1",
}  # fmt: skip
"""Values of fields that a request needs; all other fields are zero or null."""


def batch(value: bytes = b"v", **fields: Any) -> bytes:
    """Return an encoded batch of one record."""
    return bytes(encode_rows([Row(0, 1_700_000_000_000, b"k", value, ())], **fields))


def request_frame(
    key: int, version: int, names: Mapping[str, str], fields: Mapping[str, Any] | None = None
) -> bytes:
    """Return a request's frame without its length. ``names`` has a name for each kind of resource.

    ``fields`` sets fields by name. ``parent.name`` names a field of an array's elements. A value
    ``NameOf`` is replaced by a name from ``names``.
    """
    make = (fields or {}).get(CALL) or _OWN.get(key)
    if make is not None:
        call: Call[Any] = make(names)
        return bytes(encode_call(call, 3, "c"))[4:]
    kind = LIBRARY[key]
    values = {**_VALUES, **(fields or {})}
    filled = _fill(kind._struct._fields, "", version, names, values)
    request = kind(version=version, **filled)
    request.with_header(correlation_id=3, client_id="c")
    return bytes(request.encode(header=True, framed=True))[4:]


def _fill(
    table: Any, parent: str, version: int, names: Mapping[str, str], values: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        field.name: _value(field, parent, version, names, values)
        for field in table
        if field.for_version_q(version)
    }


def _value(
    field: Any, parent: str, version: int, names: Mapping[str, str], values: Mapping[str, Any]
) -> Any:
    for key in (f"{parent}.{field.name}", field.name):
        given = values.get(key)
        if key in values and not isinstance(given, NameOf):
            return given
        kind = given.kind if isinstance(given, NameOf) else _RESOURCE_FIELDS.get(key)
        if kind is not None and not field.is_struct_array():
            name: Any = names[kind]
            if field.type_str == "uuid":
                name = uuid.UUID(bytes=topic_id_bytes(name))
            return [name] if field.is_array() else name
    if field.is_struct_array():
        inner = _fill(field.array_of._fields, field.name, version, names, values)
        return [field.data_class(**inner)]
    if field.is_struct():
        return field.data_class(**_fill(field._fields, field.name, version, names, values))
    if field.is_array():
        return [0] if field.array_of.type_str.startswith("int") else []
    if field.nullable_for_version_q(version):
        return batch() if field.type_str == "records" else None
    zeros: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "records": batch(),
                             "uuid": uuid.UUID(int=0)}  # fmt: skip
    return zeros.get(field.type_str, 0)


_OWN: Mapping[int, Any] = {
    ApiKey.UNREGISTER_BROKER: lambda names: UnregisterBrokerRequest(77),
    ApiKey.ENVELOPE: lambda names: EnvelopeRequest(
        request_frame(ApiKey.CREATE_TOPICS, 7, names), "User:admin", "10.0.0.9"
    ),
    ApiKey.OFFSETS_FOR_BYTES: lambda names: OffsetsForBytesRequest(
        (BytesPartition(names[TOPIC_ID], 0, 0, 100),)
    ),
    ApiKey.RECORD_TIMES: lambda names: RecordTimesRequest((TimePartition(names[TOPIC_ID], 0, 0),)),
    ApiKey.END_GROUP_OFFSETS: lambda names: EndGroupOffsetsRequest(
        names[GROUP], 1, 0, 1, 0, 0, True
    ),
    ApiKey.JOIN_BATCH: lambda names: JoinBatchRequest(
        names[TRANSACTIONAL_ID], "run", 1, 0, 0, 10_000, (PartitionKey(names[TOPIC_ID], 0),)
    ),
    ApiKey.END_BATCH: lambda names: EndBatchRequest(names[TRANSACTIONAL_ID], "run", 1, False),
    ApiKey.KEEP_BATCH: lambda names: KeepBatchRequest(names[TRANSACTIONAL_ID], "run", 1),
}
"""logbus's own APIs, and APIs of Kafka that kafka-python lacks."""


def answer_of(key: int, version: int, frame: bytes) -> Any:
    """Decode a response frame, which begins with its length, to dictionaries and lists."""
    if key in _OWN:
        made: Any = _OWN[key](dict.fromkeys((TOPIC, TOPIC_ID, GROUP, "txn", "user"), "A" * 22))
        return plain(decode_call(made, memoryview(frame)[4:]))
    request = LIBRARY[key]
    modules = (tables.admin, consumer, tables.metadata, producer, tables.sasl)
    name = request.__name__.replace("Request", "Response")
    kind = next(getattr(module, name) for module in modules if hasattr(module, name))
    return kind.decode(frame, version=version, header=True, framed=True).to_dict()


def plain(item: Any) -> Any:
    """Convert nested named tuples to dictionaries and lists."""
    if hasattr(item, "_asdict"):
        return {name: plain(value) for name, value in item._asdict().items()}
    if isinstance(item, tuple | list):
        return [plain(each) for each in item]
    return item


def error_codes(item: Any) -> set[int]:
    """Return all error codes in a response, at any depth."""
    found: set[int] = set()
    if isinstance(item, dict):
        for name, value in item.items():
            if name.endswith("error_code"):
                found.add(value)
            found |= error_codes(value)
    elif isinstance(item, list):
        for each in item:
            found |= error_codes(each)
    return found
