"""Tests of the leader epochs that a log records, each with its start offset."""

from __future__ import annotations

from random import Random

import pytest
from support.memory_files import MemFiles

from broker_lite.model import OffsetAndEpoch
from broker_lite.storage.checkpoint import encode_lines, write_atomic
from broker_lite.storage.leader_epochs import LeaderEpochs, load


def chain(*entries: tuple[int, int]) -> LeaderEpochs:
    files = MemFiles()
    files.make_dir("/d")
    files.sync_dir("/")
    return LeaderEpochs(files, "/d", entries)


def test_new_leader_epoch_removes_entries_of_later_epochs_or_offsets() -> None:
    epochs = chain()
    for epoch, offset, expected in [
        (1, 0, ((1, 0),)),
        (1, 5, ((1, 0),)),
        (3, 5, ((1, 0), (3, 5))),
        (4, 5, ((1, 0), (4, 5))),
        (6, 9, ((1, 0), (4, 5), (6, 9))),
        (5, 7, ((1, 0), (4, 5), (5, 7))),
        (9, 0, ((9, 0),)),
    ]:
        epochs.assign(epoch, offset)
        assert epochs.entries == expected
    assert epochs.latest == 9


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, (10, 0)), (2, (10, 2)), (3, (20, 2)), (5, (20, 2)), (7, (30, 7)), (8, None), (-1, None)],
)
def test_end_offset_of_an_unknown_epoch_is_that_of_the_next_lower_epoch(
    epoch: int, expected: tuple[int, int] | None
) -> None:
    found = chain((2, 10), (7, 20)).end_offset_for(epoch, 30)
    wanted = {(10, 2): (20, 2)}.get(expected, expected) if expected else None
    assert found == (OffsetAndEpoch(*wanted) if wanted else None)


def test_log_without_leader_epochs_returns_no_end_offset_of_an_epoch() -> None:
    empty = chain()
    assert empty.end_offset_for(0, 5) is None
    assert (empty.latest, empty.epoch_at(3)) == (-1, -1)


def test_epoch_at_returns_the_leader_epoch_in_which_an_offset_was_written() -> None:
    epochs = chain((2, 10), (7, 20))
    assert [epochs.epoch_at(o) for o in (9, 10, 19, 20, 99)] == [-1, 2, 2, 7, 7]


def test_leader_epochs_of_truncated_or_deleted_records_are_removed() -> None:
    epochs = chain((2, 10), (7, 20), (8, 30))
    assert not epochs.truncate_from_end(31)
    assert epochs.truncate_from_end(30)
    assert epochs.entries == ((2, 10), (7, 20))
    assert epochs.truncate_from_start(15)
    assert epochs.entries == ((2, 15), (7, 20))
    assert not epochs.truncate_from_start(15)
    assert epochs.truncate_from_start(25)
    assert epochs.entries == ((7, 25),)
    assert not chain().truncate_from_start(5)
    assert not chain((2, 10)).truncate_from_start(5)


def test_assigned_leader_epoch_is_on_disk_when_the_call_returns() -> None:
    for seed in range(10):
        epochs = chain()
        epochs.assign(3, 0)
        epochs.assign(4, 9)
        files = epochs._files
        assert isinstance(files, MemFiles)
        files.crash(Random(seed))
        again = load(files, "/d")
        assert again is not None and again.entries == ((3, 0), (4, 9))


@pytest.mark.parametrize("lines", [["1 0", "1 5"], ["2 5", "3 5"], ["x 1"], ["1"]])
def test_inconsistent_leader_epoch_file_is_not_loaded(lines: list[str]) -> None:
    epochs = chain()
    write_atomic(epochs._files, "/d", "leader-epoch-checkpoint", encode_lines(lines))
    assert load(epochs._files, "/d") is None


def test_leader_epoch_that_cannot_be_saved_is_not_assigned() -> None:
    files = MemFiles()
    epochs = LeaderEpochs(files, "/no-such-directory", ((2, 10), (7, 20)))
    with pytest.raises(OSError, match="no-such-directory"):
        epochs.assign(8, 30)
    with pytest.raises(OSError, match="no-such-directory"):
        epochs.cut(15)
    assert epochs.entries == ((2, 10), (7, 20))
    assert (epochs.has_epoch_from(20), epochs.has_epoch_from(21)) == (True, False)
