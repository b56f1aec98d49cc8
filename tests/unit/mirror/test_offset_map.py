"""Tests of the map from a source partition's offsets to the offsets of the copied records.

A *run* is a pair of first offsets, source and target, of consecutive records. The n-th source
offset of the run maps to its n-th target offset.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_lite.mirror.offset_map import OffsetMap, Run


def test_offset_map_stores_one_entry_for_consecutive_records() -> None:
    known = OffsetMap()
    assert known.translate(0) is None
    assert known.add(5, 0, 10) and not known.add(15, 10, 3)
    assert known.runs == [Run(5, 0)]
    assert [known.translate(at) for at in (0, 5, 17, 18, 19)] == [0, 0, 12, 13, None]


def test_source_offset_in_a_gap_maps_to_the_next_copied_record() -> None:
    known = OffsetMap()
    known.add(0, 0, 3)  # Offset 3 is a transaction marker.
    known.add(4, 3, 2)
    known.passed(8)
    assert [known.translate(at) for at in range(9)] == [0, 1, 2, 3, 3, 4, 5, 5, 5]


def test_records_of_other_producers_on_the_target_shift_later_offsets() -> None:
    known = OffsetMap((), 0, 4)
    assert known.translate(0) == 4
    known.add(0, 4, 2)
    known.add(2, 9, 2)
    assert [known.translate(at) for at in range(5)] == [4, 5, 9, 10, 11]


def test_offset_map_forgets_copies_that_the_target_cluster_has_lost() -> None:
    known = OffsetMap()
    known.add(0, 0, 3)
    known.add(10, 3, 5)
    known.cut(5)
    assert (known.source_next, known.target_next, known.runs) == (12, 5, [Run(0, 0), Run(10, 3)])
    known.cut(3)
    assert (known.source_next, known.runs) == (3, [Run(0, 0)])
    known.cut(2)
    assert (known.source_next, known.target_next) == (2, 2)
    known.cut(7)
    assert known.target_next == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), max_size=20))
def test_offset_map_translates_offsets_of_records_and_of_gaps(
    steps: list[tuple[int, int, int]],
) -> None:
    known, went = OffsetMap((), 0, 0), {}
    source = target = 0
    for gap, foreign, count in steps:
        source, target = source + gap, target + foreign
        known.add(source, target, count)
        went |= {source + i: target + i for i in range(count)}
        source, target = source + count, target + count
    known = OffsetMap(known.runs, known.source_next, known.target_next)
    for offset in range(source + 1):
        found = known.translate(offset)
        assert found is not None
        following = [at for copied, at in went.items() if copied >= offset]
        before = [at for copied, at in went.items() if copied < offset]
        assert found <= min(following, default=target) and all(at < found for at in before)
        if offset in went:
            assert found == went[offset]


def test_source_offset_that_was_truncated_maps_to_the_copy_of_its_new_record() -> None:
    known = OffsetMap()
    known.add(0, 0, 10)
    known.add(12, 10, 5)
    known.cut_source(8)
    assert (known.source_next, known.target_next, known.runs) == (8, 15, [Run(0, 0)])
    assert known.add(8, 15, 4)
    assert [known.translate(at) for at in (7, 8, 11, 12, 13)] == [7, 15, 18, 19, None]
