"""Tests of the manager of a data directory: lock, identity, checkpoints, partitions.

A *stray log* belongs to no partition that the broker has in the metadata.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from support.memory_files import MemFiles
from support.stored import DATA, ENOSPC, KEY, SMALL, Disk, append, offsets

from broker_lite.errors import DirectoryLockedError, InconsistentClusterIdError, StorageError
from broker_lite.model import PartitionKey
from broker_lite.storage import paths
from broker_lite.storage.checkpoint import decode_lines
from broker_lite.storage.directory import RESERVE_BYTES, OffsetCheckpoint, remove_tree
from broker_lite.storage.files import OsFiles
from broker_lite.storage.log import Log
from broker_lite.storage.manager import LogManager


def manager(files: MemFiles) -> LogManager:
    made = LogManager(files, DATA, random_id=lambda: "directoryAAAAAAAAAAAAA")
    made.data.start()
    made.open_all(0)
    return made


def test_data_directory_gets_its_id_once_and_each_start_is_counted() -> None:
    files = MemFiles()
    first = LogManager(files, DATA)
    first.data.start()
    assert len(first.data.directory_id) == 22
    assert (first.data.start_counter, first.data.cluster_id, first.data.was_clean) == (1, "", False)
    first.close()
    second = LogManager(files, DATA)
    second.data.start()
    assert (second.data.directory_id, second.data.start_counter) == (first.data.directory_id, 2)


def test_new_directories_have_different_ids(tmp_path: Path) -> None:
    ids = set()
    for name in "ab":
        made = LogManager(OsFiles(), str(tmp_path / name / "deep"))
        made.data.start()
        ids.add(made.data.directory_id)
        made.close()
    assert len(ids) == 2


def test_start_counter_is_on_disk_once_the_data_directory_is_locked() -> None:
    for seed in range(10):
        files = MemFiles()
        for count in range(1, 4):
            made = LogManager(files, DATA)
            made.data.start()
            assert made.data.start_counter == count
            files.crash(Random(seed))


def test_error_for_a_data_directory_that_another_process_has_locked_names_the_directory(
    tmp_path: Path,
) -> None:
    first = LogManager(OsFiles(), str(tmp_path))
    first.data.start()
    with pytest.raises(DirectoryLockedError, match=str(tmp_path)):
        LogManager(OsFiles(), str(tmp_path)).data.start()
    first.close()
    LogManager(OsFiles(), str(tmp_path)).data.start()


def test_data_directory_is_bound_to_one_cluster_id() -> None:
    files = MemFiles()
    made = manager(files)
    made.data.adopt_cluster("one")
    made.data.adopt_cluster("one")
    with pytest.raises(InconsistentClusterIdError, match="cluster one, not to two"):
        made.data.adopt_cluster("two")
    files.crash(Random(0))
    again = manager(files)
    assert again.data.cluster_id == "one"
    with pytest.raises(InconsistentClusterIdError):
        again.data.adopt_cluster("two")


def test_error_for_a_damaged_or_missing_directory_id_names_the_remedy() -> None:
    disk = Disk()
    disk.kill()
    meta = f"{DATA}/{paths.META}"
    file = disk.files.open(meta, writable=True)
    file.truncate(file.size - 3)
    with pytest.raises(StorageError, match="Restore it"):
        disk.start()
    disk.files.remove(meta)
    with pytest.raises(StorageError, match="holds 1 partitions but no meta"):
        disk.start()
    assert disk.files.locked == set()


def test_data_directory_at_the_path_of_a_file_raises_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot be used"):
        LogManager(OsFiles(), str(tmp_path / "file")).data.start()


def test_unchanged_offsets_are_not_checkpointed_again() -> None:
    disk = Disk()
    disk.write(3, checkpoint=True)
    before = disk.files.operations
    disk.manager.checkpoint()
    assert disk.files.operations == before
    disk.write(1, flush=False)
    disk.manager.checkpoint()
    assert disk.files.operations == before + 1
    disk.log.flush()
    disk.manager.checkpoint()
    name = f"{DATA}/{paths.RECOVERY_POINTS}"
    file = disk.files.open(name)
    assert decode_lines(file.pread(0, file.size)) == [f"{KEY.topic_id} 3 4"]


@pytest.mark.parametrize(
    ("start", "change"),
    [
        (50, lambda log: log.delete_records_before(50)),
        (20, lambda log: log.start_at(20)),
        (5000, lambda log: log.start_at(5000)),
    ],
)
def test_checkpoint_while_the_log_start_changes_saves_the_new_log_start(
    monkeypatch: pytest.MonkeyPatch, start: int, change: Callable[[Log], object]
) -> None:
    """Regression: a log start changes on disk, then in memory. A checkpoint between the two changes
    saved the former start.

    After a crash, deleted records were back. If the log had been emptied to start at another
    offset, its new records were lost or reported as damaged.
    """
    disk = Disk()
    disk.write(80)
    disk.log.delete_records_before(40)
    keeper = threading.Thread(target=disk.manager.checkpoint)
    put, log_starts = OffsetCheckpoint.put, disk.manager.data.log_starts

    def put_and_checkpoint(checkpoint: OffsetCheckpoint, key: PartitionKey, offset: int) -> None:
        put(checkpoint, key, offset)
        if checkpoint is log_starts and offset == start:
            keeper.start()
            keeper.join(0.1)

    monkeypatch.setattr(OffsetCheckpoint, "put", put_and_checkpoint)
    change(disk.log)
    keeper.join()
    monkeypatch.undo()
    append(disk.log)
    disk.log.flush()
    log = disk.reopen()
    assert (log.log_start_offset, log.reader.corruption) == (start, ())
    assert offsets(log)[-1] == log.log_end_offset - 1


@pytest.mark.parametrize("name", [paths.RECOVERY_POINTS, paths.LOG_STARTS])
def test_damaged_checkpoint_is_ignored_with_a_warning(name: str) -> None:
    disk = Disk()
    disk.write(10)
    disk.log.delete_records_before(4)
    disk.manager.checkpoint()
    disk.kill()
    disk.files.open(f"{DATA}/{name}", writable=True).append([b"garbage"])
    disk.start()
    assert any(name in warning for warning in disk.manager.data.warnings)
    assert disk.log.log_end_offset == 10
    assert disk.manager.suspect_logs == {KEY}
    disk.manager.checkpoint()
    disk.reopen()
    assert (disk.manager.data.warnings, disk.manager.suspect_logs) == ([], frozenset())


def test_log_whose_checkpointed_start_offset_is_damaged_begins_at_its_first_segment() -> None:
    """Segments that retention had deleted are not reported as lost."""
    disk = Disk()
    disk.write(80, checkpoint=True)
    disk.log.delete_records_before(40)
    disk.log.apply_retention(0, 80)
    disk.kill()
    disk.files.open(f"{DATA}/{paths.LOG_STARTS}", writable=True).append([b"garbage"])
    disk.start()
    assert (disk.log.log_start_offset, disk.log.reader.corruption) == (34, ())


def test_restarted_log_manager_opens_all_partitions() -> None:
    files = MemFiles()
    made = manager(files)
    keys = [PartitionKey(f"-{'x' * 20}{t}", p) for t in "ab" for p in range(3)]
    for i, key in enumerate(keys):
        log = made.create(key, SMALL)
        assert made.create(key, SMALL) is log
        for _ in range(i):
            append(log)
    made.close_clean()
    files.make_dir(f"{DATA}/not-a-partition")
    again = LogManager(files, DATA, default_config=SMALL)
    again.data.start()
    logs = again.open_all(0)
    assert sorted(logs) == sorted(keys)
    assert [logs[key].log_end_offset for key in keys] == list(range(6))
    assert logs[keys[5]].config is SMALL
    assert logs[keys[3]].reader.size_bytes == 360
    assert again.get(PartitionKey("nobody", 0)) is None


def test_recreated_topic_gets_an_empty_log() -> None:
    disk = Disk()
    disk.write(5)
    again = KEY._replace(topic_id="anotherAAAAAAAAAAAAAAA")
    disk.manager.delete(KEY, 0)
    disk.manager.delete(KEY, 0)
    assert disk.manager.create(again).log_end_offset == 0
    disk.reopen_all()
    assert list(disk.manager.logs) == [again]


def test_recreated_partition_inherits_no_checkpointed_offsets() -> None:
    """Regression: a crash right after a log's deletion left the log's offsets in the checkpoints.

    A new log of the same partition then began at the offset of the deleted log, and was reported as
    damaged.
    """
    disk = Disk()
    disk.write(50, checkpoint=True)
    disk.log.delete_records_before(20)
    disk.files.fail_next("create", ENOSPC, path="-checkpoint", times=2)
    disk.manager.delete(KEY, 0)
    disk.files.clear_faults()
    disk.reopen_all()
    disk.manager.create(KEY, SMALL)
    disk.write(5)
    disk.log.delete_records_before(2)
    log = disk.reopen()
    assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (2, 5, ())


def test_log_start_offset_survives_a_failed_rename_of_an_unassigned_log() -> None:
    """Regression: the log start offset was lost, so deleted records were back after a restart.

    If the broker created the log again without a restart, the creation failed because the segment
    file existed, and the data directory went offline.
    """
    disk = Disk()
    disk.write(50, checkpoint=True)
    disk.log.delete_records_before(40)
    for again in (False, True):
        disk.files.fail_next("rename", ENOSPC, path=KEY.topic_id)
        disk.manager.set_aside(KEY, 5000)
        disk.manager.checkpoint()
        log = disk.manager.create(KEY, SMALL) if again else disk.reopen()
        assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (40, 50, ())
    disk.write(1)
    assert not disk.manager.data.failed


def test_log_of_an_unknown_topic_is_kept_for_the_configured_time_despite_restarts() -> None:
    files = MemFiles()
    first = LogManager(files, DATA, stray_retention_ms=1000)
    first.data.start()
    first.open_all(0)
    for partition in (0, 1):
        log = first.create(PartitionKey(KEY.topic_id, partition))
        append(log), append(log)
        log.flush()
        log.delete_records_before(1)
        first.set_aside(log.key, 5000)
    first.checkpoint()
    first.close()

    second = LogManager(files, DATA, stray_retention_ms=1000)
    second.data.start()
    assert second.open_all(5000) == {}
    assert (second.stray_count, second.tick(5999)) == (2, 0)
    taken = second.create(PartitionKey(KEY.topic_id, 1))
    assert (taken.log_start_offset, taken.log_end_offset) == (1, 2)
    append(taken)
    assert (second.tick(6000), second.stray_count) == (1, 0)
    assert not [name for name in files.list_dir(DATA) if name.endswith(paths.STRAY)]
    assert second.create(PartitionKey(KEY.topic_id, 0)).log_end_offset == 0


def test_broker_deletes_all_stray_logs_of_one_partition_after_the_retention_time() -> None:
    """Regression: if a power cut brought a deleted stray log back, the broker forgot that log when
    the partition's next log became stray, too."""
    files = MemFiles()
    made = LogManager(files, DATA, stray_retention_ms=1000)
    made.data.start()
    made.open_all(0)
    made.create(KEY)
    made.set_aside(KEY, 5000)
    # The power cut: the stray is back beside the new log of the partition.
    made.tick(6000)
    log = made.create(KEY)
    files.make_dir(paths.stray_dir(DATA, KEY, 5000))
    made.close()

    again = LogManager(files, DATA, stray_retention_ms=1000)
    again.data.start()
    assert again.open_all(6000).keys() == {log.key}
    again.set_aside(KEY, 6500)
    assert (again.stray_count, again.tick(7500), again.stray_count) == (2, 2, 0)
    assert not [name for name in files.list_dir(DATA) if name.endswith(paths.STRAY)]


def test_broker_tolerates_that_an_operator_deletes_a_stray_log() -> None:
    files = MemFiles()
    made = LogManager(files, DATA, stray_retention_ms=1000)
    made.data.start()
    made.open_all(0)
    for partition in (0, 1):
        key = PartitionKey(KEY.topic_id, partition)
        made.create(key)
        made.set_aside(key, 5000)
        remove_tree(files, paths.stray_dir(DATA, key, 5000))
    assert made.create(PartitionKey(KEY.topic_id, 0)).log_end_offset == 0
    assert (made.tick(6000), made.stray_count) == (1, 0)
    assert not made.data.failed


def test_created_partition_survives_an_immediate_power_cut() -> None:
    for seed in range(20):
        files = MemFiles()
        made = manager(files)
        made.create(KEY)
        files.crash(Random(seed))
        assert KEY in manager(files).logs


def test_failed_clean_shutdown_releases_the_lock_of_the_data_directory() -> None:
    disk = Disk()
    disk.write(5)
    disk.files.fail_next("sync_dir", 5, path=DATA)
    with pytest.raises(StorageError):
        disk.manager.close_clean()
    assert disk.files.locked == set()


@pytest.mark.parametrize("clean", [False, True])
def test_start_on_a_full_disk_uses_the_space_of_the_reserve_file(
    clean: bool,
) -> None:
    """Each start deletes the reserve file to have space for its own writes, and writes the file
    again later."""
    disk = Disk()
    disk.write(5)
    disk.log.start_epoch(2)
    for epoch in range(3, 6):
        disk.fill()
        if clean:
            with contextlib.suppress(StorageError):
                disk.manager.close_clean()
        log = disk.reopen()
        assert disk.manager.data.is_full
        log.start_epoch(epoch)
        assert offsets(log) == [0, 1, 2, 3, 4]
        assert log.leader_epochs.latest == epoch
        with pytest.raises(StorageError, match="is full"):
            append(log)
    disk.fill(64 << 20)
    assert disk.manager.data.has_space()
    disk.manager.tick(0)
    assert disk.files.size(f"{DATA}/{paths.RESERVE}") == RESERVE_BYTES
    append(disk.log, epoch=5)
    assert offsets(disk.reopen()) == [0, 1, 2, 3, 4, 5]


def test_space_of_a_data_directory_is_the_total_and_usable_bytes_of_its_disk() -> None:
    disk = Disk()
    disk.files.capacity_bytes = 4 << 20
    total, usable = disk.manager.data.space()
    assert (total, usable > 0, usable < total) == (4 << 20, True, True)
