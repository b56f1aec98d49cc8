"""Tests of the source's eight columns, of a user's schema and of the sink's columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker_lite.errors import InvalidSchemaError
from broker_lite.record.arrow import HEADERS_TYPE
from pyspark_logbus import schema
from pyspark_logbus.schema import HEADER_TYPE, SinkColumns


def struct(**kinds):
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def test_schema_equals_the_schema_of_sparks_kafka_source():
    found = schema.source_schema(True)
    assert found.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in found)
    assert "headers" not in schema.source_schema(False).names


def test_spark_schema_matches_arrow_schema():
    arrow = to_arrow_schema(schema.source_schema(True), timezone="UTC")
    assert arrow.types == [
        pa.binary(),
        pa.binary(),
        pa.string(),
        pa.int32(),
        pa.int64(),
        pa.timestamp("us", "UTC"),
        pa.int32(),
        HEADERS_TYPE,
    ]


def test_schema_that_the_user_gives_may_select_columns_in_any_order():
    schema.check_user_schema(struct(value=BinaryType()))
    schema.check_user_schema(struct(headers=HEADER_TYPE, offset=LongType(), key=BinaryType()))
    schema.check_user_schema(StructType([StructField("offset", LongType(), nullable=False)]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (struct(value=StringType()), "'value' is binary, not string"),
        (struct(nosuch=IntegerType()), "'nosuch'"),
        (struct(offset=IntegerType()), "'offset' is bigint"),
        (struct(Value=BinaryType()), "'Value'"),
        (struct(headers=MapType(StringType(), BinaryType())), "'headers'"),
        (struct(), "the schema has no columns"),
        (StructType([StructField("key", BinaryType(), nullable=False)]), "NOT NULL"),
        (
            StructType([StructField("key", BinaryType()), StructField("key", BinaryType())]),
            "twice",
        ),
    ],
)
def test_incompatible_user_schema_is_refused(given, said):
    with pytest.raises(InvalidSchemaError, match=said):
        schema.check_user_schema(given)


def sink(given, topic="", use_timestamp=False):
    return schema.sink_columns(given, topic_option=topic, use_timestamp=use_timestamp)


def test_sink_columns_are_case_insensitive_and_extra_ones_ignored():
    found = sink(
        struct(x=LongType(), Value=StringType(), topic=StringType(), KEY=BinaryType(),
               partition=IntegerType(), headers=HEADER_TYPE, timestamp=StringType())
    )  # fmt: skip
    assert found == SinkColumns(value=1, key=3, topic=2, partition=4, headers=5, timestamp=-1)
    assert sink(struct(value=BinaryType()), topic="t").topic == -1
    assert sink(struct(topic=StringType(), value=BinaryType()), topic="t").topic == -1
    timed = struct(value=BinaryType(), timestamp=TimestampType())
    assert sink(timed, "t", use_timestamp=True).timestamp == 1


@pytest.mark.parametrize(
    ("given", "topic", "said"),
    [
        (struct(key=BinaryType()), "t", "Required attribute 'value' not found"),
        (struct(value=BinaryType()), "", "topic option required when no 'topic' attribute"),
        (struct(value=BinaryType(), topic=IntegerType()), "", r"topic must be a\(n\) string"),
        (struct(value=BinaryType(), topic=IntegerType()), "t", r"topic must be a\(n\) string"),
        (struct(value=LongType()), "t", r"value must be a\(n\) string or binary"),
        (
            struct(value=BinaryType(), key=LongType()),
            "t",
            r"key must be a\(n\) string or binary",
        ),
        (
            struct(value=BinaryType(), partition=LongType()),
            "t",
            r"partition must be a\(n\) int",
        ),
        (
            struct(value=BinaryType(), headers=ArrayType(StringType())),
            "t",
            r"headers must be a\(n\) array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_wrong_sink_columns_fail_with_the_messages_of_sparks_kafka_sink(given, topic, said):
    with pytest.raises(InvalidSchemaError, match=said):
        sink(given, topic)


def test_option_use_timestamp_column_requires_a_column_named_timestamp():
    with pytest.raises(InvalidSchemaError, match="needs a 'timestamp' column"):
        sink(struct(value=BinaryType()), "t", use_timestamp=True)
    with pytest.raises(InvalidSchemaError, match=r"timestamp must be a\(n\) timestamp"):
        sink(struct(value=BinaryType(), timestamp=LongType()), "t", use_timestamp=True)
