"""Tests of files of records in CSV format."""

from __future__ import annotations

import csv
import io

import pyarrow as pa

from broker_lite.client.record_files import COLUMNS, WRITERS
from broker_lite.record.arrow import HEADERS_TYPE, TIMESTAMP_TYPE


def test_csv_export_keeps_several_headers_of_one_name() -> None:
    """Regression: headers were written as a JSON object, so only the last of several equal names
    remained."""
    pairs = [("trace", b"1"), ("trace", b"2")]
    batch = pa.record_batch(
        {
            "partition": pa.array([0, 0], pa.int32()),
            "offset": pa.array([7, 8], pa.int64()),
            "timestamp": pa.array([0, None], TIMESTAMP_TYPE),
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b"v,w", None], pa.binary()),
            "headers": pa.array([pairs, None], HEADERS_TYPE),
        }
    )
    file = io.BytesIO()
    write, finish = WRITERS["csv"](file)
    write(batch)
    finish()
    rows = list(csv.reader(io.StringIO(file.getvalue().decode())))
    assert rows[0] == list(COLUMNS)
    time = "1970-01-01T00:00:00.000Z"
    assert rows[1] == ["0", "7", time, "k", "v,w", '[["trace", "1"], ["trace", "2"]]']
    assert rows[2] == ["0", "8", "", "", "", ""]


def test_csv_export_quotes_an_empty_value_but_not_null() -> None:
    batch = pa.record_batch(
        {
            "partition": pa.array([0, 0], pa.int32()),
            "offset": pa.array([7, 8], pa.int64()),
            "timestamp": pa.array([None, None], TIMESTAMP_TYPE),
            "key": pa.array([b"", None], pa.binary()),
            "value": pa.array([None, b""], pa.binary()),
            "headers": pa.array([None, None], HEADERS_TYPE),
        }
    )
    file = io.BytesIO()
    write, finish = WRITERS["csv"](file)
    write(batch)
    finish()
    assert file.getvalue().splitlines()[1:] == [b'0,7,,"",,', b'0,8,,,"",']
