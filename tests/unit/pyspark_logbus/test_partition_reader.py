"""Tests of how a task of Spark's source reads ranges of the log into batches of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from support.range_rows import RANGE, fetched, plan_of

from broker_lite.errors import DataLossError
from broker_lite.record.arrow import Columns
from pyspark_logbus import partition_reader as reader
from pyspark_logbus.row_columns import build
from pyspark_logbus.schema import source_schema


def test_batch_of_millions_of_tiny_rows_is_read(monkeypatch):
    """In one Arrow batch, the topic names of nine million rows would exceed 2 GiB, the limit of a
    column."""
    count, name = 9_000_000, "t" * 249
    batch = fetched(1, deltas=np.arange(1))
    columns = Columns(count, None, None, None, None)
    batch = batch._replace(columns=columns, first_row=5, row_count=count - 5)
    monkeypatch.setattr(reader._TaskReader, "_fetch", lambda task, item, small: [batch])
    plan = plan_of("h:1", source_schema(True))
    expected, last = 105, None
    for found in reader.read_ranges([RANGE._replace(topic=name, end=count + 100)], plan):
        assert 0 < found.num_rows <= reader.ROWS_MAX
        assert found.column("offset")[0].as_py() == expected
        expected, last = expected + found.num_rows, found
    assert expected == count + 100
    last.validate(full=True)
    assert set(last.column("topic").to_pylist()) == {name}


def test_records_rewritten_after_planning_are_reported_as_data_loss(monkeypatch, caplog):
    """After the batch was planned, an unclean leader election truncates the log.

    Records of leader epoch 4 are then appended at offsets of the planned range.
    """
    batches = [fetched(base=base) for base in (100, 104, 108)]
    epochs = [3, 4, 4]
    batches = [
        each._replace(header=each.header._replace(leader_epoch=epoch))
        for each, epoch in zip(batches, epochs)
    ]
    monkeypatch.setattr(reader._TaskReader, "_range", lambda *_: iter(batches))
    item = RANGE._replace(end=112, end_epoch=3, leader_epoch=4)
    plan = plan_of("h:1", source_schema(True))
    found = reader.read_ranges([item], plan)
    with pytest.raises(
        DataLossError, match=r"\[104, 112\).*offset 104 has leader epoch 4, at most 3"
    ):
        list(found)
    before = reader.skipped.records
    found = reader.read_ranges([item], plan_of("h:1", source_schema(True), failOnDataLoss="false"))
    assert sum(batch.num_rows for batch in found) == 12
    assert reader.skipped.records - before == 8
    assert caplog.text.count("written anew") == 1
    for unknown in (item._replace(end_epoch=-1), item._replace(end_epoch=4)):
        assert sum(batch.num_rows for batch in reader.read_ranges([unknown], plan)) == 12


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
    return [build(group, schema) for group in reader._resize(found)]


def offsets(batches):
    return pa.Table.from_batches(batches).column("offset").to_pylist()


def test_small_batches_are_concatenated_in_order():
    counts = [1] * 2_500 + [5_000] + [999] * 12 + [3]
    found = joined(parts(*counts))
    assert [batch.num_rows for batch in found] == [2_500, 5_000, 10_989, 1_002]
    assert offsets(found) == list(range(sum(counts)))


def test_batches_of_large_rows_are_concatenated_only_up_to_the_byte_limit():
    found = joined(parts(1, 1, 1, 1, size=reader.JOINED_BYTES // 2 + 8))
    assert [batch.num_rows for batch in found] == [2, 2]
    found = joined(parts(1, 1, size=reader.JOINED_BYTES + 8))
    assert [batch.num_rows for batch in found] == [1, 1]


def test_limit_of_concatenated_batches_counts_decoded_bytes_not_compressed_bytes(monkeypatch):
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
