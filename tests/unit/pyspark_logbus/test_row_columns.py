"""Tests of how the rows of a log batch become Spark's columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from support.range_rows import RANGE, fetched

from broker_lite.errors import InvalidRecordError
from broker_lite.record.arrow import HEADERS_TYPE
from pyspark_logbus import row_columns as columns
from pyspark_logbus.partition_reader import ROWS_MAX
from pyspark_logbus.schema import source_schema


def build(batch, include_headers=True):
    schema = to_arrow_schema(source_schema(include_headers), timezone="UTC")
    arrays = [columns._BUILDERS[name](RANGE, batch) for name in schema.names]
    assert [array.type for array in arrays] == schema.types
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def test_batch_has_exactly_the_columns_spark_expects():
    found = build(fetched(key=pa.array([b"a", None, b"", b"d"])))
    found.validate(full=True)
    assert found.column("key").to_pylist() == [b"a", None, b"", b"d"]
    assert found.column("value").to_pylist() == [b"v0", b"v1", b"v2", b"v3"]
    assert found.column("topic").to_pylist() == ["topic-a"] * 4
    assert found.column("partition").to_pylist() == [3] * 4
    assert found.column("offset").to_pylist() == [100, 101, 102, 103]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_123_000] * 4
    assert found.column("timestampType").to_pylist() == [0] * 4
    assert found.column("headers").to_pylist() == [None] * 4


def test_rows_outside_the_requested_offset_range_are_dropped_from_a_batch():
    found = build(fetched(first=1, rows=2, times=[10, 20, -1, 40]))
    assert found.column("value").to_pylist() == [b"v1", b"v2"]
    assert found.column("offset").to_pylist() == [101, 102]
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [20_000, None]


def test_offset_gaps_of_a_compacted_batch_are_kept():
    found = build(fetched(deltas=[0, 5, 6, 9], first=1))
    assert found.column("offset").to_pylist() == [105, 106, 109]


def test_log_append_time_topic_uses_broker_timestamp():
    found = build(fetched(log_append=True))
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [999_000] * 4
    assert found.column("timestampType").to_pylist() == [1] * 4


def test_missing_timestamp_is_null():
    found = build(fetched(base_time=-1))
    assert found.column("timestamp").null_count == 4


def test_timestamp_overflow_error_names_the_record():
    with pytest.raises(InvalidRecordError, match=r"topic-a.* partition 3.*offset 100"):
        build(fetched(times=[1, 2, 3, 1 << 62]))


def test_headers_are_null_for_records_without_headers():
    headers = pa.array([[("a", b"1"), ("a", None)], [], None, [("b", b"")]], HEADERS_TYPE)
    found = build(fetched(headers=headers)).column("headers").to_pylist()
    assert found[0] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert found[1] is None
    assert found[2] is None
    assert found[3] == [{"key": "b", "value": b""}]


def test_batch_of_null_values_is_read():
    found = build(fetched(value=pa.nulls(4, pa.binary())))
    assert found.column("value").null_count == 4


def test_constant_columns_such_as_the_topic_are_built_once_and_sliced():
    columns._constants.clear()
    one = columns._constant("t", pa.string(), 5_000)
    other = columns._constant("t", pa.string(), 8_000)
    assert one.buffers()[2].address == other.buffers()[2].address
    assert len(columns._constant("t", pa.string(), 9_000)) == 9_000
    for number in range(1_000):
        columns._constant(number, pa.int32(), 1)
    assert len(columns._constants) <= columns._CONSTANTS_MAX


def test_memory_of_constant_columns_is_bounded():
    """Regression: a worker that had read 64 topics with the longest names cached 1 GB of columns
    that repeat a topic's name."""
    columns._constants.clear()
    for number in range(4):
        columns._constant(f"{number:0249}", pa.string(), ROWS_MAX)
        assert (
            sum(each.nbytes for each in columns._constants.values()) <= columns.CONSTANT_BYTES_MAX
        )


def test_cached_constant_column_is_reused_only_for_the_same_value_and_type():
    columns._constants.clear()
    columns._slices.clear()
    kinds = [("t", pa.string()), (None, pa.string()), (None, pa.binary()), (7, pa.int32())]
    for value, kind in kinds:
        for count in (3, 3, 5, 3, 70_000, 5):
            found = columns._constant(value, kind, count)
            assert found.type == kind
            assert found.to_pylist() == [value] * count


def test_offset_column_has_consecutive_numbers_from_the_first_offset():
    counting = columns._OffsetColumns()
    for first, count in (
        (0, 5),
        (5, 10),
        (3, 2),
        (columns._STRETCH - 1, 1),
        (columns._STRETCH - 1, 2),
        (1 << 40, columns._STRETCH * 2),
        ((1 << 40) + 7, 9),
        (1, 1),
        (columns.OFFSET_MAX - columns._STRETCH, 3),
        (columns.OFFSET_MAX - 5, 3),
    ):
        found = counting.slice(first, count)
        assert found.to_pylist() == list(range(first, first + count))


MIXED = {
    "one topic": [(RANGE._replace(partition=n), fetched(n + 1, base=7 * n)) for n in range(5)],
    "two topics": [(RANGE, fetched()), (RANGE._replace(topic="b"), fetched(first=2, rows=1))],
    "keys and headers": [
        (RANGE, fetched(2, key=pa.array([b"a", None]))),
        (RANGE, fetched(2, headers=pa.array([[("h", b"1")], None], HEADERS_TYPE))),
    ],
    "times": [
        (RANGE, fetched(2, times=[1, 2])),
        (RANGE, fetched(2, log_append=True)),
        (RANGE, fetched(1, base_time=-1)),
        (RANGE, fetched(1, base_time=-5)),
    ],
    "log append times": [(RANGE, fetched(2, log_append=True)), (RANGE, fetched(3))],
    "gaps": [(RANGE, fetched(3, deltas=[0, 4, 9])), (RANGE, fetched(1, base=500))],
}


@pytest.mark.parametrize("name", MIXED)
def test_concatenated_batches_have_the_rows_of_each_batch(name):
    schema = to_arrow_schema(source_schema(True), timezone="UTC")
    whole = columns.build(MIXED[name], schema)
    whole.validate(full=True)
    alone = pa.Table.from_batches([columns.build([part], schema) for part in MIXED[name]])
    assert whole.to_pylist() == alone.to_pylist()
