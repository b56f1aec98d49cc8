"""The eight columns of the source, and checks of a reader's schema and a sink's columns.

Spark checks neither a user's ``.schema(…)`` nor a sink's columns, so this module checks them before
a task reads or writes a row. Tasks make the Arrow schema with Spark's own ``to_arrow_schema``, so
that Arrow and Spark agree on types and nullability. This module runs on the driver and does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from broker_lite.errors import InvalidSchemaError

HEADER_TYPE = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADER_TYPE,
}
"""The columns of the source. Spark's Kafka source has the same names, order and types."""

_NEVER_NULL = frozenset(("topic", "partition", "offset", "timestampType"))


def source_schema(include_headers: bool) -> StructType:
    """Return the schema of a source for which the user gives no ``.schema(…)``."""
    return StructType(
        [
            StructField(name, kind)
            for name, kind in COLUMNS.items()
            if include_headers or name != "headers"
        ]
    )


def check_user_schema(schema: StructType) -> None:
    """Check that the schema has at least one of the source's eight columns, each at most once, with
    its exact type, and no other columns. Raises InvalidSchemaError."""
    if not schema.fields:
        # Refuse the schema: without columns, an Arrow batch cannot give the number of rows.
        raise InvalidSchemaError(f"the schema has no columns; use some of {', '.join(COLUMNS)}")
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise InvalidSchemaError(
                f"the schema names a column {field.name!r}, which the source does not have; use "
                f"some of {', '.join(COLUMNS)}"
            )
        if not _same(field.dataType, kind):
            raise InvalidSchemaError(
                f"column {field.name!r} is {kind.simpleString()}, not "
                f"{field.dataType.simpleString()}; cast it after load()"
            )
        if not field.nullable and field.name not in _NEVER_NULL:
            raise InvalidSchemaError(f"column {field.name!r} can be null; leave NOT NULL out")
    if len(set(schema.names)) != len(schema.names):
        raise InvalidSchemaError(
            f"the schema names a column twice: {', '.join(schema.names)}; name each once"
        )


def _same(given: DataType, expected: DataType) -> bool:
    """Return whether a user's type equals the source's type of the column.

    For ``headers``, the names and types of the struct's fields must be equal too, and the array's
    elements and the fields must be nullable.
    """
    if isinstance(expected, ArrayType):
        return (
            isinstance(given, ArrayType)
            and isinstance(given.elementType, StructType)
            and isinstance(expected.elementType, StructType)
            and [(f.name, f.dataType) for f in given.elementType.fields]
            == [(f.name, f.dataType) for f in expected.elementType.fields]
            and given.containsNull
            and all(field.nullable for field in given.elementType.fields)
        )
    return type(given) is type(expected) and given == expected


class SinkColumns(NamedTuple):
    """The index of each of a sink's columns in its Arrow batches; -1 for an absent column."""

    value: int
    key: int = -1
    topic: int = -1
    partition: int = -1
    headers: int = -1
    timestamp: int = -1


_TEXT = (StringType, VarcharType, CharType)


def sink_columns(schema: StructType, *, topic_option: str, use_timestamp: bool) -> SinkColumns:
    """Check a DataFrame's columns as Spark's Kafka sink does, and ignore extra columns. Raises
    InvalidSchemaError before a row is written."""
    indexes: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name in indexes and name in SinkColumns._fields:
            raise InvalidSchemaError(f"the column {field.name!r} appears twice; drop one")
        indexes.setdefault(name, index)
    if "value" not in indexes:
        raise InvalidSchemaError(
            f"Required attribute 'value' not found; columns: {', '.join(schema.names) or 'none'}"
        )
    if not topic_option and "topic" not in indexes:
        raise InvalidSchemaError(
            "topic option required when no 'topic' attribute is present. Use the option 'topic', "
            "or add a topic column"
        )
    _check(schema, indexes, "topic", _TEXT, "string")
    _check(schema, indexes, "value", (*_TEXT, BinaryType), "string or binary")
    _check(schema, indexes, "key", (*_TEXT, BinaryType), "string or binary")
    _check(schema, indexes, "partition", (IntegerType,), "int")
    if use_timestamp:
        if "timestamp" not in indexes:
            raise InvalidSchemaError(
                "useTimestampColumn=true needs a 'timestamp' column; add it or leave the option out"
            )
        _check(schema, indexes, "timestamp", (TimestampType, TimestampNTZType), "timestamp")
    if "headers" in indexes:
        field = schema.fields[indexes["headers"]]
        if not _is_headers(field.dataType):
            raise InvalidSchemaError(
                "headers must be a(n) array<struct<key:string,value:binary>>, not "
                f"{field.dataType.simpleString()}; cast or drop the column"
            )
    return SinkColumns(
        value=indexes["value"],
        key=indexes.get("key", -1),
        topic=-1 if topic_option else indexes["topic"],
        partition=indexes.get("partition", -1),
        headers=indexes.get("headers", -1),
        timestamp=indexes.get("timestamp", -1) if use_timestamp else -1,
    )


def _check(
    schema: StructType,
    indexes: dict[str, int],
    name: str,
    kinds: Sequence[type[DataType]],
    said: str,
) -> None:
    if name in indexes and not isinstance(schema.fields[indexes[name]].dataType, tuple(kinds)):
        actual = schema.fields[indexes[name]].dataType.simpleString()
        raise InvalidSchemaError(
            f"{name} must be a(n) {said}, not {actual}; cast it or drop the column"
        )


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, _TEXT)
        and isinstance(fields[1].dataType, BinaryType)
    )
