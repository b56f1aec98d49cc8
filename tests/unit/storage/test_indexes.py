"""Tests of the offset index and the time index: lookups, and detection of damaged files."""

from __future__ import annotations

import pytest

from broker_lite.storage import offset_index, time_index
from broker_lite.storage.offset_index import CorruptIndex, OffsetIndex
from broker_lite.storage.time_index import TimeIndex

BASE = 1 << 40


def offsets() -> OffsetIndex:
    index = OffsetIndex(BASE)
    for offset, position in ((5, 100), (9, 250), (40, 900)):
        index.add(BASE + offset, position)
    return index


def test_offset_index_finds_the_last_entry_at_or_before_an_offset_or_file_position() -> None:
    index = offsets()
    cases = [(0, (0, 0)), (4, (0, 0)), (5, (5, 100)), (39, (9, 250)), (1000, (40, 900))]
    for offset, (found, position) in cases:
        assert index.floor(BASE + offset) == (BASE + found, position)
    for position, expected in [(99, 0), (100, 100), (899, 250), (10**6, 900)]:
        assert index.floor_position(position).position == expected
    assert OffsetIndex(BASE).last() == (BASE, 0)


def test_truncation_of_an_index_returns_a_copy_without_later_entries() -> None:
    index = offsets()
    cut = index.cut(250)
    cut.add(BASE + 7, 200)
    assert (len(index), len(cut), cut.last()) == (3, 2, (BASE + 7, 200))


def test_time_index_returns_an_offset_before_the_first_possible_match() -> None:
    index = TimeIndex(BASE)
    for timestamp, offset in ((50, 5), (40, 9), (50, 12), (90, 20)):
        index.add(timestamp, BASE + offset)
    assert len(index) == 2
    starts = [index.start_for(t) - BASE for t in (0, 50, 51, 90, 91)]
    assert starts == [0, 0, 5, 5, 20]
    assert index.last_timestamp() == 90
    assert index.cut(BASE + 20).last_timestamp() == 50


def test_index_files_round_trip() -> None:
    facts, index = offset_index.decode(offsets().encode(1000, BASE + 50, True))
    assert facts[:4] == (BASE, 1000, BASE + 50, True)
    assert index.floor(BASE + 9) == (BASE + 9, 250)
    times = TimeIndex(BASE)
    times.add(7, BASE + 1)
    time_facts, again = time_index.decode(times.encode(1000, (3, 4), 9))
    assert time_facts[:5] == (BASE, 1000, 3, 4, 9)
    assert again.start_for(8) == BASE + 1


@pytest.mark.parametrize("kind", ["offset", "time"])
def test_index_file_with_a_flipped_byte_or_a_truncation_is_corrupt(kind: str) -> None:
    times = TimeIndex(BASE)
    times.add(7, BASE + 1)
    made = {"offset": offsets().encode(1000, BASE + 50, False), "time": times.encode(9, (1, 2), 7)}
    decode = {"offset": offset_index.decode, "time": time_index.decode}[kind]
    data = made[kind]
    for i in range(len(data)):
        broken = bytearray(data)
        broken[i] ^= 0x10
        with pytest.raises(CorruptIndex):
            decode(bytes(broken))
        with pytest.raises(CorruptIndex):
            decode(data[:i])


def test_index_entry_beyond_the_log_is_corrupt() -> None:
    with pytest.raises(CorruptIndex, match="beyond"):
        offset_index.decode(offsets().encode(900, BASE + 50, False))
