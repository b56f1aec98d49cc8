"""The fields of requests that the broker refuses and that the library ``kafka.protocol`` does not
know, and the fields of their responses.

``refusals`` encodes error responses by these tables. ``OLD`` has the requests of clients before
Kafka 2.1, and ``NEWEST`` all others up to Kafka 4.3's clients. Requests between Kafka's own brokers
and controllers are not included. A field that is always empty in an error response is declared with
a simpler type that has the same bytes, such as ``[]int8`` for an array of structures.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kafka.protocol.schemas import StructField

from broker_lite.wire.api import ApiKey

Field = tuple[str, Any] | tuple[str, Any, str]
"""A field: its name, its type, and optionally the versions that have it. A field whose type ends in
``?`` may be null. The type of an array of structures is the list of the structure's fields, or a
tuple of them if the array may be null."""


_NO_STRUCT = "struct?"
"""The type of a structure that is always null in an error response."""


def _table(versions: str, *fields: Field) -> Any:
    return StructField(
        {"name": "Old", "type": "Old", "versions": versions, "fields": list(map(_json, fields))}
    )


def _json(field: Field) -> dict[str, Any]:
    name, kind, versions = field if len(field) == 3 else (*field, "0+")
    definition = {"name": name, "versions": versions}
    if kind == _NO_STRUCT:
        inner = _json(("never_there", "int8"))
        return {**definition, "type": "Old", "fields": [inner], "nullableVersions": "0+"}
    if isinstance(kind, tuple):
        return {**_json((name, [*kind], versions)), "nullableVersions": "0+"}
    if isinstance(kind, list):
        return {**definition, "type": "[]Old", "fields": list(map(_json, kind))}
    nullable = {"nullableVersions": "0+"} if kind.endswith("?") else {}
    return {**definition, **nullable, "type": kind.removesuffix("?")}


_INDEX: Field = ("partition_index", "int32")
_ERROR: Field = ("error_code", "int16")
_NAME: Field = ("name", "string")
_THROTTLE: Field = ("throttle_time_ms", "int32")
_MESSAGE: Field = ("error_message", "string?")
_RESOURCE: tuple[Field, ...] = (("resource_type", "int8"), ("resource_name", "string"))
_DESCRIBE_ACLS, _CREATE_ACLS, _DELETE_ACLS, _ALTER_REPLICA_LOG_DIRS = 29, 30, 31, 34


def _topics(*partition: Field) -> Field:
    return ("topics", [_NAME, ("partitions", list(partition))])


def _acl(text: str) -> tuple[Field, ...]:
    """Return the fields of an ACL, or of a filter that selects ACLs. ``text`` is the type of the
    text fields: "string", or "string?" if they may be null, as in a filter."""
    return (
        ("resource_type", "int8"), ("resource_name", text), ("principal", text), ("host", text),
        ("operation", "int8"), ("permission_type", "int8"),
    )  # fmt: skip


OLD: dict[int, tuple[Any, Any]] = {
    ApiKey.PRODUCE: (
        _table("0-2", ("acks", "int16"), ("timeout_ms", "int32"),
               _topics(_INDEX, ("records", "bytes?"))),
        _table("0-2", _topics(_INDEX, _ERROR, ("base_offset", "int64"),
                              ("log_append_time_ms", "int64", "2+")),
               (*_THROTTLE, "1+")),
    ),
    ApiKey.FETCH: (
        _table("0-3", ("replica_id", "int32"), ("max_wait_ms", "int32"), ("min_bytes", "int32"),
               ("max_bytes", "int32", "3+"),
               _topics(_INDEX, ("fetch_offset", "int64"), ("partition_max_bytes", "int32"))),
        _table("0-3", (*_THROTTLE, "1+"),
               _topics(_INDEX, _ERROR, ("offset", "int64"), ("records", "bytes"))),
    ),
    ApiKey.LIST_OFFSETS: (
        _table("0", ("replica_id", "int32"),
               _topics(_INDEX, ("time", "int64"), ("max_num_offsets", "int32"))),
        _table("0", _topics(_INDEX, _ERROR, ("old_style_offsets", "[]int64"))),
    ),
    ApiKey.OFFSET_FETCH: (
        _table("0", ("group_id", "string"), _topics(_INDEX)),
        _table("0", _topics(_INDEX, ("offset", "int64"), ("metadata", "string"), _ERROR)),
    ),
    ApiKey.CREATE_TOPICS: (
        _table("0-1", ("topics", [
            _NAME, ("num_partitions", "int32"), ("replication_factor", "int16"),
            ("assignments", [_INDEX, ("broker_ids", "[]int32")]),
            ("configs", [_NAME, ("value", "string?")])]),
            ("timeout_ms", "int32"), ("validate_only", "bool", "1+")),
        _table("0-1", ("topics", [_NAME, _ERROR, ("error_message", "string?", "1+")])),
    ),
    ApiKey.DELETE_TOPICS: (
        _table("0", ("topics", "[]string"), ("timeout_ms", "int32")),
        _table("0", ("topics", [_NAME, _ERROR])),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        _table("0-1", _topics(_INDEX, ("leader_epoch", "int32"))),
        _table("0-1", _topics(_ERROR, _INDEX, ("leader_epoch", "int32", "1+"),
                              ("offset", "int64"))),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        _table("0", ("results", [("resource_type", "int8"), ("resource_name", "string"),
                                 ("configuration_keys", "[]string?")])),
        _table("0", _THROTTLE, ("results", [
            _ERROR, ("error_message", "string?"), ("resource_type", "int8"),
            ("resource_name", "string"), ("configs", [_NAME, ("value", "string?")])])),
    ),
    _DESCRIBE_ACLS: (
        _table("0", *_acl("string?")),
        _table("0", _THROTTLE, _ERROR, _MESSAGE, ("resources", [
            *_RESOURCE, ("acls", [*_acl("string")[2:]])])),
    ),
    _CREATE_ACLS: (
        _table("0", ("creations", [*_acl("string")])),
        _table("0", _THROTTLE, ("results", [_ERROR, _MESSAGE])),
    ),
    _DELETE_ACLS: (
        _table("0", ("filters", [*_acl("string?")])),
        _table("0", _THROTTLE, ("filter_results", [
            _ERROR, _MESSAGE, ("matching_acls", [_ERROR, _MESSAGE, *_acl("string")])])),
    ),
    _ALTER_REPLICA_LOG_DIRS: (
        _table("0", ("dirs", [
            ("path", "string"), ("topics", [_NAME, ("partitions", "[]int32")])])),
        _table("0", _THROTTLE, ("results", [
            ("topic_name", "string"), ("partitions", [_INDEX, _ERROR])])),
    ),
}  # fmt: skip
"""The tables of request and response, by API key, for the old versions that only clients before
Kafka 2.1 use. Kafka 4 removed these versions (KIP-896), and ``kafka.protocol`` does not have
them."""


class UnservedApi(NamedTuple):
    """An API of newer Kafka clients that the broker does not serve, with the tables (lists of
    fields) of its request and response.

    ``request`` is None if the response has one error for the whole request, because then no field
    of the request is needed."""

    name: str
    versions: tuple[int, int]
    flexible_from: int
    request: Any
    response: Any


def _of_all(
    name: str, versions: tuple[int, int], *answer: Field, flexible_from: int = 0
) -> UnservedApi:
    return UnservedApi(name, versions, flexible_from, None, _table("0+", *answer))


def _of_groups(name: str, versions: tuple[int, int], *group: Field) -> UnservedApi:
    """Return an API whose request lists groups and whose response has an error for each group.
    ``group`` has the fields of a group in the response that other such APIs lack."""
    request = _table("0+", ("group_ids", "[]string"), ("include_authorized_operations", "bool"))
    epochs: tuple[Field, ...] = (("group_epoch", "int32"), ("assignment_epoch", "int32"))
    row = [_ERROR, _MESSAGE, _GROUP, ("group_state", "string"), *epochs, *group,
           ("members", "[]int8"), ("authorized_operations", "int32")]  # fmt: skip
    return UnservedApi(name, versions, 0, request, _table("0+", _THROTTLE, ("groups", row)))


_GROUP: Field = ("group_id", "string")
_WHOLE: tuple[Field, ...] = (_THROTTLE, _ERROR, _MESSAGE)
_NONE: Field = ("responses", "[]int8")
_LOCK: Field = ("acquisition_lock_timeout_ms", "int32")
_ENDPOINTS: Field = ("node_endpoints", "[]int8")
_BEAT: tuple[Field, ...] = (("member_epoch", "int32"), ("heartbeat_interval_ms", "int32"))
_EXPIRY: tuple[Field, ...] = (_ERROR, ("expiry_timestamp_ms", "int64"), _THROTTLE)

CURES: dict[int, str] = {
    68: "set group.protocol=classic",
    76: "use a consumer group with group.protocol=classic",
    88: "set group.protocol=classic",
}
"""Advice in the error message for an API that the broker refuses, by API key: the client setting
that avoids the API."""

NEWEST: dict[int, UnservedApi] = {
    38: _of_all(
        "CreateDelegationToken", (1, 3), _ERROR, ("principal_type", "string"),
        ("principal_name", "string"), ("requester_type", "string", "3+"),
        ("requester_name", "string", "3+"), ("issued_ms", "int64"), ("expiry_ms", "int64"),
        ("max_ms", "int64"), ("token_id", "string"), ("hmac", "bytes"), _THROTTLE,
        flexible_from=2,
    ),
    39: _of_all("RenewDelegationToken", (1, 2), *_EXPIRY, flexible_from=2),
    40: _of_all("ExpireDelegationToken", (1, 2), *_EXPIRY, flexible_from=2),
    41: _of_all("DescribeDelegationToken", (1, 3), _ERROR, ("tokens", "[]int8"), _THROTTLE,
                flexible_from=2),
    68: _of_all("ConsumerGroupHeartbeat", (0, 1), *_WHOLE, ("member_id", "string?"), *_BEAT,
                ("assignment", _NO_STRUCT)),
    69: _of_groups("ConsumerGroupDescribe", (0, 1), ("assignor_name", "string")),
    71: _of_all(
        "GetTelemetrySubscriptions", (0, 0), _THROTTLE, _ERROR, ("client_instance_id", "uuid"),
        ("subscription_id", "int32"), ("accepted_compression_types", "[]int8"),
        ("push_interval_ms", "int32"), ("telemetry_max_bytes", "int32"),
        ("delta_temporality", "bool"), ("requested_metrics", "[]string"),
    ),
    72: _of_all("PushTelemetry", (0, 0), _THROTTLE, _ERROR),
    76: _of_all("ShareGroupHeartbeat", (1, 1), *_WHOLE, ("member_id", "string?"), *_BEAT,
                ("assignment", _NO_STRUCT)),
    77: _of_groups("ShareGroupDescribe", (1, 1), ("assignor_name", "string")),
    78: _of_all("ShareFetch", (1, 2), *_WHOLE, _LOCK, _NONE, _ENDPOINTS),
    79: _of_all("ShareAcknowledge", (1, 2), *_WHOLE, (*_LOCK, "2+"), _NONE, _ENDPOINTS),
    80: _of_all("AddRaftVoter", (0, 1), *_WHOLE),
    81: _of_all("RemoveRaftVoter", (0, 0), *_WHOLE),
    88: _of_all(
        "StreamsGroupHeartbeat", (0, 0), *_WHOLE, ("member_id", "string"), *_BEAT,
        ("acceptable_recovery_lag", "int32"), ("task_offset_interval_ms", "int32"),
        ("status", "[]int8?"), ("active_tasks", "[]int8?"), ("standby_tasks", "[]int8?"),
        ("warmup_tasks", "[]int8?"), ("endpoint_information_epoch", "int32"),
        ("partitions_by_user_endpoint", "[]int8?"),
    ),
    89: _of_groups("StreamsGroupDescribe", (0, 0), ("topology", _NO_STRUCT)),
    90: UnservedApi(
        "DescribeShareGroupOffsets", (0, 1), 0,
        _table("0+", ("groups", [_GROUP, ("topics", (
            ("topic_name", "string"), ("partitions", "[]int32")))])),
        _table("0+", _THROTTLE, ("groups", [_GROUP, ("topics", "[]int8"), _ERROR, _MESSAGE])),
    ),
    91: _of_all("AlterShareGroupOffsets", (0, 0), *_WHOLE, _NONE),
    92: _of_all("DeleteShareGroupOffsets", (0, 0), *_WHOLE, _NONE),
}  # fmt: skip
"""The API versions of newer Kafka clients that ``kafka.protocol`` does not know, by API key."""
