"""Tests of a log's reader: batches, lookups of the offset at a byte distance, verification.

Some tests read while another thread appends or truncates. A segment that takes no more appends is
*loaded* (its files are opened) when it is read, and *released* (they are closed) later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.memory_files import MemFile
from support.stored import KEY, SMALL, Disk, append, batch, offsets, segment_name, verify

from broker_lite.config import TopicConfig
from broker_lite.errors import OffsetOutOfRangeError, StorageError
from broker_lite.record.batch import read_header
from broker_lite.storage.files import OsFiles
from broker_lite.storage.log import Log
from broker_lite.storage.lookups import offset_for_max_timestamp, offset_for_timestamp
from broker_lite.storage.manager import LogManager
from broker_lite.storage.scan import CorruptRange


def test_read_returns_whole_batches_up_to_an_end_offset_and_max_bytes() -> None:
    log = Disk().log
    for _ in range(10):
        append(log, batch(3))
    assert log.reader.read(0, 10_000, 30).next_offset == 30
    assert log.reader.read(0, 10_000, 12).next_offset == 12
    assert log.reader.read(0, 10_000, 13).next_offset == 12
    piece = log.reader.read(3, 250, 30)
    assert (piece.base_offset, piece.next_offset, piece.length) == (3, 9, 240)
    piece = log.reader.read(4, 1000, 30)
    assert piece.base_offset == 3


def test_first_batch_of_a_read_may_exceed_max_bytes_only_if_the_caller_allows_it() -> None:
    log = Disk().log
    append(log, batch(size=900))
    append(log)
    assert log.reader.read(0, 1, 2).length == 900
    assert log.reader.read(0, 1, 2, min_one=False).length == 0
    assert log.reader.read(0, 900, 2, min_one=False).length == 900


def test_read_at_the_end_is_empty_and_beyond_it_out_of_range() -> None:
    log = Disk().log
    append(log)
    assert log.reader.read(1, 1000, 1)[3:] == (0, 1, 1)
    assert log.reader.read(0, 1000, 0).length == 0
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRangeError, match="has offsets 0 to 1, not"):
            log.reader.read(offset, 1000, 1)


@pytest.mark.parametrize("interval", [0, 200, 1000, 1 << 20])
@pytest.mark.parametrize("max_bytes", [1, 500, 3000, 1 << 20])
def test_every_offset_is_found_whatever_the_index_interval(interval: int, max_bytes: int) -> None:
    disk = Disk(dataclasses.replace(SMALL, index_interval_bytes=interval))
    for i in range(60):
        append(disk.log, batch(1 + i % 3, size=90 + 7 * (i % 5)))
    for log in disk.lives():
        for offset in range(log.log_end_offset):
            piece = log.reader.read(offset, max_bytes, log.log_end_offset)
            header = read_header(piece.read())
            assert piece.base_offset == header.base_offset <= offset < header.next_offset
            assert piece.length <= max(max_bytes, header.size_bytes)
            assert piece.next_offset > offset


def test_sequential_reads_return_each_batch_once_across_segments() -> None:
    disk = Disk()
    disk.write(200)
    assert offsets(disk.log) == list(range(200))
    assert disk.log.reader.segment_count > 5


def test_reads_open_the_files_of_closed_segments_and_close_them_again() -> None:
    disk = Disk()
    disk.write(700)
    log = disk.reopen(clean=True)
    segments = log.reader.chain[1]
    assert not any(segment.is_loaded for segment in segments[:-1])
    assert offsets(log) == list(range(700))
    assert sum(segment.is_loaded for segment in segments) <= 5


def filled() -> Log:
    """Return a reopened log of 700 records in 21 segments; each timestamp equals its offset."""
    disk = Disk()
    for i in range(700):
        append(disk.log, batch(timestamp=i))
    return disk.reopen(clean=True)


def loaded(log: Log) -> int:
    return sum(segment.is_loaded for segment in log.reader.chain[1])


def test_timestamp_lookups_close_the_files_of_the_segments_that_they_read() -> None:
    """Regression: each lookup by timestamp left the segment that it had read loaded until
    retention deleted it."""
    log = filled()
    for i in range(0, 700, 20):
        found = offset_for_timestamp(log.reader, i, 700, [])
        assert found is not None and found.offset == i
        assert loaded(log) <= 5


def test_offset_lookup_by_byte_distance_closes_files_of_earlier_segments() -> None:
    """Regression: a query planner that divided a log into ranges of bytes left the files of every
    segment open."""
    log, start = filled(), 0
    while start < 700:
        start, _ = log.reader.offset_for_bytes(start, 2000, 700)
        assert loaded(log) <= 5


def test_reads_at_many_offsets_close_the_files_of_the_segments_that_they_read() -> None:
    """Regression: a reader that continued in a segment with closed files left them open."""
    log, ends = filled(), [0, 100, 200, 300, 400, 500, 600]
    while any(end < 700 for end in ends):
        for i, end in enumerate(ends):
            if end < 700:
                ends[i] = log.reader.read(end, 500, 700).next_offset
            assert loaded(log) <= 5


def test_deleted_segment_has_no_open_file() -> None:
    """Regression: up to four deleted segments stayed open, and used disk space, until later
    segments were read."""
    disk = Disk(dataclasses.replace(SMALL, retention_bytes=0))
    disk.write(100)
    log = disk.log
    assert log.reader.read(0, 1000, 100).length
    deleted = weakref.ref(log.reader.chain[1][0])
    assert len(log.apply_retention(0, 100)) == 2
    assert deleted() is None


def test_truncation_keeps_the_files_of_the_new_active_segment_open() -> None:
    log = filled()
    end = log.reader.chain[1][3].base_offset + 5
    assert log.reader.read(end, 1000, 700).length
    log.truncate_to(end)
    assert offsets(log) == list(range(end))
    assert log.reader.tail.segment.is_loaded
    assert append(log).base_offset == end


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_segment_that_is_truncated_while_a_reader_loads_it_accepts_appends(
    suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the reader replaced the segment's writable file by its own read-only one, or the
    index by one that it had read before the truncation."""
    disk = Disk()
    disk.write(80)
    log, open_file = disk.log, disk.files.open
    log.reader.chain[1][0].release()

    def open_and_truncate(path: str, *, writable: bool = False) -> MemFile:
        file = open_file(path, writable=writable)
        if path.endswith(suffix):
            monkeypatch.undo()
            log.truncate_to(10)
        return file

    monkeypatch.setattr(disk.files, "open", open_and_truncate)
    log.reader.read(5, 100, 34)
    assert [append(log, batch(2, size=300)).base_offset for _ in range(9)] == [*range(10, 28, 2)]
    assert log.reader.chain[1][0].index.last().offset < 28
    assert offsets(log) == [*range(10), *range(10, 28, 2)]
    assert offsets(disk.reopen()) == [*range(10), *range(10, 28, 2)]


def test_read_error_names_the_partition_and_leaves_the_data_directory_online() -> None:
    disk = Disk()
    disk.write(80)
    log = disk.log
    log.reader.chain[1][0].release()
    disk.files.kill()
    with pytest.raises(StorageError, match=str(KEY)):
        log.reader.read(70, 100, 80)
    assert not log.failed


def test_offset_for_bytes_returns_a_batch_boundary_after_the_start_offset() -> None:
    disk = Disk()
    disk.write(200)
    log = disk.log
    boundaries = set(range(201))
    for start in (0, 5, 33, 34, 150, 199):
        for limit in (0, 1, 119, 120, 1000, 5000, 1 << 30):
            end, count = log.reader.offset_for_bytes(start, limit, 200)
            assert start < end <= 200 and end in boundaries
            assert count == (end - start) * 120
            assert count <= max(limit, 120)
    assert log.reader.offset_for_bytes(0, 1 << 30, 200) == (200, 200 * 120)
    assert log.reader.offset_for_bytes(0, 1 << 30, 50) == (50, 50 * 120)
    assert log.reader.offset_for_bytes(200, 1000, 200) == (200, 0)
    log.delete_records_before(10)
    with pytest.raises(OffsetOutOfRangeError):
        log.reader.offset_for_bytes(9, 1000, 200)


def test_offset_lookup_by_number_of_bytes_is_accurate_within_two_percent() -> None:
    disk = Disk(TopicConfig(index_interval_bytes=1000))
    disk.write(2000)
    _, count = disk.log.reader.offset_for_bytes(0, 100_000, 2000)
    assert 98_000 < count <= 100_000


# The reader verifies batches and reports damage.


def test_verify_reports_a_corrupt_batch_and_continues() -> None:
    disk = Disk()
    disk.write(80)
    assert verify(disk.log, 0, 80) == []
    disk.flip(segment_name(34), 6 * 120 + 70)
    (bad,) = verify(disk.log, 0, 80)
    assert (bad.first_offset, bad.next_offset, bad.segment_base) == (40, 41, 34)
    assert verify(disk.log, 0, 40) == verify(disk.log, 41, 80) == []
    assert disk.log.reader.read(40, 1, 80).length == 120


def test_log_verification_continues_after_a_corrupt_last_offset_delta() -> None:
    """Regression: the check never ended.

    With a flipped bit in a batch's last offset, each read at a later offset returned that batch
    again.
    """
    disk = Disk()
    disk.write(30)
    disk.flip(segment_name(0), 6 * 120 + 25)
    for end in (10, 30):
        (bad,) = verify(disk.log, 0, end)
        assert (bad.first_offset, bad.next_offset) == (6, 7)
    assert verify(disk.log, 0, 6) == []


def test_damage_found_by_a_read_is_reported_and_skipped() -> None:
    disk = Disk()
    disk.write(80)
    disk.flip(segment_name(0), 10 * 120 + 3)
    log = disk.reopen(clean=True)
    found = [o for o in range(34) if o != 10 and log.reader.read(o, 1, 80).base_offset == o]
    assert len(found) == 33
    assert [(d.first_offset, d.next_offset) for d in log.reader.corruption] == [(10, 11)]
    assert log.reader.offset_for_bytes(10, 1000, 80)[0] > 10


class ReadCounter:
    """The file of a log's last segment, which calls ``before`` or ``after`` at its read with the
    given number. The log starts without cached positions."""

    def __init__(
        self,
        log: Log,
        number: int,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self.reads = 0
        segment = log.reader.chain[1][-1]
        self._file, self._number, self._before, self._after = segment.file, number, before, after
        segment._file = self  # type: ignore[assignment]
        log.reader.hints[:] = [None] * len(log.reader.hints)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pread(self, position: int, length: int) -> bytes:
        self.reads += 1
        is_now = self.reads == self._number
        if is_now:
            self._before()
        data = self._file.pread(position, length)
        if is_now:
            self._after()
        return data


@pytest.mark.parametrize("reads_before", range(3))
def test_truncation_during_a_read_is_not_reported_as_damage(reads_before: int) -> None:
    """While the read runs, a deposed leader truncates its log and then appends at the same offsets.

    If the read recorded damage, the offsets would be unreadable until the next start.
    """
    disk = Disk()
    disk.write(20)
    log = disk.log
    ReadCounter(log, reads_before + 1, before=lambda: log.truncate_to(10))
    with contextlib.suppress(StorageError):
        assert log.reader.read(9, 1000, 15).base_offset == 9
    with contextlib.suppress(StorageError, OffsetOutOfRangeError):
        log.reader.read(12, 1000, 15)
    assert verify(log, 9, 20) == []
    assert log.log_end_offset == 10
    disk.write(10)
    assert log.reader.corruption == ()
    assert offsets(log) == list(range(20))


@pytest.mark.parametrize("start", [9, 10, 15])
def test_read_during_a_truncation_is_not_reported_as_damage(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the file was truncated before readers saw the new log end, so the broker
    logged and counted damage."""
    disk = Disk()
    disk.write(20)
    log = disk.log
    ends, truncate = [], MemFile.truncate

    def truncate_and_read(file: MemFile, size: int) -> None:
        truncate(file, size)
        with contextlib.suppress(StorageError, OffsetOutOfRangeError):
            ends.append(log.reader.read(start, 1000, 20).next_offset)
            log.reader.locate(start)

    monkeypatch.setattr(MemFile, "truncate", truncate_and_read)
    log.truncate_to(10)
    assert ends == ([10] if start <= 10 else [])
    assert log.reader.corruption == () and not log.reader.tail.segment.damaged


def _overtake(log: Log, monkeypatch: pytest.MonkeyPatch, reads_before: int) -> None:
    """Replace the batches from offset 10 on by shorter ones, after ``reads_before`` file reads."""
    reads, pread = 0, MemFile.pread

    def overtaken(file: MemFile, position: int, length: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == reads_before + 1:
            log.truncate_to(10)
            for _ in range(20):
                append(log, batch(size=100))
        return pread(file, position, length)

    monkeypatch.setattr(MemFile, "pread", overtaken)


@pytest.mark.parametrize("reads_before", range(3))
@pytest.mark.parametrize("start", [9, 15, 18])
def test_read_during_a_truncation_reports_no_damage(
    start: int, reads_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the reader looked for batches at their former file positions, which now lie
    inside new batches. It took the new batches for damaged ones, and their offsets stayed
    unreadable until the broker's next start.
    """
    disk = Disk()
    for _ in range(20):
        append(disk.log, batch(size=120))
    log = disk.log
    log.reader.forget_hints()
    _overtake(log, monkeypatch, reads_before)
    with contextlib.suppress(StorageError):
        log.reader.read(start, 1 << 20, 19)
    monkeypatch.undo()
    assert log.reader.corruption == () and not log.reader.tail.segment.damaged
    assert offsets(log) == list(range(log.log_end_offset))


@pytest.mark.parametrize("reads_before", range(2))
@pytest.mark.parametrize("look_up", ["offset_for_timestamp", "verify", "max_timestamp"])
def test_truncation_during_a_lookup_is_not_reported_as_damage(
    look_up: str, reads_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the batches that had replaced the removed ones were reported as damage."""
    disk = Disk()
    for _ in range(20):
        append(disk.log, batch(size=120))
    log = disk.log
    damage: list[CorruptRange] = []
    _overtake(log, monkeypatch, reads_before)
    with contextlib.suppress(StorageError):
        if look_up == "verify":
            damage = verify(log, 0, 20)
        elif look_up == "max_timestamp":
            offset_for_max_timestamp(log.reader, 19, damage)
        else:
            offset_for_timestamp(log.reader, 1 << 60, 19, damage)
    assert damage == [] and log.reader.corruption == ()


@pytest.mark.parametrize("reads_before", range(2))
def test_read_during_a_truncation_leaves_no_cached_positions_of_truncated_batches(
    reads_before: int,
) -> None:
    """Regression: the read cached the file positions of batches that were truncated meanwhile.

    Later reads at these offsets failed as corrupt, or returned uncommitted records.
    """
    disk = Disk()
    for _ in range(20):
        append(disk.log, batch(size=120))
    log = disk.log

    def replace_batches() -> None:
        log.truncate_to(10)
        for _ in range(10):
            append(log, batch(size=100))

    file = ReadCounter(log, reads_before + 1, after=replace_batches)
    with contextlib.suppress(StorageError):
        log.reader.read(9, 1 << 20, 15)
    assert (file.reads >= reads_before, log.log_end_offset) == (True, 20)
    for first in range(10, 20):
        for end in range(first + 1, 21):
            found = log.reader.read(first, 1 << 20, end)
            assert (found.next_offset, found.length) == (end, 100 * (end - first))
    assert log.reader.corruption == ()


def test_read_during_a_truncation_returns_no_truncated_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the returned file range had a negative length, or an end beyond the truncated
    log."""
    disk = Disk()
    disk.write(60)
    log = disk.log
    log.reader.read(50, 240, 60)
    find_stop = log.reader._stop

    def truncate_and_find_stop(*arguments: Any) -> Any:
        log.truncate_to(40)
        return find_stop(*arguments)

    monkeypatch.setattr(log.reader, "_stop", truncate_and_find_stop)
    assert log.reader.read(36, 100_000, 59).next_offset == 40
    disk.write(20)
    with pytest.raises(StorageError, match="was removed by a truncation"):
        log.reader.offset_for_bytes(36, 100_000, 59)


# Readers run on other threads than the writer.


def test_flushed_offset_never_decreases_while_another_thread_appends(
    tmp_path: Path,
) -> None:
    """Each flush reaches the log end at its call, and finally the whole log is synced."""
    manager = LogManager(OsFiles(), str(tmp_path / "data"))
    manager.data.start()
    manager.open_all(0)
    log = manager.create(KEY, dataclasses.replace(SMALL, segment_bytes=20_000))
    stop, ends, faults = threading.Event(), [0], []

    def flush() -> None:
        while not stop.is_set():
            end = log.log_end_offset
            flushed = log.flush()
            if flushed < end or flushed < ends[-1]:
                faults.append((end, flushed))
            ends.append(flushed)

    thread = threading.Thread(target=flush)
    thread.start()
    for _ in range(1500):
        append(log)
    stop.set()
    thread.join(timeout=60)
    assert log.flush() == 1500
    assert all(segment.is_synced for segment in log.reader.chain[1])
    assert not faults
    manager.close_clean()


def test_reads_return_whole_consecutive_batches_while_another_thread_appends(
    tmp_path: Path,
) -> None:
    manager = LogManager(OsFiles(), str(tmp_path / "data"))
    manager.data.start()
    manager.open_all(0)
    log = manager.create(KEY, dataclasses.replace(SMALL, segment_bytes=20_000))
    faults: list[str] = []
    count = 3000

    def follow() -> None:
        offset = 0
        while offset < count and not faults:
            piece = log.reader.read(offset, 700, log.log_end_offset)
            data, at = piece.read(), 0
            while at < len(data):
                header = read_header(data, at)
                if header.base_offset != offset:
                    faults.append(f"{header.base_offset} instead of {offset}")
                    return
                at, offset = at + header.size_bytes, header.next_offset
            if offset != piece.next_offset:
                faults.append(f"a slice to {piece.next_offset} ended at {offset}")

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(count):
        append(log, batch(size=100 + i % 90))
        if i % 100 == 0:
            log.flush()
    for thread in threads:
        thread.join(timeout=60)
    manager.close_clean()
    assert not faults
    assert not any(thread.is_alive() for thread in threads)
