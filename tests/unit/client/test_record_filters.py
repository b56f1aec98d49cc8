"""Tests of the filter that selects records by a header's key, or by key and value."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker_lite.client.record_filters import has_header
from broker_lite.record.arrow import HEADERS_TYPE

HEADERS = pa.array(
    [None, [], [("a", b"1")], [("a", b"2"), ("a", b"1=2")], [("b", None), ("", b"")]],
    HEADERS_TYPE,
)


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        ("a", [2, 3]),
        ("a=1", [2]),
        ("a=1=2", [3]),
        ("b", [4]),
        ("b=", []),
        ("=", [4]),
        ("absent", []),
    ],
)
@pytest.mark.parametrize("first", [0, 2])
def test_header_filter_matches_a_header_key_alone_or_a_header_key_and_value(
    wanted: str, rows: list[int], first: int
) -> None:
    found = has_header(HEADERS.slice(first), wanted).to_pylist()
    assert [number + first for number, passes in enumerate(found) if passes] == [
        row for row in rows if row >= first
    ]
