"""An error in the shape that a client expects, for requests that no handler answers.

Those are requests that are not served (UNSUPPORTED_VERSION), and those whose handler fails. Where
the layout of an API's version is known, its rows are answered one by one with the error, as Kafka
does: the tables of ``kafka.protocol`` have most of what clients send, ``refused_tables`` the rest.
None where it is not known, or where no answer is expected. Loop thread; broker only. Nothing that
is declared is believed (``tables``).
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import kafka.protocol.admin as admin
import kafka.protocol.metadata as metadata
import kafka.protocol.producer as producer
import kafka.protocol.sasl as sasl
from kafka.protocol import consumer

from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, RequestHeader, is_served
from broker_lite.wire.primitives import I32, Reader
from broker_lite.wire.refused_tables import NEWEST, OLD

REFUSED_BYTES_MAX = 256 << 10
"""Of longer requests the rows are not gone through: that would keep the broker from others."""
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
"""Where a response calls its rows otherwise than the request does."""
_FIELDS = {"topic_name": "name", "partition_index": "partition"}
"""The same for what names a row."""
_ABSENT = {"node_id": -1, "port": -1, "offset": -1, "timestamp": -1, "base_offset": -1}
"""What is not there, where the tables' own default would be a value."""
_DESCRIBE_TOPIC_PARTITIONS = 75
"""Without any topic it asks for all of them; the error is then that of one without a name."""


class _Layout(NamedTuple):
    """``request`` is None where nothing of it has to be read."""

    request: Any
    response: Any
    kind: Any
    flexible: bool


def refused(request: RequestHeader, frame: memoryview, code: int, reason: str) -> bytes | None:
    """A whole frame that refuses ``request``; None where nothing would be understood.

    Raises ProtocolError for a request that is not what it says it is.
    """
    layout = _layout(request.api_key, request.api_version)
    if layout is None:
        return None
    version = request.api_version
    is_long = len(frame) > REFUSED_BYTES_MAX
    if layout.request is None or (is_long and _is_of_the_whole(layout, version)):
        asked: Any = SimpleNamespace()
    elif is_long:
        return None
    else:
        asked = _asked(layout, request, frame)
    if request.api_key == ApiKey.PRODUCE and asked.acks == 0:
        return None
    if request.api_key == _DESCRIBE_TOPIC_PARTITIONS and not asked.topics:
        asked = SimpleNamespace(topics=[SimpleNamespace()])
    refusal = _Refusal(version, code, reason)
    body = refusal.struct(layout.response, asked)
    if not refusal.said and not _asks_nothing(layout.request, version, asked):
        return None
    tagged = None if layout.flexible else False
    header = I32.pack(request.correlation_id) + (b"\x00" if layout.flexible else b"")
    data = header + layout.response.encode(
        body, version=version, compact=layout.flexible, tagged=tagged
    )
    return I32.pack(len(data)) + bytes(data)


def name_of(key: int) -> str:
    """What Kafka calls an API that is not served; empty where it is not known."""
    if key in NEWEST:
        return NEWEST[key].name
    kind = _kinds().get(key)
    return "" if kind is None else str(kind[0].__name__).removesuffix("Request")


def _is_of_the_whole(layout: _Layout, version: int) -> bool:
    """Whether the answer has room for an error of all that was asked, so that it needs no rows."""
    return any(field.name == "error_code" for field in layout.response.untagged_fields(version))


def _asked(layout: _Layout, request: RequestHeader, frame: memoryview) -> Any:
    reader = Reader(frame, request.body_at)
    if layout.flexible and not is_served(request.api_key, request.api_version):
        # The header's own; ``parse_header`` skips them where it is sure of them.
        reader.skip_tags()
    decode = tables.struct_decoder(
        layout.kind, layout.request, request.api_version, layout.flexible
    )
    return decode(reader)


class _Refusal:
    """Fills a response's table from the request; ``said``: the error is in it."""

    def __init__(self, version: int, code: int, reason: str) -> None:
        self.version = version
        self.code = code
        self.reason = reason
        self.said = False

    def struct(self, table: Any, asked: Any, *, is_row: bool = False) -> dict[str, Any]:
        fields = table.untagged_fields(self.version)
        whole = any(field.name == "error_code" for field in fields)
        body = {field.name: self._value(field, asked, whole) for field in fields}
        if not is_row:
            return body
        if isinstance(asked, int | str):
            # A row that is only its name.
            body[_name_of(fields, isinstance(asked, str))] = asked
            return body
        for field in fields:
            given = getattr(asked, field.name, getattr(asked, _FIELDS.get(field.name, ""), None))
            is_name = not field.is_array() and field.type_str != "bytes"
            if given is not None and is_name and field.name not in _ABSENT:
                is_id = field.type_str == "uuid"
                body[field.name] = tables.uuid(given) if is_id else given
        return body

    def _value(self, field: Any, asked: Any, whole: bool) -> Any:
        if field.name in ("error_code", "partition_error_code"):
            self.said = True
            return self.code
        if field.name == "error_message":
            return self.reason
        if field.is_struct_array():
            # An error of the whole is the error of all its rows.
            rows = [] if whole else _asked_rows(field.name, asked)
            return [self.struct(field.array_of, row, is_row=True) for row in rows]
        if field.name in _ABSENT:
            return _ABSENT[field.name]
        nullable = field.nullable_for_version_q(self.version)
        return None if nullable or field.is_struct() else field.default


def _name_of(fields: list[Any], is_text: bool) -> str:
    """The field of a row that names it."""
    return next(
        str(field.name)
        for field in fields
        if "error" not in field.name and (field.type_str == "string") is is_text
    )


def _asks_nothing(table: Any, version: int, asked: Any) -> bool:
    """Whether its arrays have no rows, or only such as have none: there is nothing to refuse, and
    an answer that is as empty is true. An array that is null mostly asks for everything."""
    arrays = [field for field in table.untagged_fields(version) if field.is_array()]
    given = [getattr(asked, field.name) for field in arrays]
    return bool(arrays) and all(
        rows is not None
        and (not rows or field.is_struct_array())
        and all(_asks_nothing(field.array_of, version, row) for row in rows)
        for field, rows in zip(arrays, given, strict=True)
    )


def _asked_rows(name: str, asked: Any) -> list[Any]:
    """The request's rows that a response's array is about."""
    found: list[Any] = []
    for candidate in (name, *_ROWS.get(name, ())):
        found += getattr(asked, candidate, None) or ()
    if name == "results":
        # AlterReplicaLogDirs: its answer is by topic, whatever the directory.
        found += [topic for row in getattr(asked, "dirs", None) or () for topic in row.topics]
    return found


@cache
def _layout(key: int, version: int) -> _Layout | None:
    if key in OLD:
        request, response = OLD[key]
        if version <= request._versions[1]:
            return _Layout(request, response, None, False)
    kind = _kinds().get(key)
    if kind is None:
        return _newer_layout(key, version)
    asks, answers = kind
    first, last = asks.valid_versions
    if not first <= version <= last:
        return None
    return _Layout(asks._struct, answers._struct, asks, asks.flexible_version_q(version))


def _newer_layout(key: int, version: int) -> _Layout | None:
    newer = NEWEST.get(key)
    if newer is None or not newer.versions[0] <= version <= newer.versions[1]:
        return None
    return _Layout(newer.request, newer.response, None, version >= newer.flexible_from)


@cache
def _kinds() -> dict[int, tuple[Any, Any]]:
    """Every request of the library, served or not, and its response. ApiVersions has rules of its
    own, and always an answer."""
    found = {}
    for module in (admin, consumer, metadata, producer, sasl):
        for name, kind in vars(module).items():
            answer = getattr(module, name.removesuffix("Request") + "Response", None)
            if name.endswith("Request") and hasattr(kind, "_struct") and answer is not None:
                found[kind.API_KEY] = (kind, answer)
    del found[ApiKey.API_VERSIONS]
    return found
