"""Tests of numpy code that decodes many varints together, against code for a single varint."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.row_codec import write_varint

from broker_lite.errors import CorruptMessageError
from broker_lite.record import records, varints

INT64 = st.integers(-(2**63), 2**63 - 1)
EDGES = [0, -1, 1, 63, 64, -64, -65, 8191, 8192, -8192, -8193, 2**31, 2**63 - 1, -(2**63)]


def plain(values: list[int]) -> tuple[bytes, list[int]]:
    """Return the values encoded as varints, one after another, and the start position of each
    varint.
    """
    out, starts = bytearray(), []
    for value in values:
        starts.append(len(out))
        write_varint(out, value)
    return bytes(out), starts


@given(st.lists(st.one_of(st.sampled_from(EDGES), INT64, st.integers(-70, 70)), min_size=1))
def test_varints_round_trip_through_arrays(values: list[int]) -> None:
    data, starts = plain(values)
    body = np.frombuffer(data, np.uint8)
    decoded, after = varints.decode(body, np.array(starts, np.int64))
    assert decoded.tolist() == values
    assert after.tolist() == [*starts[1:], len(data)]
    matrix, widths = varints.encode(np.array(values, np.int64))
    assert b"".join(bytes(row[:width]) for row, width in zip(matrix, widths)) == data


def test_varint_cut_by_the_end_of_the_body_is_detected() -> None:
    body = np.frombuffer(b"\x00\x80", np.uint8)
    with pytest.raises(CorruptMessageError):
        varints.decode(body, np.array([1], np.int64))
    body = np.frombuffer(b"\x80\x00", np.uint8)
    _, after = varints.decode(body, np.array([5], np.int64))
    assert after[0] > len(body)


def test_varint_of_more_than_64_bits_is_refused() -> None:
    data = b"\xff" * 9 + b"\x02"
    with pytest.raises(CorruptMessageError):
        varints.decode(np.frombuffer(data, np.uint8), np.array([0], np.int64))
    with pytest.raises(CorruptMessageError):
        records.read_varint(memoryview(data), 0)
    data = b"\xff" * 9 + b"\x01"
    values, _ = varints.decode(np.frombuffer(data, np.uint8), np.array([0], np.int64))
    assert values[0] == records.read_varint(memoryview(data), 0)[0] == -(2**63)
