"""Tests of the recovered log after each kind of crash or damage.

A *torn tail* is what an interrupted write leaves at the end of a log. Recovery cuts it and saves it
in a *torn file*. Below the recovery point, all batches were flushed, so no torn tail can begin
there.
"""

from __future__ import annotations

import pytest
from support.stored import (
    EIO,
    FOLDER,
    KEY,
    SMALL,
    Disk,
    append,
    batch,
    offsets,
    segment_name,
    stored,
    verify,
)

from broker_lite.errors import CorruptMessageError, OutOfOrderSequenceError, StorageError
from broker_lite.storage import paths
from broker_lite.storage.producer_state import decode

FIRST = segment_name(0)


def test_empty_log_is_still_empty_after_a_start() -> None:
    disk = Disk()
    log = disk.reopen()
    assert (log.log_start_offset, log.log_end_offset, log.flushed_end) == (0, 0, 0)
    assert disk.manager.reports[KEY].scanned_bytes == 0


def test_start_after_a_clean_stop_scans_no_segment() -> None:
    disk = Disk()
    disk.write(100)
    log = disk.reopen(clean=True)
    assert offsets(log) == list(range(100))
    assert disk.manager.data.was_clean
    assert disk.manager.reports[KEY].scanned_bytes == 0
    append(log)
    assert log.flush() == 101


def test_broker_start_deletes_the_marker_file_of_a_clean_shutdown() -> None:
    disk = Disk()
    disk.write(3)
    disk.reopen(clean=True)
    disk.reopen()
    assert not disk.manager.data.was_clean


def test_recovery_keeps_and_flushes_batches_that_the_page_cache_still_has() -> None:
    disk = Disk()
    disk.write(5, flush=False)
    log = disk.reopen()
    assert offsets(log) == [0, 1, 2, 3, 4]
    assert log.flushed_end == 5


def test_recovery_scan_begins_at_the_recovery_point() -> None:
    disk = Disk()
    disk.write(300, checkpoint=True)
    disk.log.close()
    disk.manager.checkpoint()
    log = disk.reopen()
    assert disk.manager.reports[KEY].scanned_bytes < 1000
    assert offsets(log) == list(range(300))


# Above the recovery point, a crash may leave a torn tail: a partial write that recovery cuts off.


def test_partial_header_at_the_log_end_is_cut_off_and_saved_in_a_separate_file() -> None:
    disk = Disk()
    disk.write(3)
    disk.grow(FIRST, bytes(batch())[:30])
    log = disk.reopen()
    assert offsets(log) == [0, 1, 2]
    assert disk.content(segment_name(3, "-1.torn")) == bytes(batch())[:30]
    assert disk.manager.reports[KEY].torn_offset == 3
    assert append(log).base_offset == 3


def test_partial_batch_at_the_log_end_is_cut_off_and_saved_in_a_separate_file() -> None:
    disk = Disk()
    disk.write(4, flush=False)
    disk.shrink(FIRST, 17)
    log = disk.reopen()
    assert offsets(log) == [0, 1, 2]
    assert len(disk.content(segment_name(3, "-1.torn"))) == 120 - 17
    assert log.reader.corruption == ()
    assert disk.manager.suspect_logs == frozenset()


def test_recovery_cuts_the_log_at_a_wrong_checksum_above_the_recovery_point() -> None:
    disk = Disk()
    disk.write(4, flush=False)
    disk.flip(FIRST, 2 * 120 + 100)
    log = disk.reopen()
    assert offsets(log) == [0, 1]
    assert len(disk.content(segment_name(2, "-1.torn"))) == 240


@pytest.mark.parametrize("position", [2 * 120 + 100, 2 * 120 + 9, 3 * 120 + 100])
def test_log_is_reported_as_suspect_if_recovery_cuts_off_a_complete_corrupt_batch(
    position: int,
) -> None:
    """An interrupted write leaves a partial batch, so a complete batch was damaged after it was
    written."""
    disk = Disk()
    disk.write(4)
    disk.flip(FIRST, position)
    log = disk.reopen()
    assert (offsets(log), log.reader.corruption) == ([0, 1, 2][: position // 120], ())
    assert disk.manager.suspect_logs == {KEY}
    disk.reopen()
    assert disk.manager.suspect_logs == frozenset()


@pytest.mark.parametrize(("first", "end"), [(1000, 4096), (1024, 1536), (1150, 2048)])
def test_zeroed_pages_of_an_unflushed_batch_are_cut_off_as_a_partial_write(
    first: int, end: int
) -> None:
    disk = Disk()
    disk.write(34, flush=False)
    data = disk.content(FIRST)
    disk.replace(FIRST, data[:first] + bytes(min(end, len(data)) - first) + data[end:])
    log = disk.reopen()
    assert offsets(log) == list(range(first // 120))
    assert disk.manager.suspect_logs == frozenset()


def test_zero_filled_tail_of_a_log_is_cut_off_without_saving_it() -> None:
    disk = Disk()
    disk.write(3)
    disk.grow(FIRST, bytes(5000))
    log = disk.reopen()
    assert offsets(log) == [0, 1, 2]
    assert disk.names(".torn") == []
    assert disk.files.size(f"{FOLDER}/{FIRST}") == 360


def test_partial_batch_is_cut_off_without_a_copy_if_the_disk_is_full() -> None:
    """The broker must start on a full disk. A partial batch was never acknowledged."""
    disk = Disk()
    disk.write(3)
    disk.grow(FIRST, bytes(batch(size=3 << 20))[: 2 << 20])
    disk.fill()
    assert offsets(disk.reopen()) == [0, 1, 2]
    assert disk.names(".torn") == []
    assert disk.files.size(f"{FOLDER}/{FIRST}") == 360
    report = disk.manager.reports[KEY]
    assert (report.torn_bytes, report.saved_bytes) == (2 << 20, 0)


def test_start_fails_if_the_disk_has_no_space_for_a_copy_of_a_corrupt_batch() -> None:
    """The broker may have acknowledged the complete batch, so it must not start until it can copy
    the batch."""
    disk = Disk()
    disk.write(3)
    damaged = batch(size=2 << 20)
    damaged[0:8] = (3).to_bytes(8, "big")
    damaged[12:16] = (1).to_bytes(4, "big")
    damaged[-1] ^= 0xFF
    disk.grow(FIRST, damaged)
    disk.fill()
    with pytest.raises(StorageError, match=r"2097152 bytes from offset 3 on .* free this much"):
        disk.reopen()
    disk.fill(64 << 20)
    assert offsets(disk.reopen()) == [0, 1, 2]
    assert disk.names(".torn") == [segment_name(3, "-1.torn")]
    assert disk.manager.reports[KEY].saved_bytes == 2 << 20


def test_recovery_cuts_the_log_at_a_batch_with_a_wrong_length() -> None:
    disk = Disk()
    disk.write(2)
    data = batch()
    data[8:12] = (1 << 30).to_bytes(4, "big")
    disk.grow(FIRST, data)
    assert offsets(disk.reopen()) == [0, 1]


def test_recovery_cuts_the_log_where_the_leader_epoch_of_a_batch_decreases() -> None:
    disk = Disk()
    append(disk.log, epoch=5)
    stale = batch()
    stale[0:8] = (1).to_bytes(8, "big")
    stale[12:16] = (4).to_bytes(4, "big")
    disk.grow(FIRST, stale)
    assert offsets(disk.reopen()) == [0]


def test_recovery_sets_aside_the_segments_above_the_offset_at_which_it_cuts_the_log() -> None:
    disk = Disk()
    disk.write(80, flush=False)
    second, third = (segment_name(b) for b in (34, 68))
    assert {FIRST, second, third} <= set(disk.names(".log"))
    disk.flip(second, 5 * 120 + 90)
    log = disk.reopen()
    assert offsets(log) == list(range(39))
    assert disk.names(".torn") == [segment_name(39, "-1.torn"), segment_name(68, "-1.torn")]
    assert disk.names(".log") == [FIRST, second]
    assert append(log).base_offset == 39


def test_log_ends_before_a_missing_segment_above_the_recovery_point() -> None:
    disk = Disk()
    disk.write(80, flush=False)
    disk.remove(segment_name(34))
    log = disk.reopen()
    assert offsets(log) == list(range(34))
    assert disk.names(".torn") == [segment_name(68, "-1.torn")]


def test_recovery_keeps_bytes_cut_off_from_a_log_in_at_most_sixteen_numbered_files() -> None:
    disk = Disk()
    disk.write(1)
    for _ in range(20):
        disk.grow(FIRST, b"garbage")
        disk.reopen()
    names = disk.names(".torn")
    assert len(names) == 16
    assert segment_name(1, "-20.torn") in names


# Below the recovery point, batches were flushed, so damage is reported and never cut off.


def test_batch_with_a_wrong_checksum_below_the_recovery_point_is_kept_and_reported() -> None:
    disk = Disk()
    disk.write(20, checkpoint=True)
    disk.flip(FIRST, 4 * 120 + 100)
    log = disk.reopen()
    (damage,) = log.reader.corruption
    assert (damage.key, damage.first_offset, damage.next_offset) == (KEY, 4, 5)
    assert not damage.unreadable
    assert KEY.topic_id in str(damage) and "4 to 4" in str(damage)
    assert log.log_end_offset == 20
    assert verify(log, 0, 20) == [damage]
    assert disk.names(".torn") == []


def test_corrupt_header_below_the_recovery_point_makes_only_its_batch_unreadable() -> None:
    disk = Disk()
    disk.write(20, checkpoint=True)
    disk.flip(FIRST, 4 * 120 + 8)
    log = disk.reopen()
    piece = log.reader.read(0, 1 << 20, 20)
    assert (piece.length, piece.next_offset) == (480, 4)
    with pytest.raises(CorruptMessageError, match=rf"{KEY.topic_id}: offsets 4 to 4 are corrupt"):
        log.reader.read(4, 1 << 20, 20)
    assert log.reader.next_readable(4) == 5
    assert log.reader.read(5, 1 << 20, 20).next_offset == 20
    assert log.reader.offset_for_bytes(4, 1, 20)[0] > 4


@pytest.mark.parametrize("position", [23, 24, 25, 26])
@pytest.mark.parametrize("is_known", [True, False])
def test_corrupt_batch_with_too_large_offsets_does_not_prevent_the_start_of_the_broker(
    position: int, is_known: bool
) -> None:
    """Regression: every start of the broker failed, because rebuilding the producer state read
    beyond the log's end.
    """
    disk = Disk()
    disk.write(20, checkpoint=True)
    if not is_known:
        # Without snapshots, the start after a clean stop replays all batches.
        disk.manager.close_clean()
        for name in disk.names(paths.SNAPSHOT):
            disk.remove(name)
    disk.flip(FIRST, 4 * 120 + position)
    log = disk.reopen()
    assert disk.manager.data.was_clean is not is_known
    assert log.log_end_offset == 20
    assert (4, 5) in [(found.first_offset, found.next_offset) for found in log.reader.corruption]
    assert append(log).base_offset == 20


def test_offsets_lost_below_the_recovery_point_are_never_reused() -> None:
    disk = Disk()
    disk.write(20, checkpoint=True)
    disk.shrink(FIRST, 5 * 120 + 7)
    log = disk.reopen()
    assert log.log_end_offset == 20
    assert append(log).base_offset == 20
    assert log.reader.read(0, 1 << 20, 21).next_offset == 14
    with pytest.raises(CorruptMessageError, match="14 to 19"):
        log.reader.read(14, 1 << 20, 21)
    assert log.reader.read(20, 1 << 20, 21).next_offset == 21


def test_lost_segment_below_the_recovery_point_is_reported_as_damage() -> None:
    disk = Disk()
    disk.write(80, checkpoint=True)
    disk.remove(segment_name(34))
    log = disk.reopen()
    assert log.log_end_offset == 80
    with pytest.raises(CorruptMessageError, match="34 to 67"):
        log.reader.read(40, 1 << 20, 80)
    assert log.reader.read(68, 1 << 20, 80).next_offset == 80


def test_lost_first_segment_is_reported() -> None:
    disk = Disk()
    disk.write(80, checkpoint=True)
    disk.remove(FIRST)
    log = disk.reopen()
    assert log.log_start_offset == 34
    assert [(d.first_offset, d.next_offset) for d in log.reader.corruption] == [(0, 34)]


def test_log_without_segments_continues_at_the_recovery_point() -> None:
    disk = Disk()
    disk.write(10, checkpoint=True)
    for name in disk.names():
        disk.remove(name)
    log = disk.reopen()
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    assert [(d.first_offset, d.next_offset) for d in log.reader.corruption] == [(0, 10)]


def test_damage_is_still_reported_after_a_clean_restart() -> None:
    disk = Disk()
    disk.write(80, checkpoint=True)
    disk.flip(segment_name(34), 3 * 120 + 3)
    disk.reopen()
    first = disk.log.reader.corruption
    if not first:
        with pytest.raises(CorruptMessageError):
            disk.log.reader.read(37, 100, 80)
    log = disk.reopen(clean=True)
    with pytest.raises(CorruptMessageError, match="37 to 37"):
        log.reader.read(37, 100, 80)


def test_append_after_a_damaged_last_batch_continues_at_the_next_offset() -> None:
    disk = Disk()
    disk.write(5, checkpoint=True)
    disk.flip(FIRST, 4 * 120 + 1)
    log = disk.reopen()
    assert log.log_end_offset == 5
    assert append(log).base_offset == 5
    log.flush()
    log = disk.reopen()
    assert log.reader.read(5, 1000, 6).next_offset == 6


# A start rebuilds indexes and producer state.


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_missing_index_is_rebuilt(suffix: str, clean: bool) -> None:
    disk = Disk()
    disk.write(80)
    disk.manager.close_clean()
    for name in disk.names(suffix):
        disk.remove(name)
    if not clean:
        disk.files.remove("/data/clean-shutdown")
    disk.kill()
    disk.start()
    assert offsets(disk.log) == list(range(80))
    assert disk.log.reader.corruption == ()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("position", [0, 9, 50, -1])
def test_corrupt_index_is_rebuilt(suffix: str, position: int) -> None:
    disk = Disk()
    disk.write(80)
    disk.manager.close_clean()
    for name in disk.names(suffix):
        disk.flip(name, position)
    disk.kill()
    disk.start()
    assert offsets(disk.log) == list(range(80))
    assert disk.log.reader.read(50, 100, 80).base_offset == 50


def test_offset_index_of_an_earlier_shorter_log_is_rebuilt() -> None:
    disk = Disk()
    disk.write(10)
    disk.manager.close_clean()
    stale = disk.content(segment_name(0, ".index"))
    disk.kill()
    disk.start()
    disk.write(10)
    disk.manager.close_clean()
    disk.replace(segment_name(0, ".index"), stale)
    disk.kill()
    disk.start()
    assert offsets(disk.log) == list(range(20))


def test_index_with_wrong_positions_is_rebuilt() -> None:
    """The index file has a correct checksum but wrong positions, as if the writer had a bug."""
    disk = Disk()
    disk.write(80)
    disk.log.apply_retention(0, 0)
    segment = disk.log.reader.chain[1][0]
    index = segment.index
    index._positions[2] += 13
    segment.save_indexes()
    log = disk.reopen(clean=True)
    assert all(log.reader.read(o, 1, 80).base_offset == o for o in range(34))


def test_producer_snapshot_beyond_the_log_end_is_deleted_and_the_state_rebuilt() -> None:
    disk = Disk()
    for sequence in range(4):
        append(disk.log, batch(producer=(7, 0, sequence)))
    disk.log.flush()
    disk.log.save_snapshot()
    assert disk.names(".snapshot") == [segment_name(4, ".snapshot")]
    disk.shrink(FIRST, 120)
    log = disk.reopen()
    assert disk.names(".snapshot") == []
    assert append(log, batch(producer=(7, 0, 3))).base_offset == 3
    with pytest.raises(OutOfOrderSequenceError):
        append(log, batch(producer=(7, 0, 9)))


def test_producer_state_is_rebuilt_from_the_batches_if_its_snapshot_is_corrupt() -> None:
    disk = Disk()
    for sequence in range(3):
        append(disk.log, batch(producer=(7, 0, sequence)))
    disk.manager.close_clean()
    disk.flip(segment_name(3, ".snapshot"), 20)
    disk.kill()
    disk.start()
    assert append(disk.log, batch(producer=(7, 0, 2))).duplicate
    assert append(disk.log, batch(producer=(7, 0, 3))).base_offset == 3


def test_producer_state_is_rebuilt_from_the_snapshot_and_the_batches_after_it() -> None:
    disk = Disk()
    for sequence in range(60):
        append(disk.log, batch(producer=(7, 0, sequence)))
    snapshots = disk.names(".snapshot")
    assert decode(disk.content(snapshots[0])).next_offset == 34
    log = disk.reopen()
    producer = log.producers.get(7)
    assert producer is not None
    assert [b.first_sequence for b in producer.batches] == [55, 56, 57, 58, 59]


@pytest.mark.parametrize("field", ["producer_id", "producer_epoch", "base_sequence"])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_rebuild_of_producer_state_reports_a_corrupt_batch_header_and_ignores_the_batch(
    field: str, damaged: int
) -> None:
    """A flipped bit could turn producer epoch 0 into 128, which would fence the producer."""
    disk = Disk()
    for sequence in range(3):
        append(disk.log, batch(producer=(7, 0, sequence)))
    disk.log.flush()
    disk.manager.checkpoint()
    disk.kill()
    position = {"producer_id": 50, "producer_epoch": 52, "base_sequence": 56}[field]
    disk.flip(FIRST, damaged * 120 + position)
    disk.start()
    assert [(bad.first_offset, bad.next_offset) for bad in disk.log.reader.corruption] == [
        (damaged, damaged + 1)
    ]
    assert disk.manager.suspect_logs == {KEY}
    assert [(number, producer.epoch) for number, producer in disk.log.producers] == [(7, 0)]
    producer = disk.log.producers.get(7)
    assert producer is not None
    assert [one.base_offset for one in producer.batches] == [n for n in range(3) if n != damaged]
    assert disk.log.log_end_offset == 3


def test_rebuild_of_producer_state_ignores_damage_below_the_log_start() -> None:
    disk = Disk()
    for sequence in range(3):
        append(disk.log, batch(producer=(7, 0, sequence)))
    disk.log.flush()
    disk.log.delete_records_before(2)
    disk.manager.checkpoint()
    disk.kill()
    disk.flip(FIRST, 52)
    disk.start()
    assert disk.log.reader.corruption == ()
    assert append(disk.log, batch(producer=(7, 0, 3))).base_offset == 3


# A start repairs the other files of the partition.


def test_leader_epochs_are_rebuilt_from_the_batches() -> None:
    disk = Disk()
    for epoch in (1, 1, 4, 9):
        append(disk.log, epoch=epoch)
    disk.log.flush()
    disk.remove(paths.LEADER_EPOCHS)
    assert disk.reopen().leader_epochs.entries == ((1, 0), (4, 2), (9, 3))


def test_leader_epoch_without_records_is_removed() -> None:
    disk = Disk()
    append(disk.log, epoch=1)
    disk.log.flush()
    disk.log.start_epoch(2)
    assert disk.reopen().leader_epochs.entries == ((1, 0),)


def test_start_deletes_leftover_files_and_keeps_unknown_files() -> None:
    disk = Disk()
    disk.write(2)
    for name in ("00000000000000000009.index", "00000000000000000000.log.deleted", "x.tmp"):
        disk.files.create(f"{FOLDER}/{name}")
    disk.files.create(f"{FOLDER}/notes.txt")
    disk.reopen()
    assert disk.names(".deleted") == disk.names(".tmp") == []
    assert segment_name(9, ".index") not in disk.names()
    assert disk.names(".txt") == ["notes.txt"]


def test_start_deletes_segments_before_the_log_start_offset() -> None:
    disk = Disk()
    disk.write(80, checkpoint=True)
    disk.log.delete_records_before(40)
    log = disk.reopen()
    assert log.log_start_offset == 40
    assert FIRST not in disk.names(".log")
    assert stored(log)[0].base_offset == 40


def test_recovery_sets_aside_a_segment_that_overlaps_the_previous_segment() -> None:
    disk = Disk()
    disk.write(80)
    disk.files.create(f"{FOLDER}/{segment_name(20)}").append([disk.content(FIRST)])
    log = disk.reopen()
    assert offsets(log) == list(range(80))
    assert disk.names(".torn") == [segment_name(20, "-1.torn")]


def test_recovery_after_a_failed_fsync_removes_unflushed_batches() -> None:
    disk = Disk()
    disk.write(40)
    disk.write(60, flush=False)
    disk.files.fail_next("datasync", EIO, path=segment_name(34))
    with pytest.raises(StorageError):
        disk.log.flush()
    log = disk.reopen()
    assert offsets(log) == list(range(log.log_end_offset))
    assert 40 <= log.log_end_offset < 100


def test_recovery_removes_a_batch_whose_fsync_failed() -> None:
    """Recovery drops the page cache, so that it reads what is on disk.

    The kernel drops only whole pages, so the dropped range must begin where the page of the
    recovery point begins.
    """
    disk = Disk()
    disk.write(10)
    disk.reopen(clean=True)
    disk.write(flush=False)
    disk.files.fail_next("datasync", EIO, path=FIRST)
    with pytest.raises(StorageError):
        disk.log.flush()
    assert disk.log.log_end_offset == 11
    assert disk.reopen().log_end_offset == 10


def test_second_recovery_of_a_log_changes_nothing() -> None:
    for name, position in ((FIRST, 1000), (segment_name(34), 10), (segment_name(68), 500)):
        disk = Disk(SMALL)
        disk.write(40, checkpoint=True)
        disk.write(40, flush=False)
        disk.flip(name, position)
        disk.reopen()
        before, damage = disk.state(), disk.log.reader.corruption
        disk.reopen()
        assert disk.state() == before
        assert disk.log.reader.corruption == damage


def test_time_index_entries_of_lost_batches_are_not_used_for_batches_appended_later() -> None:
    """Regression: after a power cut, the saved time index still had entries of batches that were
    lost.

    Lookups by timestamp then skipped batches that were appended later.
    """
    disk = Disk()
    for i in range(20):
        append(disk.log, batch(timestamp=1000 + i))
    disk.log.flush()
    disk.log.reader.chain[1][-1].save_indexes()
    disk.kill()
    disk.shrink(segment_name(0), 1200)
    log = disk.reopen()
    for _ in range(10):
        append(log, batch(timestamp=5000))
    log.flush()
    disk.manager.checkpoint()
    segment = disk.reopen().reader.chain[1][-1]
    assert segment.times.start_for(5000) <= 10


def test_damage_in_deleted_records_is_not_reported() -> None:
    """Regression: damage in deleted records made the broker suspect the log, so the replica left
    the ISR and fetched its whole log again.
    """
    disk = Disk()
    disk.write(20, checkpoint=True)
    disk.flip(segment_name(0), 3 * 120 + 100)
    disk.log.delete_records_before(10)
    log = disk.reopen()
    assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (10, 20, ())
    assert not disk.manager.suspect_logs
    assert offsets(log) == list(range(10, 20))


@pytest.mark.parametrize("byte", [23, 25, 26])
def test_start_reports_a_corrupt_batch_that_claims_offsets_beyond_the_log_end(byte: int) -> None:
    """Regression: a flipped bit in the last offset of a batch made every start of the broker
    fail."""
    disk = Disk()
    for i in range(20):
        append(disk.log, batch(producer=(7, 0, i)))
    disk.log.flush()
    disk.manager.checkpoint()
    disk.flip(FIRST, 3 * 120 + byte)
    log = disk.reopen()
    assert [(d.first_offset, d.next_offset) for d in log.reader.corruption] == [(3, 4)]
    assert append(log, batch(producer=(7, 0, 19))).duplicate
    assert append(log, batch(producer=(7, 0, 20))).base_offset == 20


@pytest.mark.parametrize("byte", [23, 25, 26])
def test_truncation_keeps_a_batch_whose_corrupt_header_has_offsets_beyond_the_log_end(
    byte: int,
) -> None:
    disk = Disk()
    for i in range(20):
        append(disk.log, batch(producer=(7, 0, i)))
    disk.log.flush()
    disk.flip(FIRST, 3 * 120 + byte)
    log = disk.reopen(clean=True)
    log.truncate_to(10)
    assert [(d.first_offset, d.next_offset) for d in log.reader.corruption] == [(3, 4)]
    with pytest.raises(OutOfOrderSequenceError):
        append(log, batch(producer=(7, 0, 11)))
    assert append(log, batch(producer=(7, 0, 10))).base_offset == 10
