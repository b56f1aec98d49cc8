"""Tests of the snapshot files of producer state: which ones a log keeps, loads and deletes."""

from __future__ import annotations

import pytest
from support.memory_files import MemFiles

from broker_lite.storage.producer_snapshots import ProducerSnapshots
from broker_lite.storage.producer_state import ProducerState


class Kept:
    """A log's directory with a producer snapshot file for each given offset."""

    def __init__(self, *offsets: int) -> None:
        self.files = MemFiles()
        self.files.make_dir("/d")
        self.snapshots = ProducerSnapshots(self.files, "/d")
        for offset in offsets:
            self.snapshots.save(ProducerState(offset))

    @property
    def offsets(self) -> list[int]:
        return [int(name.partition(".")[0]) for name in self.files.list_dir("/d")]


def test_two_newest_snapshots_are_kept() -> None:
    assert Kept(3, 20, 100).offsets == [20, 100]


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(0, 99, 20), (0, 100, 100), (21, 99, None), (20, 20, 20)]
)
def test_newest_snapshot_within_the_log_is_loaded(
    first: int, last: int, expected: int | None
) -> None:
    found = Kept(20, 100).snapshots.newest(first, last)
    assert (None if found is None else found.next_offset) == expected


def test_damaged_or_misnamed_snapshot_is_not_loaded() -> None:
    kept = Kept(20, 100)
    path = f"/d/{100:020d}.snapshot"
    kept.files.remove(path)
    kept.files.create(path).append([ProducerState(77).encode()])
    found = kept.snapshots.newest(0, 100)
    assert found is not None
    assert found.next_offset == 20
    kept.files.remove(path)
    kept.files.create(path).append([b"LBPS"])
    found = kept.snapshots.newest(0, 100)
    assert found is not None
    assert found.next_offset == 20


def test_producer_snapshots_beyond_the_log_end_or_below_the_log_start_are_deleted() -> None:
    kept = Kept(20, 100)
    assert not kept.snapshots.drop_beyond(100)
    assert kept.snapshots.drop_beyond(99)
    assert kept.offsets == [20]
    kept.snapshots.drop_below(20)
    assert kept.offsets == [20]
    kept.snapshots.drop_below(21)
    assert kept.offsets == []
