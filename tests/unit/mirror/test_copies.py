"""Tests of ``Copy``, a mirror's state of one partition: its offset map, position and counts."""

from __future__ import annotations

from support.row_codec import Row, encode_rows

from broker_lite.mirror.copies import Copy
from broker_lite.mirror.offset_map import OffsetMap, Run
from broker_lite.mirror.rewrite import RewrittenBatch
from broker_lite.model import TopicPartition
from broker_lite.record.batch import read_header


def piece(*runs: tuple[int, int]) -> RewrittenBatch:
    count = sum(row[1] for row in runs)
    buffer = encode_rows([Row(at, 0, None, b"v") for at in range(count)])
    return RewrittenBatch(buffer, read_header(buffer), runs)


def copy(known: OffsetMap) -> Copy:
    made = Copy(TopicPartition("t", 0), "source", "target", known)
    made.is_dirty = False
    return made


def test_offset_gap_in_the_source_adds_a_pair_of_offsets_to_the_offset_map() -> None:
    made = copy(OffsetMap())
    assert made.record_write(piece((0, 3), (5, 2)), 0) == 0
    assert made.unsaved == made.known.runs == [Run(0, 0), Run(5, 3)]
    assert (made.copied, made.is_dirty) == (5, True)


def test_mirror_counts_records_of_other_producers_between_copied_records() -> None:
    made = copy(OffsetMap())
    # The target's records before the first copied record are not counted.
    assert made.record_write(piece((0, 2)), 7) == 0
    assert made.record_write(piece((2, 1)), 12) == made.foreign == 3


def test_mirror_stores_its_source_position_only_if_it_has_advanced() -> None:
    made = copy(OffsetMap((), 4, 4))
    made.passed(4)
    assert not made.is_dirty
    made.passed(6)
    assert made.is_dirty and made.known.source_next == 6
