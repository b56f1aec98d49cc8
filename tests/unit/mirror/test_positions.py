"""Tests of the positions and map entries that a mirror stores, from which a killed mirror resumes.

A map entry holds *runs*: parts of the map from source offsets to target offsets.
"""

from __future__ import annotations

from broker_lite.mirror import positions
from broker_lite.mirror.offset_map import OffsetMap, Run
from broker_lite.mirror.rewrite import Content
from broker_lite.model import CommittedOffset, TopicPartition

WHERE = TopicPartition("t", 1)


def content(text: str) -> Content:
    return 1, None, text.encode(), ()


def numbered(text: str, first: int) -> list[tuple[int, Content]]:
    return [(first + at, content(letter)) for at, letter in enumerate(text)]


def test_mirror_position_round_trips_through_commit_metadata() -> None:
    position = positions.Position("source", 40, 30, Run(20, 10))
    commit = positions.commit_of(position, "target")
    assert commit.offset == 30 and commit.topic_id == "target"
    assert positions.read_commit(commit) == position
    settings = {"segment.ms": "7"}
    noted = positions.commit_of(position, "target", None, settings)
    assert positions.read_commit(noted) == position
    assert positions.read_settings({WHERE: commit}) == {}
    assert positions.read_settings({WHERE: noted}) == {"t": settings}
    for text in ("", "7", "null", '{"run": 3}', "[]", '{"settings": 1}'):
        assert positions.read_commit(CommittedOffset(3, metadata=text)) is None
        assert positions.read_settings({WHERE: CommittedOffset(3, metadata=text)}) == {}


def test_offset_map_entry_round_trips_through_its_encoding() -> None:
    entry = positions.CopiedEntry(WHERE, "s", "t", (Run(0, 0), Run(5, 4)), 9, 8)
    assert positions.read_entry(positions.write_entry(entry)) == entry
    for noise in (None, b"", b"{}", b"\xff", b"[1]", b'"x"'):
        assert positions.read_entry(noise) is None


def test_offset_map_is_restored_only_from_entries_of_the_same_topic_ids() -> None:
    entries = [
        positions.CopiedEntry(WHERE, "s", "t", (Run(0, 0),), 9, 9),
        positions.CopiedEntry(WHERE, "other", "t", (Run(50, 1),), 90, 41),
        positions.CopiedEntry(WHERE, "s", "old", (Run(60, 1),), 90, 41),
        positions.CopiedEntry(WHERE, "s", "t", (Run(10, 9),), 12, 11),
    ]
    committed = positions.Position("s", 15, 14, Run(10, 9))
    known = positions.restored(entries, committed, "s", "t")
    assert known.runs == [Run(0, 0), Run(10, 9)]
    assert (known.source_next, known.target_next) == (15, 14)
    known = positions.restored(entries, committed._replace(source_id="x"), "s", "t")
    assert (known.source_next, known.target_next) == (12, 11)
    assert positions.restored((), None, "s", "t").source_next == -1
    assert not positions.is_of_another(entries, None, "s", "t")
    assert not positions.is_of_another((), None, "s", "t")
    assert not positions.is_of_another(entries, None, "recreated", "recreated too")
    assert positions.is_of_another(entries, committed, "recreated", "t")


def test_records_that_were_copied_after_the_committed_position_are_not_copied_again() -> None:
    known = OffsetMap([Run(0, 0)], 10, 8)
    found = positions.reconcile(known, numbered("abc", 8), iter(numbered("abcde", 11)), 11)
    assert found == positions.Reconciliation(3, 0, (Run(11, 8),))
    assert (known.source_next, known.target_next) == (14, 11)


def test_mirror_skips_target_records_of_other_producers_when_it_resumes() -> None:
    known = OffsetMap((), 0, 0)
    found = positions.reconcile(known, numbered("xaybz", 0), iter(numbered("abc", 0)), 5)
    assert (found.copied, found.foreign) == (2, 3)
    assert [known.translate(at) for at in (0, 1, 2)] == [1, 3, 4]


def test_resuming_mirror_counts_equal_records_one_by_one() -> None:
    known = OffsetMap((), 0, 0)
    assert positions.reconcile(known, numbered("aaa", 0), iter(numbered("aaaaa", 0)), 3).copied == 3
    assert known.source_next == 3


def test_long_offset_map_is_split_into_several_entries() -> None:
    assert positions.name_for("4L6g3nShT-eMCtK--X86sw") == "logbus-mirror-4L6g3nShT-eMCtK--X86sw"
    assert positions.name_for("a/b c") == "logbus-mirror-a_b_c"
    known = OffsetMap([Run(at, 2 * at) for at in range(positions.RUNS_PER_ENTRY * 5)], 7, 8)

    def entries(count: int, *, is_cut: bool = False) -> list[positions.CopiedEntry]:
        runs = known.runs[:count]
        return list(positions.entries_of(WHERE, "s", "t", known, runs, is_cut=is_cut))

    assert [len(row.runs) for row in entries(positions.RUNS_PER_ENTRY + 1)] == [10_000, 1]
    assert entries(0) == [] and [row.runs for row in entries(0, is_cut=True)] == [()]
    many = entries(len(known.runs))
    batches = list(positions.in_batches(many))
    assert [positions.read_entry(value) for batch in batches for _, value in batch] == many
    assert max(sum(len(value) for _, value in batch) for batch in batches) <= positions.BATCH_BYTES


def test_offsets_of_records_that_the_source_lost_are_removed_from_the_offset_map() -> None:
    entries = [
        positions.CopiedEntry(WHERE, "s", "t", (Run(0, 0), Run(12, 10)), 17, 15),
        positions.CopiedEntry(WHERE, "s", "t", (), 8, 15),
    ]
    stale = positions.Position("s", 17, 15, Run(12, 10), 3)
    noted = positions.Position("s", 8, 15, Run(0, 0), 2)
    known = positions.restored(entries, noted, "s", "t")
    assert (known.source_next, known.target_next, known.runs) == (8, 15, [Run(0, 0)])
    assert positions.epoch_before(8, noted, "s") == 2
    assert positions.epoch_before(9, noted, "s") == positions.epoch_before(8, noted, "x") == -1
    # The mirror wrote the entry and was killed before it committed the position.
    assert positions.restored(entries, stale, "s", "t").source_next == 17
    again = [*entries, positions.CopiedEntry(WHERE, "s", "t", (Run(9, 15),), 12, 18)]
    known = positions.restored(again, noted._replace(source_next=12, run=Run(9, 15)), "s", "t")
    assert known.runs == [Run(0, 0), Run(9, 15)]
