"""Tests of the writer of a log: appends, segment rolls, flushes, disk errors and deletion."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest
from support.stored import (
    DATA,
    EIO,
    ENOSPC,
    FOLDER,
    KEY,
    SMALL,
    Disk,
    append,
    batch,
    offsets,
    segment_name,
    stored,
)

from broker_lite.config import TopicConfig
from broker_lite.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from broker_lite.record.batch import read_header
from broker_lite.record.crc32c import crc32c
from broker_lite.storage.directory import RESERVE_BYTES, SPACE_BYTES_MIN
from broker_lite.storage.files import OsFiles
from broker_lite.storage.lookups import offset_for_max_timestamp, offset_for_timestamp
from broker_lite.storage.manager import LogManager

HOUR = 3_600_000


def test_append_sets_offset_and_leader_epoch_without_a_change_of_the_checksum() -> None:
    disk = Disk()
    append(disk.log, batch(3))
    data = batch(2)
    before = bytes(data)
    appended = append(disk.log, data, epoch=7)
    assert appended == (3, 5, -1, False)
    header = read_header(data)
    assert (header.base_offset, header.leader_epoch) == (3, 7)
    assert data[16:] == before[16:]
    assert disk.log.reader.read(3, 1000, 5).read() == bytes(data)


def test_flushed_offset_of_a_log_advances_only_at_a_flush() -> None:
    log = Disk().log
    append(log)
    append(log)
    assert (log.log_end_offset, log.flushed_end) == (2, 0)
    assert log.flush() == 2
    assert log.flush() == 2


def test_one_datasync_flushes_many_appends() -> None:
    disk = Disk()
    append(disk.log)
    disk.log.flush()
    append_count = 10
    for _ in range(append_count):
        append(disk.log)
    before = disk.files.operations
    assert disk.log.flush() == append_count + 1
    assert disk.files.operations - before == 1


# The log rolls: it closes the active segment and begins a new one.


def test_segment_rolls_before_it_exceeds_segment_bytes() -> None:
    disk = Disk()
    disk.write(35)
    assert disk.names(".log") == [segment_name(0), segment_name(34)]
    assert disk.files.size(f"{FOLDER}/{segment_name(0)}") == 34 * 120


def test_batch_larger_than_a_segment_gets_its_own_segment() -> None:
    leader = Disk()
    for size in (200, 3 * SMALL.segment_bytes, 200):
        append(leader.log, batch(size=size))
    follower = Disk()
    follower.log.append_as_follower(leader.log.reader.read(0, 1 << 20, 1).read(), 1, 0)
    for offset in (1, 2):
        follower.log.append_as_follower(leader.log.reader.read(offset, 1 << 20, 3).read(), 1, 0)
    for disk in (leader, follower):
        disk.log.flush()
        disk.kill()
        disk.start()
        assert disk.log.reader.segment_count == 3
        assert offsets(disk.log) == [0, 1, 2]


def test_segment_age_counts_from_the_first_append_not_from_timestamps() -> None:
    disk = Disk(dataclasses.replace(SMALL, segment_ms=HOUR))
    append(disk.log, batch(timestamp=5), now_ms=1000)
    append(disk.log, batch(timestamp=9 * HOUR), now_ms=999 + HOUR)
    assert disk.log.reader.segment_count == 1
    append(disk.log, now_ms=1000 + HOUR)
    assert disk.log.reader.segment_count == 2


def test_age_of_a_segment_that_was_emptied_counts_from_its_next_append() -> None:
    """Regression: an emptied segment kept the age of its removed batches and rolled too early."""
    disk = Disk(dataclasses.replace(SMALL, segment_ms=HOUR))
    append(disk.log, now_ms=1000)
    disk.log.truncate_to(0)
    append(disk.log, now_ms=HOUR)
    append(disk.log, now_ms=HOUR + 1000)
    assert disk.log.reader.segment_count == 1


def test_segment_is_closed_if_the_clock_was_set_back_since_its_first_append() -> None:
    disk = Disk(dataclasses.replace(SMALL, segment_ms=HOUR))
    append(disk.log, now_ms=9000 * HOUR)
    append(disk.log, now_ms=HOUR)
    assert disk.log.reader.segment_count == 2
    append(disk.log, now_ms=HOUR - 1)
    assert len(disk.log.apply_retention(HOUR - 2, 3)) == 0
    assert disk.log.reader.segment_count == 4


def test_deleted_files_are_unlinked_even_if_the_clock_was_set_back_since_their_deletion() -> None:
    disk = Disk(dataclasses.replace(SMALL, retention_bytes=0))
    disk.write(40)
    assert disk.log.apply_retention(9000 * HOUR, 40)
    assert disk.names(".deleted")
    disk.manager.tick(HOUR)
    assert not disk.names(".deleted")


def test_time_of_a_segments_first_append_survives_an_unclean_stop() -> None:
    disk = Disk(dataclasses.replace(SMALL, segment_ms=HOUR))
    append(disk.log, now_ms=1000)
    disk.now_ms = HOUR - 1
    append(disk.log, now_ms=disk.now_ms)
    log = disk.reopen()
    append(log, now_ms=1000 + HOUR)
    assert log.reader.segment_count == 2


def test_segment_rolls_when_relative_offsets_run_out() -> None:
    disk = Disk()
    append(disk.log)
    wide = batch()
    wide[23:27] = (2**31 - 1).to_bytes(4, "big")
    wide[17:21] = crc32c(bytes(wide[21:])).to_bytes(4, "big")
    append(disk.log, wide)
    assert disk.names(".log") == [segment_name(0), segment_name(1)]
    append(disk.log)
    assert disk.names(".log")[-1] == segment_name(1 + 2**31)
    assert offsets(disk.log) == [0, 1, 1 + 2**31]


def test_segment_rolls_when_its_index_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_lite.storage.offset_index.ENTRIES_MAX", 4)
    disk = Disk(dataclasses.replace(SMALL, index_interval_bytes=0))
    disk.write(8)
    assert disk.log.reader.segment_count == 2
    assert offsets(disk.log) == list(range(8))


def test_flush_after_a_roll_fails_if_the_directory_cannot_be_synced() -> None:
    disk = Disk()
    disk.write(34)
    disk.write(2, flush=False)
    disk.files.fail_next("sync_dir", EIO, path=FOLDER)
    with pytest.raises(StorageError):
        disk.log.flush()
    assert disk.log.flushed_end == 34


# The disk is full or returns errors.


@pytest.mark.parametrize("written", [0, 1, 60, 119])
def test_append_that_a_full_disk_refuses_leaves_the_log_usable(written: int) -> None:
    disk = Disk()
    disk.write(3)
    disk.files.fail_next("write", ENOSPC, path=".log", after_bytes=written)
    with pytest.raises(StorageError, match="full"):
        append(disk.log)
    assert not disk.log.failed
    assert disk.files.size(f"{FOLDER}/{segment_name(0)}") == 360
    assert append(disk.log).base_offset == 3
    assert disk.log.flush() == 4
    assert offsets(disk.reopen()) == [0, 1, 2, 3]


def test_appends_succeed_again_once_a_full_disk_has_free_space() -> None:
    disk = Disk()
    disk.fill(3000)
    with pytest.raises(StorageError):
        disk.write(100, flush=False)
    end = disk.log.log_end_offset
    assert 0 < end < 25
    assert disk.log.flush() == end
    with pytest.raises(StorageError):
        append(disk.log)
    disk.files.capacity_bytes = None
    disk.write(1)
    assert offsets(disk.log) == list(range(end + 1))


def test_full_disk_refuses_even_small_appends_until_enough_space_is_free() -> None:
    """Otherwise small appends would use up the space that a start and a new leader epoch need."""
    disk = Disk()
    disk.write(3)
    disk.fill()
    with pytest.raises(StorageError, match="is full"):
        append(disk.log)
    disk.fill(SPACE_BYTES_MIN - 1)
    with pytest.raises(StorageError, match="8 MiB"):
        append(disk.log)
    with pytest.raises(StorageError, match="8 MiB"):
        disk.log.append_as_follower(memoryview(batch()), 1, 0)
    disk.fill(SPACE_BYTES_MIN)
    disk.write(1)
    assert offsets(disk.log) == [0, 1, 2, 3]


def test_duplicate_is_acknowledged_although_the_disk_is_full() -> None:
    disk = Disk()
    assert append(disk.log, batch(producer=(7, 0, 0))) == (0, 1, -1, False)
    disk.fill()
    with pytest.raises(StorageError, match="is full"):
        append(disk.log, batch(producer=(7, 0, 1)))
    assert append(disk.log, batch(producer=(7, 0, 0))) == (0, 1, -1, True)


def test_disk_full_error_outside_of_an_append_takes_no_log_offline() -> None:
    """The test fills the disk at a checkpoint, at the creation of a log, and in retention."""
    disk = Disk(dataclasses.replace(SMALL, retention_bytes=4096))
    disk.write(200, checkpoint=True)
    disk.write(1)
    disk.files.capacity_bytes = 0
    disk.manager.checkpoint()
    other = KEY._replace(partition=9)
    disk.files.fail_next("datasync", ENOSPC, path="checkpoint")
    for operation in ("create", "sync_dir"):
        disk.files.fail_next(operation, ENOSPC, path=f"-{other.partition}")
        with pytest.raises(StorageError, match="full"):
            disk.manager.create(other)
    disk.files.fail_next("rename", ENOSPC, path=".log", times=99)
    assert len(disk.log.apply_retention(0, 201)) == 4
    assert not disk.manager.data.failed
    disk.files.clear_faults()
    disk.files.capacity_bytes = None
    assert disk.manager.create(other).log_end_offset == 0
    disk.write(3)
    disk.manager.checkpoint()
    log = disk.reopen()
    assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (136, 204, ())


def test_retention_deletes_segments_although_a_full_disk_prevents_a_new_segment() -> None:
    disk = Disk(dataclasses.replace(SMALL, retention_bytes=4096, segment_ms=60_000))
    disk.write(100)
    disk.files.fail_next("create", ENOSPC, path=".log", times=99)
    assert len(disk.log.apply_retention(60_000, 100)) == 1
    disk.files.clear_faults()
    assert len(disk.log.apply_retention(60_000, 100)) == 0
    append(disk.log)
    assert disk.log.log_start_offset == 34 and disk.log.reader.segment_count == 3


def test_records_can_be_deleted_although_the_disk_is_full() -> None:
    disk = Disk()
    disk.write(100, checkpoint=True)
    disk.fill()
    assert disk.log.delete_records_before(60) == 60
    assert disk.reopen().log_start_offset == 60
    assert disk.files.size(f"{DATA}/reserve") == RESERVE_BYTES


def test_retention_on_a_full_disk_leaves_a_recoverable_log() -> None:
    disk = Disk(dataclasses.replace(SMALL, retention_bytes=4096))
    disk.write(200, checkpoint=True)
    disk.fill()
    assert len(disk.log.apply_retention(0, 200)) == 4
    log = disk.reopen()
    assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (136, 200, ())


def test_full_disk_at_a_new_segment_or_leader_epoch_fails_only_that_append() -> None:
    disk = Disk()
    disk.write(34)
    disk.files.fail_next("create", ENOSPC, path=".log")
    with pytest.raises(StorageError):
        append(disk.log)
    disk.files.fail_next("write", ENOSPC, path="leader-epoch", times=2)
    with pytest.raises(StorageError):
        append(disk.log, epoch=2)
    assert not disk.log.failed
    assert disk.log.leader_epochs.latest == 1
    append(disk.log, epoch=2)
    assert disk.log.leader_epochs.entries == ((1, 0), (2, 34))


def test_retry_of_a_refused_batch_is_not_a_duplicate() -> None:
    disk = Disk()
    disk.files.fail_next("write", ENOSPC, path=".log", after_bytes=50)
    with pytest.raises(StorageError):
        append(disk.log, batch(producer=(7, 0, 0)))
    assert append(disk.log, batch(producer=(7, 0, 0))) == (0, 1, -1, False)


def test_batches_after_a_refused_batch_all_get_the_same_error_message() -> None:
    """Regression: each of these errors repeated the partition's name once more than the error
    before."""
    log = Disk().log
    log.note_refused(read_header(batch(producer=(7, 0, 0))), StorageError("full"))
    for sequence in (1, 2, 3):
        refused = batch(producer=(7, 0, sequence))
        with pytest.raises(StorageError) as failed:
            append(log, refused)
        assert failed.value.message == "full"
        log.note_refused(read_header(refused), failed.value)


def test_short_write_that_cannot_be_truncated_takes_the_data_directory_offline() -> None:
    disk = Disk()
    disk.write(1)
    disk.files.fail_next("write", ENOSPC, path=".log", after_bytes=10)
    disk.files.fail_next("truncate", EIO)
    with pytest.raises(StorageError):
        append(disk.log)
    assert disk.log.failed
    assert offsets(disk.reopen()) == [0]


def test_failed_fsync_takes_every_log_of_the_data_directory_offline_until_a_restart() -> None:
    disk = Disk()
    other = disk.manager.create(KEY._replace(partition=4))
    append(other)
    disk.write(1, flush=False)
    disk.files.fail_next("datasync", EIO)
    with pytest.raises(StorageError, match="has stopped"):
        disk.log.flush()
    for log in (disk.log, other):
        assert log.failed
        assert log.flushed_end == 0
        for attempt in (lambda log=log: append(log), log.flush, lambda log=log: log.start_epoch(9)):
            with pytest.raises(StorageError):
                attempt()
    assert disk.manager.data.failed and "flushing" in disk.manager.data.failure
    with pytest.raises(StorageError):
        disk.manager.checkpoint()
    with pytest.raises(StorageError):
        disk.manager.close_clean()
    assert not disk.files.exists("/data/clean-shutdown")


def test_append_error_other_than_a_full_disk_takes_the_data_directory_offline() -> None:
    disk = Disk()
    disk.files.fail_next("write", EIO, path=".log")
    with pytest.raises(StorageError):
        append(disk.log)
    assert disk.log.failed


def test_full_disk_at_an_index_or_a_producer_snapshot_fails_no_append() -> None:
    disk = Disk()
    for suffix in ("index", "snapshot"):
        disk.files.fail_next("create", errno.ENOSPC, path=suffix, times=4)
    disk.write(80)
    disk.files.clear_faults()
    assert offsets(disk.reopen(clean=True)) == list(range(80))


# The log checks or sets the timestamps of batches.


def test_log_append_time_is_stamped_and_the_checksum_updated() -> None:
    disk = Disk(dataclasses.replace(SMALL, message_timestamp_type="LogAppendTime"))
    appended = append(disk.log, batch(timestamp=5), now_ms=777)
    assert appended.log_append_time_ms == 777
    (header,) = stored(disk.log)
    assert header.is_log_append_time and header.max_timestamp == 777
    listed = offset_for_timestamp(disk.log.reader, 700, 1, [])
    assert listed is not None and (listed.offset, listed.timestamp_ms) == (0, 777)


@pytest.mark.parametrize(
    ("timestamp", "good"), [(899, False), (900, True), (1050, True), (1051, False)]
)
def test_timestamps_outside_the_limits_are_refused(timestamp: int, good: bool) -> None:
    config = dataclasses.replace(
        SMALL, message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=50
    )
    log = Disk(config).log
    if good:
        append(log, batch(timestamp=timestamp), now_ms=1000)
        append(log, batch(timestamp=-1), now_ms=1000)
    else:
        with pytest.raises(InvalidTimestampError, match=str(timestamp)):
            append(log, batch(timestamp=timestamp), now_ms=1000)
        assert log.log_end_offset == 0


def test_batch_marked_log_append_time_by_its_producer_is_refused() -> None:
    with pytest.raises(InvalidTimestampError):
        append(Disk().log, batch(attributes=8))


# The log checks the sequence numbers of producers.


def test_batch_that_is_appended_twice_returns_the_offsets_of_the_first_append() -> None:
    log = Disk().log
    for sequence in range(0, 12, 2):
        append(log, batch(2, producer=(7, 0, sequence)))
    assert append(log, batch(2, producer=(7, 0, 4))) == (4, 6, -1, True)
    assert log.log_end_offset == 12
    assert append(log, batch(2, producer=(7, 0, 0))) == (-1, 2, -1, True)


def test_unknown_producer_may_begin_at_any_sequence_after_records_were_deleted() -> None:
    log = Disk().log
    with pytest.raises(OutOfOrderSequenceError, match="begin at sequence 0"):
        append(log, batch(producer=(8, 0, 5)))
    append(log)
    log.delete_records_before(1)
    append(log, batch(producer=(8, 0, 5)))


def test_expired_producer_may_continue_its_sequence_even_after_a_broker_restart() -> None:
    disk = Disk()
    append(disk.log, batch(producer=(7, 0, 0)), now_ms=0)
    disk.log.apply_retention(24 * HOUR, 1)
    assert 7 not in disk.log.producers
    log = disk.reopen(clean=True)
    append(log, batch(producer=(7, 0, 1)))
    with pytest.raises(InvalidProducerEpochError):
        append(log, batch(producer=(7, -1, 2)))


# A follower appends the batches of its leader.


def test_follower_appends_batches_unchanged() -> None:
    leader, follower = Disk().log, Disk().log
    for i in range(80):
        append(leader, batch(2, producer=(7, 0, 2 * i)), epoch=1 + i // 50)
    while follower.log_end_offset < 160:
        piece = leader.reader.read(follower.log_end_offset, 2000, 160)
        follower.append_as_follower(memoryview(piece.read()), 2, 0)
    assert stored(follower) == stored(leader)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries == ((1, 0), (2, 100))
    assert follower.reader.segment_count > 1
    assert append(follower, batch(2, producer=(7, 0, 158)), epoch=3).duplicate


def test_follower_does_not_check_producer_sequences() -> None:
    leader, follower = Disk().log, Disk().log
    append(leader)
    leader.delete_records_before(1)
    append(leader, batch(producer=(9, 0, 500)))
    data = bytes(leader.reader.read(1, 1000, 2).read())
    follower.start_at(1)
    follower.append_as_follower(memoryview(data), 1, 0)
    assert follower.log_end_offset == 2


def test_follower_skips_batches_of_a_newer_epoch_and_refuses_corrupt_batches() -> None:
    leader, follower = Disk().log, Disk().log
    append(leader, epoch=1)
    append(leader, epoch=4)
    data = bytearray(leader.reader.read(0, 1000, 2).read())
    assert follower.append_as_follower(memoryview(data), 3, 0) == 1
    with pytest.raises(CorruptMessageError):
        follower.append_as_follower(memoryview(data), 4, 0)
    data[-1] ^= 1
    with pytest.raises(CorruptMessageError):
        follower.append_as_follower(memoryview(data[120:]), 4, 0)
    assert follower.log_end_offset == 1


def test_append_in_an_earlier_epoch_is_fenced() -> None:
    disk = Disk()
    append(disk.log, epoch=3)
    with pytest.raises(FencedLeaderEpochError):
        append(disk.log, epoch=2)
    data = batch()
    data[0:8], data[12:16] = (1).to_bytes(8, "big"), (2).to_bytes(4, "big")
    with pytest.raises(CorruptMessageError, match="epoch 2 at offset 1"):
        disk.log.append_as_follower(memoryview(data), 9, 0)
    disk.log.start_epoch(5)
    data[12:16] = (4).to_bytes(4, "big")
    assert disk.log.append_as_follower(memoryview(data), 9, 0) == 2
    assert disk.log.leader_epochs.entries == ((3, 0), (4, 1))
    assert offsets(disk.reopen()) == [0, 1]


# Truncation, deletion of records, retention and deletion of the partition shorten the log.


def test_truncation_removes_later_segments_and_leader_epochs_and_producer_state() -> None:
    disk = Disk()
    for i in range(80):
        append(disk.log, batch(producer=(7, 0, i)), epoch=1 + i // 30)
    disk.log.flush()
    disk.manager.checkpoint()
    disk.log.truncate_to(40)
    log = disk.log
    assert (log.log_end_offset, log.flushed_end) == (40, 40)
    assert disk.names(".log") == [segment_name(0), segment_name(34)]
    assert log.leader_epochs.entries == ((1, 0), (2, 30))
    assert append(log, batch(producer=(7, 0, 40)), epoch=5).base_offset == 40
    log = disk.reopen()
    assert (log.reader.corruption, offsets(log)) == ((), list(range(41)))


def test_truncation_inside_a_batch_removes_the_whole_batch() -> None:
    disk = Disk()
    append(disk.log, batch(5))
    append(disk.log, batch(5))
    disk.log.truncate_to(7)
    assert disk.log.log_end_offset == 5
    disk.log.truncate_to(5)
    disk.log.truncate_to(50)
    assert disk.log.log_end_offset == 5


def test_deleted_records_stay_deleted_after_a_restart() -> None:
    disk = Disk()
    disk.write(80)
    log = disk.log
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records_before(81)
    assert log.delete_records_before(40) == 40
    assert log.delete_records_before(30) == 40
    with pytest.raises(OffsetOutOfRangeError):
        log.reader.read(39, 1, 80)
    log = disk.reopen()
    assert log.log_start_offset == 40
    assert log.delete_records_before(-1) == 80
    assert append(log).base_offset == 80


def test_retention_deletes_whole_old_segments_after_a_delay() -> None:
    disk = Disk(dataclasses.replace(SMALL, retention_ms=100))
    for i in range(80):
        append(disk.log, batch(timestamp=i), now_ms=i)
    held = disk.log.reader.read(0, 1000, 80)
    assert len(disk.log.apply_retention(133, 80)) == 0
    assert len(disk.log.apply_retention(134, 10)) == 0
    assert len(disk.log.apply_retention(134, 80)) == 1
    assert disk.log.log_start_offset == 34
    assert segment_name(0) + ".deleted" in disk.names()
    assert read_header(held.read()).base_offset == 0
    assert disk.manager.tick(140) == 0
    assert disk.manager.tick(144) == 3
    assert read_header(held.read()).base_offset == 0
    assert len(disk.log.apply_retention(10**7, 80)) == 1
    assert disk.log.reader.segment_count == 1
    assert offsets(disk.reopen()) == list(range(68, 80))


def test_retention_rolls_an_expired_active_segment_before_deleting_it() -> None:
    disk = Disk(dataclasses.replace(SMALL, retention_ms=100, segment_ms=1000))
    append(disk.log, batch(timestamp=0))
    assert len(disk.log.apply_retention(999, 1)) == 0
    assert len(disk.log.apply_retention(1000, 1)) == 1
    assert (disk.log.log_start_offset, disk.log.log_end_offset, disk.log.reader.size_bytes) == (
        1,
        1,
        0,
    )
    assert len(disk.log.apply_retention(10**9, 1)) == 0
    log = disk.reopen()
    assert append(log).base_offset == 1


def test_retention_deletes_files_with_bytes_that_recovery_cut_off_from_the_log() -> None:
    disk = Disk(dataclasses.replace(SMALL, retention_bytes=0))
    disk.write(3)
    disk.grow(segment_name(0), b"torn")
    disk.reopen()
    disk.write(80)
    assert disk.names(".torn")
    disk.log.apply_retention(0, 83)
    assert not disk.names(".torn")


def test_deleted_log_refuses_writes_and_its_partition_can_be_recreated() -> None:
    disk = Disk()
    disk.write(3)
    log = disk.log
    held = log.reader.read(0, 1000, 3)
    disk.manager.delete(KEY, 0)
    for attempt in (lambda: append(log), log.flush, lambda: log.apply_retention(0, 0)):
        with pytest.raises(UnknownTopicOrPartitionError):
            attempt()
    assert not disk.manager.data.failed
    assert held.read()
    assert disk.manager.create(KEY).log_end_offset == 0
    disk.manager.tick(10)
    assert [n for n in disk.files.list_dir("/data") if n.endswith(".deleted")] == []


def test_partition_can_be_deleted_three_times_within_file_delete_delay(
    tmp_path: Path,
) -> None:
    """Reassignments may delete and recreate a replica several times within file.delete.delay.ms."""
    manager = LogManager(
        OsFiles(), str(tmp_path), default_config=TopicConfig(file_delete_delay_ms=1000)
    )
    manager.data.start()
    manager.open_all(0)
    for _ in range(3):
        log = manager.create(KEY)
        append(log)
        log.flush()
        manager.delete(KEY, 0)
    assert not manager.data.failed
    assert len(list(tmp_path.glob("*.deleted"))) == 3
    manager.tick(1001)
    assert list(tmp_path.glob("*.deleted")) == []


def test_deleted_partitions_leave_no_file_open(tmp_path: Path) -> None:
    def open_files() -> list[str]:
        names = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        return sorted(name for name in names if name.startswith(str(tmp_path)))

    manager = LogManager(
        OsFiles(), str(tmp_path), default_config=TopicConfig(file_delete_delay_ms=1000)
    )
    manager.data.start()
    manager.open_all(0)
    before = open_files()
    for _ in range(20):
        log = manager.create(KEY)
        append(log)
        log.flush()
        offset_for_max_timestamp(log.reader, log.log_end_offset, [])
        assert len(open_files()) > len(before)
        manager.delete(KEY, 0)
        del log  # The log's reader would keep the file open.
    manager.tick(1001)
    assert open_files() == before


def test_append_during_the_deletion_of_a_log_does_not_fail_the_data_directory() -> None:
    disk = Disk()
    disk.write(34)
    log = disk.log
    disk.manager.delete(KEY, 0)
    with pytest.raises(UnknownTopicOrPartitionError):
        # The append thread has checked that the log exists. Then another thread deletes the log,
        # and the append thread writes.
        log._write(batch(), (read_header(batch())._replace(base_offset=34),), 0)
    assert not disk.manager.data.failed


def test_second_close_of_a_log_has_no_effect() -> None:
    disk = Disk(TopicConfig())
    disk.write(3)
    disk.log.close()
    disk.log.close()
    assert offsets(disk.reopen()) == [0, 1, 2]
