"""Build random messages with kafka-python's protocol classes, as references for the codecs."""

from __future__ import annotations

import random
import uuid
from typing import Any

from broker_lite.model import topic_id_text
from broker_lite.wire.api import NO_OPERATIONS

_FIXED = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def text(rng: random.Random) -> str:
    return "".join(rng.choice("abcdé-._0") for _ in range(rng.randrange(0, 12)))


def _element(field: Any, version: int, rng: random.Random) -> Any:
    """Return a random value for an element of an array, which is never null."""
    while (found := value(field, version, rng)) is None:
        pass
    return found


def value(field: Any, version: int, rng: random.Random) -> Any:
    """Return a random value of a field in a version; sometimes null if the field allows it."""
    if field.nullable_for_version_q(version) and rng.random() < 0.2:
        return None
    if field.is_struct_array():
        kind, table = field.data_class, field.array_of
        return [fill(kind, table, version, rng) for _ in range(rng.randrange(0, 4))]
    if field.is_struct():
        return fill(field.data_class, field, version, rng)
    if field.is_array():
        return [_element(field.array_of, version, rng) for _ in range(rng.randrange(0, 4))]
    name = field.type_str
    if name in _FIXED:
        half = 1 << (_FIXED[name] - 1)
        return rng.choice([rng.randrange(-half, half), -1, 0, 5])
    if name == "bool":
        return rng.random() < 0.5
    if name == "float64":
        return rng.randrange(1000) / 8
    if name == "uuid":
        return uuid.UUID(bytes=rng.randbytes(16))
    if name in ("bytes", "records"):
        return rng.randbytes(rng.randrange(0, 30))
    if name == "bitfield":
        return None
    assert name == "string", name
    return text(rng)


def fill(kind: Any, table: Any, version: int, rng: random.Random) -> Any:
    """Return an object of ``kind`` with a random value in every field that ``version`` has."""
    fields = {
        field.name: value(field, version, rng)
        for field in table._fields
        if field.for_version_q(version)
    }
    return kind(**fields)


def message(kind: Any, version: int, rng: random.Random) -> Any:
    """Return a random message of this version with all its fields set."""
    fields = {
        field.name: value(field, version, rng)
        for field in kind._struct._fields
        if field.for_version_q(version)
    }
    return kind(version=version, **fields)


def plain(item: Any, table: Any, version: int) -> Any:
    """Convert a message to dictionaries and lists for a comparison, with topic ids as text."""
    if item is None:
        return None
    found = {}
    for field in table._fields:
        if not field.for_version_q(version):
            continue
        inner = getattr(item, field.name)
        if field.is_struct_array():
            inner = inner and [plain(each, field.array_of, version) for each in inner]
        elif field.is_struct():
            inner = plain(inner, field, version)
        elif field.type_str == "uuid":
            inner = id_text(inner)
        elif field.type_str in ("bytes", "records") and inner is not None:
            inner = bytes(inner)
        elif field.type_str == "bitfield" and inner is None:
            inner = NO_OPERATIONS
        found[field.name] = inner
    return found


def id_text(value: Any) -> str:
    """Return a topic id as a text of 22 characters; ``value`` is this text, a UUID, or None for a
    UUID of zeros."""
    if isinstance(value, str):
        return value
    return topic_id_text(bytes(16) if value is None else value.bytes)
