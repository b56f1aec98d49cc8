"""Tests of the vectorised search for a row batch's records, compared with a search record by
record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_lite.errors import CorruptMessageError
from broker_lite.record import scan
from broker_lite.record.records import _write_varint

# Many bytes of these contents look like record lengths and attributes.
CONTENT = st.one_of(
    st.lists(st.sampled_from([0, 12, 14, 16, 40, 128, 129, 200]), min_size=5, max_size=300).map(
        bytes
    ),
    st.binary(min_size=5, max_size=300),
    st.integers(5, 9000).map(bytes),
)


def body_of(contents: list[bytes], attributes: int = 0) -> np.ndarray:
    out = bytearray()
    for content in contents:
        _write_varint(out, len(content) + 1)
        out.append(attributes)
        out += content
    return np.frombuffer(bytes(out), np.uint8)


@given(st.lists(CONTENT, min_size=1, max_size=50))
@settings(max_examples=300, deadline=None)
def test_vectorised_search_for_records_equals_a_search_record_by_record(
    contents: list[bytes],
) -> None:
    body = body_of(contents)
    found, ends = scan.find_records(body, len(contents))
    walked, walked_ends = scan._walk(body, len(contents))
    assert found.tolist() == walked.tolist()
    assert ends.tolist() == walked_ends.tolist()
    sizes = [end - start - 1 for start, end in zip(found.tolist(), ends.tolist())]
    assert sizes == [len(content) for content in contents]


@given(st.lists(CONTENT, min_size=1, max_size=20), st.integers(1, 255))
@settings(max_examples=50, deadline=None)
def test_records_with_nonzero_attributes_are_found(contents: list[bytes], attributes: int) -> None:
    body = body_of(contents, attributes)
    _, ends = scan.find_records(body, len(contents))
    assert ends[-1] == len(body)


def test_record_scan_finds_no_record_inside_the_value_of_another_record() -> None:
    # Each record contains an inner record that ends where the outer record ends.
    inner = bytes([0] * 7)
    content = b"abcd" + bytes([2 * len(inner)]) + inner
    body = body_of([content] * 100)
    starts, _ends, _ = scan._candidates(body)
    assert len(starts) >= 100
    found, ends = scan.find_records(body, 100)
    assert found.tolist() == scan._walk(body, 100)[0].tolist()
    assert ends[-1] == len(body)


@pytest.mark.parametrize("count", [1, 9, 11, 1000])
def test_batch_with_a_wrong_record_count_is_corrupt(count: int) -> None:
    with pytest.raises(CorruptMessageError):
        scan.find_records(body_of([b"content"] * 10), count)


def test_truncated_batch_body_is_corrupt() -> None:
    body = body_of([b"content", b"x" * 200])
    for size in range(len(body)):
        with pytest.raises(CorruptMessageError):
            scan.find_records(body[:size], 2)
