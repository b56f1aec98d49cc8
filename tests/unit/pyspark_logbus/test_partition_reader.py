"""Tests of how a task of Spark's source converts log batches to Spark's columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from broker_lite.client.fetch.range_reader import FetchedBatch
from broker_lite.errors import DataLossError, InvalidRecordError
from broker_lite.record import arrow
from broker_lite.record import format as fmt
from broker_lite.record.arrow import HEADERS_TYPE, TIMESTAMP_TYPE, Columns
from broker_lite.record.batch import read_header
from pyspark_logbus import partition_reader as reader
from pyspark_logbus.offset_ranges import OffsetRange
from pyspark_logbus.read_task import ReadPlan
from pyspark_logbus.schema import source_schema

RANGE = OffsetRange("topic-a", 3, 100, 200)


def fetched(
    count=4, *, first=0, rows=None, base=100, key=None, value=None, times=None, headers=None,
    base_time=1_700_000_000_123, log_append=False, deltas=None,
):  # fmt: skip
    columns = Columns(
        count,
        key,
        pa.array([b"v%d" % i for i in range(count)]) if value is None else value,
        None if times is None else pa.array(times, pa.int64()).view(TIMESTAMP_TYPE),
        headers,
    )
    header = read_header(arrow.encode(columns, compression="none", timestamp_ms=base_time))
    header = header._replace(base_offset=base)
    if log_append:
        header = header._replace(
            attributes=header.attributes | fmt.ATTRIBUTE_LOG_APPEND_TIME, max_timestamp=999
        )
        columns = columns._replace(timestamp=None)
    if deltas is not None:
        columns = columns._replace(offset_deltas=np.array(deltas, np.int32))
    return FetchedBatch(header, columns, first, count - first if rows is None else rows)


def build(batch, include_headers=True):
    schema = to_arrow_schema(source_schema(include_headers), timezone="UTC")
    arrays = [reader._BUILDERS[name](RANGE, batch) for name in schema.names]
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


def test_batch_that_is_partly_outside_the_range_yields_only_rows_inside_it():
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


def test_batch_of_millions_of_tiny_rows_is_read(monkeypatch):
    """In one Arrow batch, the topic names of nine million rows would exceed 2 GiB, the limit of a
    column."""
    count, name = 9_000_000, "t" * 249
    batch = fetched(1, deltas=np.arange(1))
    columns = Columns(count, None, None, None, None)
    batch = batch._replace(columns=columns, first_row=5, row_count=count - 5)
    monkeypatch.setattr(reader, "_fetch", lambda item, plan, first: [batch])
    plan = ReadPlan("h:1", source_schema(True), True, "", 0, True, 0, 0, "")
    expected, last = 105, None
    for found in reader.read_ranges([RANGE._replace(topic=name, end=count + 100)], plan):
        assert 0 < found.num_rows <= reader.ROWS_MAX
        assert found.column("offset")[0].as_py() == expected
        expected, last = expected + found.num_rows, found
    assert expected == count + 100
    last.validate(full=True)
    assert set(last.column("topic").to_pylist()) == {name}


def test_rows_appended_after_planning_are_reported_as_loss(monkeypatch, caplog):
    """After the batch was planned, an unclean leader election truncates the log.

    Records of leader epoch 4 are then appended at offsets of the planned range.
    """
    batches = [fetched(base=base) for base in (100, 104, 108)]
    epochs = [3, 4, 4]
    batches = [
        each._replace(header=each.header._replace(leader_epoch=epoch))
        for each, epoch in zip(batches, epochs)
    ]
    monkeypatch.setattr(reader, "_range", lambda *_, **__: iter(batches))
    item = RANGE._replace(end=112, end_epoch=3, leader_epoch=4)
    plan = ReadPlan("h:1", source_schema(True), True, "", 0, True, 0, 0, "")
    found = reader.read_ranges([item], plan)
    with pytest.raises(
        DataLossError, match=r"\[104, 112\).*offset 104 has leader epoch 4, at most 3"
    ):
        list(found)
    before = reader.skipped.records
    found = reader.read_ranges([item], replace(plan, fail_on_data_loss=False))
    assert sum(batch.num_rows for batch in found) == 12
    assert reader.skipped.records - before == 8
    assert caplog.text.count("written anew") == 1
    for unknown in (item._replace(end_epoch=-1), item._replace(end_epoch=4)):
        assert sum(batch.num_rows for batch in reader.read_ranges([unknown], plan)) == 12


def test_constant_columns_such_as_the_topic_are_built_once_and_sliced():
    reader._constants.clear()
    one = reader._constant("t", pa.string(), 5_000)
    other = reader._constant("t", pa.string(), 8_000)
    assert one.buffers()[2].address == other.buffers()[2].address
    assert len(reader._constant("t", pa.string(), 9_000)) == 9_000
    for number in range(1_000):
        reader._constant(number, pa.int32(), 1)
    assert len(reader._constants) <= reader._CONSTANTS_MAX


def test_memory_of_constant_columns_is_bounded():
    """Regression: a worker that had read 64 topics with the longest names kept 1 GB of columns."""
    reader._constants.clear()
    for number in range(4):
        reader._constant(f"{number:0249}", pa.string(), reader.ROWS_MAX)
        assert sum(each.nbytes for each in reader._constants.values()) <= reader.CONSTANT_BYTES_MAX


def test_slice_of_a_constant_column_is_reused_only_for_the_same_value_and_type():
    reader._constants.clear()
    reader._slices.clear()
    kinds = [("t", pa.string()), (None, pa.string()), (None, pa.binary()), (7, pa.int32())]
    for value, kind in kinds:
        for count in (3, 3, 5, 3, 70_000, 5):
            found = reader._constant(value, kind, count)
            assert found.type == kind
            assert found.to_pylist() == [value] * count


def test_offset_column_has_consecutive_numbers_from_the_first_offset():
    counting = reader._OffsetColumns()
    for first, count in (
        (0, 5),
        (5, 10),
        (3, 2),
        (reader._STRETCH - 1, 1),
        (reader._STRETCH - 1, 2),
        (1 << 40, reader._STRETCH * 2),
        ((1 << 40) + 7, 9),
        (1, 1),
        (reader.OFFSET_MAX - reader._STRETCH, 3),
        (reader.OFFSET_MAX - 5, 3),
    ):
        found = counting.slice(first, count)
        assert found.to_pylist() == list(range(first, first + count))


def parts(*counts, size=8):
    """Yield fetched batches with these numbers of rows, at consecutive offsets.

    Each value has ``size`` bytes.
    """
    at = 0
    for count in counts:
        yield RANGE, fetched(count, base=at, value=pa.array([bytes(size)] * count))
        at += count


def joined(found):
    schema = to_arrow_schema(source_schema(True), timezone="UTC")
    return [reader._build(group, schema) for group in reader._resize(found)]


def offsets(batches):
    return pa.Table.from_batches(batches).column("offset").to_pylist()


def test_small_batches_are_concatenated_in_order():
    counts = [1] * 2_500 + [5_000] + [999] * 12 + [3]
    found = joined(parts(*counts))
    assert [batch.num_rows for batch in found] == [2_500, 5_000, 10_989, 1_002]
    assert offsets(found) == list(range(sum(counts)))


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
    whole = reader._build(MIXED[name], schema)
    whole.validate(full=True)
    alone = pa.Table.from_batches([reader._build([part], schema) for part in MIXED[name]])
    assert whole.to_pylist() == alone.to_pylist()


def test_batches_of_large_rows_are_concatenated_only_up_to_the_byte_limit():
    found = joined(parts(1, 1, 1, 1, size=reader.JOINED_BYTES // 2 + 8))
    assert [batch.num_rows for batch in found] == [2, 2]
    found = joined(parts(1, 1, size=reader.JOINED_BYTES + 8))
    assert [batch.num_rows for batch in found] == [1, 1]


def test_size_of_a_concatenated_batch_is_limited_by_its_decoded_bytes(monkeypatch):
    """Regression: the limit counted compressed bytes.

    258 batches of 8 MB of zeros, each 300 bytes long in the log, overflowed an Arrow column. The
    rows after them were lost.
    """
    monkeypatch.setattr(reader, "JOINED_BYTES", 2_000)
    groups = list(reader._resize(parts(*[3] * 40, size=100)))
    sizes = [sum(reader._size(rows) for _, rows in group) for group in groups]
    assert sum(map(len, groups)) == 40 and max(sizes) < 4_000
    assert min(sizes[:-1]) >= 2_000


def test_empty_range_yields_no_batch():
    assert list(reader._resize([])) == []
