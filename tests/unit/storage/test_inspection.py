"""Tests of the check of a stopped broker's data directory, which reports each kind of damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.stored import DATA, FOLDER, KEY, Disk, segment_name

from broker_lite.storage import paths
from broker_lite.storage.inspection import FileCheck, check_directory, check_partition, inspect_file

LAST = 68


def written() -> Disk:
    """Return a disk with 80 flushed batches of 120 bytes, in segments from offsets 0, 34 and 68."""
    disk = Disk()
    disk.write(80, checkpoint=True)
    return disk


def checked(disk: Disk) -> list[FileCheck]:
    return list(check_directory(disk.files, DATA))


def problems(disk: Disk) -> dict[str, tuple[str, ...]]:
    """Return the problems that ``check_directory`` finds in each file, by file name."""
    return {c.path.rpartition("/")[2]: c.problems for c in checked(disk) if c.problems}


@pytest.mark.parametrize("clean", [False, True])
def test_undamaged_data_directory_has_no_problems(clean: bool) -> None:
    disk = written()
    if clean:
        disk.reopen(clean=True)
    found = checked(disk)
    assert [(c.path.rpartition("/")[2], c.batches, c.end_offset) for c in found] == [
        (segment_name(0), 34, 34),
        (segment_name(34), 34, LAST),
        (segment_name(LAST), 12, 80),
    ]
    assert not any(c.problems for c in found)
    assert sum(c.size_bytes for c in found) == 80 * 120


def test_deleted_records_are_not_reported_missing() -> None:
    disk = written()
    disk.log.delete_records_before(50)
    disk.log.apply_retention(0, 80)
    assert [c.end_offset for c in checked(disk)] == [LAST, 80]
    assert problems(disk) == {}


Damage = Callable[[Disk], None]


@pytest.mark.parametrize(
    ("damage", "file", "said"),
    [
        (lambda d: d.flip(segment_name(34), 6 * 120 + 70), segment_name(34),
         "position 720: the checksum is wrong"),
        (lambda d: d.flip(segment_name(34), 6 * 120 + 12), segment_name(34),
         "position 720: the batch has leader epoch"),
        (lambda d: d.flip(segment_name(LAST), 11 * 120 + 15), segment_name(LAST),
         "position 1320: the batch has leader epoch 254, but the epoch file says 1"),
        (lambda d: d.shrink(segment_name(34), 240), segment_name(LAST),
         "begins at offset 68, not 66"),
        (lambda d: d.remove(segment_name(0)), segment_name(34),
         "begins at offset 34, not 0"),
        (lambda d: d.remove(segment_name(34)), segment_name(LAST),
         "begins at offset 68, not 34"),
        (lambda d: d.shrink(segment_name(LAST), 120), segment_name(LAST),
         "the log ends at offset 79, below its recovery point 80"),
        (lambda d: d.shrink(segment_name(LAST), 5), segment_name(LAST),
         "position 1320: the batch is cut"),
    ],
)  # fmt: skip
def test_storage_inspection_reports_corrupt_and_missing_data(
    damage: Damage, file: str, said: str
) -> None:
    disk = written()
    damage(disk)
    assert any(said in problem for problem in problems(disk)[file])
    assert not any(c.is_made_again for c in checked(disk) if c.problems)


def test_inspection_reports_a_log_that_lost_all_segments() -> None:
    disk = written()
    for name in disk.names(paths.LOG):
        disk.remove(name)
    (found,) = checked(disk)
    assert found.problems == ("the log has no segment, but its recovery point is 80",)


@pytest.mark.parametrize(
    "name", [paths.LEADER_EPOCHS, segment_name(34, paths.INDEX), segment_name(34, paths.TIME_INDEX),
             segment_name(80, paths.SNAPSHOT)]
)  # fmt: skip
def test_damaged_file_that_the_broker_can_rebuild_is_reported_as_rebuildable(name: str) -> None:
    disk = written()
    disk.reopen(clean=True)
    disk.flip(name, 3)
    assert list(problems(disk)) == [name]
    assert [c.is_made_again for c in checked(disk) if c.problems] == [True]


@pytest.mark.parametrize("name", [paths.META, paths.RECOVERY_POINTS, paths.LOG_STARTS])
def test_damaged_metadata_or_checkpoint_file_of_a_data_directory_is_reported(name: str) -> None:
    disk = written()
    disk.log.delete_records_before(1)
    file = disk.files.open(f"{DATA}/{name}", writable=True)
    data = bytearray(file.pread(0, file.size))
    data[2] ^= 1
    file.truncate(0)
    file.append([bytes(data)])
    assert problems(disk)[name] == ("the file has a wrong checksum (CRC-32C)",)


def test_stray_partition_directory_is_checked_without_checkpoint_files() -> None:
    disk = written()
    disk.manager.set_aside(KEY, 1000)
    assert [c.batches for c in checked(disk)] == [34, 34, 12]
    assert problems(disk) == {}
    stray = paths.stray_dir(DATA, KEY, 1000)
    assert [c.end_offset for c in check_partition(disk.files, stray)] == [34, LAST, 80]
    assert not disk.files.exists(FOLDER)


def test_inspection_of_a_segment_file_lists_each_batch() -> None:
    disk = Disk()
    disk.write(5)
    disk.flip(segment_name(0), 2 * 120 + 9)
    seen = list(inspect_file(disk.files, f"{FOLDER}/{segment_name(0)}"))
    assert [(b.position, bool(b.problem)) for b in seen] == [
        (0, False),
        (120, False),
        (240, True),
        (360, False),
        (480, False),
    ]
    with pytest.raises(ValueError, match="not a segment"):
        list(inspect_file(disk.files, f"{FOLDER}/leader-epoch-checkpoint"))
