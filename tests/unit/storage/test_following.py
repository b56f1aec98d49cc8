"""Tests of a follower's log: appends of fetched batches, truncation, and a restart at an offset."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from random import Random

import pytest
from support.memory_files import MemFile, MemFiles, PowerCut
from support.stored import (
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
    verify,
)

from broker_lite.errors import (
    CorruptMessageError,
    OutOfOrderSequenceError,
    StorageError,
    UnreadableRecordsError,
)
from broker_lite.model import OffsetAndEpoch
from broker_lite.record.batch import read_header
from broker_lite.record.walker import LogBatch
from broker_lite.storage import reader
from broker_lite.storage.log import Log
from broker_lite.storage.scan import walk_headers


def fetched(leader: Log, offset: int, max_bytes: int = 1 << 20) -> memoryview:
    """Return the leader's batches from ``offset`` on; unlike a fetch response, they may
    come from several segments."""
    data, end = b"", leader.log_end_offset
    while offset < end and len(data) < max_bytes:
        piece = leader.reader.read(offset, max_bytes - len(data), end)
        data, offset = data + piece.read(), piece.next_offset
    return memoryview(data)


def lives(disk: Disk) -> Iterator[Log]:
    """Yield the open log, then the log reopened after a crash, then reopened after a clean stop."""
    yield disk.log
    yield disk.reopen()
    yield disk.reopen(clean=True)


def filled(count: int, *, first_epoch: int = 1, per_epoch: int = 30) -> Log:
    """Return a leader's log of ``count`` records, with a new leader epoch every ``per_epoch``
    records."""
    log = Disk().log
    for i in range(count):
        append(log, batch(producer=(7, 0, i)), epoch=first_epoch + i // per_epoch)
    return log


# The follower appends batches that it fetched from a leader.


def test_fetched_batches_that_do_not_continue_the_log_are_refused() -> None:
    leader, disk = filled(20, per_epoch=8), Disk()
    follower = disk.log
    follower.append_as_follower(fetched(leader, 0, 1000), 9, 0)
    end, files = follower.log_end_offset, disk.state()
    first = bytearray(fetched(leader, end))
    gap = fetched(leader, end + 1)
    falling = bytearray(first)
    falling[120 * 5 + 12 : 120 * 5 + 16] = (0).to_bytes(4, "big")
    flipped = bytearray(first)
    flipped[120 * 3 + 100] ^= 1
    for bad in (gap, fetched(leader, 0), memoryview(falling), memoryview(flipped)):
        with pytest.raises(CorruptMessageError):
            follower.append_as_follower(bad, 9, 0)
    assert (follower.log_end_offset, disk.state()) == (end, files)
    assert follower.append_as_follower(memoryview(first), 9, 0) == 20


def test_incomplete_batch_at_the_end_of_a_fetch_is_left_for_the_next_fetch() -> None:
    leader, follower = filled(3), Disk().log
    whole = fetched(leader, 0)
    for length in (0, 30, 119):
        assert follower.append_as_follower(whole[:length], 1, 0) == 0
    assert follower.append_as_follower(whole[:250], 1, 0) == 2
    assert follower.append_as_follower(whole[240:], 1, 0) == 3


def test_fetched_batches_that_do_not_fit_on_the_disk_are_left_for_the_next_fetch() -> None:
    leader, disk = filled(60, per_epoch=20), Disk()
    follower = disk.log
    disk.files.fail_next("write", ENOSPC, path="leader-epoch", times=2)
    with pytest.raises(StorageError, match="full"):
        follower.append_as_follower(fetched(leader, 0), 3, 0)
    assert follower.log_end_offset == 0
    disk.files.fail_next("create", ENOSPC, path=segment_name(34))
    assert follower.append_as_follower(fetched(leader, 0), 3, 0) == 34
    assert follower.leader_epochs.entries == ((1, 0), (2, 20))
    with pytest.raises(StorageError):
        disk.files.fail_next("write", ENOSPC, path=".log")
        follower.append_as_follower(fetched(leader, 34), 3, 0)
    assert not follower.failed
    assert follower.append_as_follower(fetched(leader, 34), 3, 0) == 60
    assert stored(follower) == stored(leader)


def test_indexes_that_a_follower_saves_after_large_fetches_are_used_at_a_clean_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker_lite.storage.offset_index.ENTRIES_MAX", 4)
    leader = filled(8)
    disk = Disk(dataclasses.replace(SMALL, index_interval_bytes=0))
    for offset in (0, 4):
        disk.log.append_as_follower(fetched(leader, offset, 4 * 120), 1, 0)
    assert disk.log.log_end_offset == 8
    disk.reopen(clean=True)
    assert disk.manager.reports[KEY].scanned_bytes == 0


def test_failed_append_of_fetched_batches_takes_the_data_directory_offline() -> None:
    leader, disk = filled(60), Disk()
    disk.files.fail_next("create", EIO, path=segment_name(34))
    with pytest.raises(StorageError):
        disk.log.append_as_follower(fetched(leader, 0), 3, 0)
    assert disk.log.failed


def test_new_leader_recognises_duplicates_of_batches_it_appended_as_follower() -> None:
    """A follower records sequences without checking them, so that it can check later ones as
    leader."""
    leader, follower = filled(40), Disk().log
    follower.append_as_follower(fetched(leader, 0), 2, 0)
    follower.start_epoch(5)
    assert append(follower, batch(producer=(7, 0, 37)), epoch=5) == (37, 38, -1, True)
    with pytest.raises(OutOfOrderSequenceError):
        append(follower, batch(producer=(7, 0, 41)), epoch=5)
    with pytest.raises(OutOfOrderSequenceError, match="begin at sequence 0"):
        append(follower, batch(producer=(8, 0, 3)), epoch=5)
    assert append(follower, batch(producer=(7, 0, 40)), epoch=5).base_offset == 40


def test_truncation_removes_truncated_batches_from_producer_state() -> None:
    leader, follower = filled(40), Disk().log
    follower.append_as_follower(fetched(leader, 0), 2, 0)
    follower.truncate_to(36)
    with pytest.raises(OutOfOrderSequenceError):
        append(follower, batch(producer=(7, 0, 40)), epoch=5)
    assert append(follower, batch(producer=(7, 0, 35)), epoch=5).duplicate
    assert append(follower, batch(producer=(7, 0, 36)), epoch=5).base_offset == 36


def test_retried_truncation_removes_truncated_batches_from_producer_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the retry found nothing to truncate and kept the old producer state.

    As leader, the replica then acknowledged a truncated batch as a duplicate without storing it.
    """
    disk = Disk()
    for i in range(10):
        append(disk.log, batch(producer=(7, 0, i)))

    def fails(*_: object) -> Iterator[LogBatch]:
        raise OSError(EIO, "a sector that cannot be read")

    monkeypatch.setattr(reader, "walk_headers", fails)
    with pytest.raises((OSError, StorageError)):
        disk.log.truncate_to(6)
    monkeypatch.setattr(reader, "walk_headers", walk_headers)
    if not disk.log.failed:
        disk.log.truncate_to(6)
        assert append(disk.log, batch(producer=(7, 0, 5))).duplicate
        assert append(disk.log, batch(producer=(7, 0, 6))) == (6, 7, -1, False)
    log = disk.reopen()
    assert log.log_end_offset >= 6


def test_diverged_logs_become_equal_by_comparing_leader_epochs() -> None:
    """The cases of KIP-101 and KIP-279: the follower repeatedly asks the leader for the end
    offset of the follower's last leader epoch, and truncates, until both logs agree."""
    for seed in range(200):
        rng = Random(seed)
        common = rng.randint(0, 30)
        leader, follower = Disk().log, Disk().log
        epoch = 1
        for i in range(common):
            epoch += rng.random() < 0.2
            append(leader, batch(producer=(7, 0, i)), epoch=epoch)
        if common:
            follower.append_as_follower(fetched(leader, 0), epoch, 0)
        # Each log then gets batches of different epochs.
        for i in range(rng.randint(0, 40)):
            epoch += rng.random() < 0.3
            append((leader, follower)[epoch % 2], batch(fill=i), epoch=epoch)
        epoch += 1
        leader.start_epoch(epoch)
        for _ in range(20):
            last, offset = follower.leader_epochs.latest, follower.log_end_offset
            end = leader.reader.end_offset_for(last)
            if last == -1 or (end is not None and end.leader_epoch == last and offset <= end[0]):
                break
            theirs = end or OffsetAndEpoch(leader.log_end_offset, epoch)
            own = follower.reader.end_offset_for(theirs.leader_epoch)
            cut = theirs.offset if own is None else own.offset
            if own is not None and own.leader_epoch == theirs.leader_epoch:
                cut = min(cut, theirs.offset)
            follower.truncate_to(min(cut, offset))
        else:
            pytest.fail(f"seed {seed}: no end")
        assert follower.log_end_offset >= common
        append(leader, epoch=epoch)
        follower.append_as_follower(fetched(leader, follower.log_end_offset), epoch, 0)
        assert stored(follower) == stored(leader)
        assert follower.leader_epochs.epoch_at(leader.log_end_offset - 1) == epoch


# ``start_at`` empties the log and lets it continue at another offset.


@pytest.mark.parametrize("start", [0, 10, 33, 34, 40, 68, 80, 81, 5000])
@pytest.mark.parametrize("log_start", [0, 36, 70])
def test_fully_truncated_log_is_empty_and_continues_at_its_new_start_offset(
    start: int, log_start: int
) -> None:
    disk = Disk()
    for i in range(80):
        append(disk.log, batch(producer=(7, 0, i)), epoch=1 + i // 30)
    disk.log.flush()
    disk.manager.checkpoint()
    disk.log.delete_records_before(log_start)
    disk.log.apply_retention(0, 80)
    disk.log.start_at(start)
    for log in lives(disk):
        assert (log.log_start_offset, log.log_end_offset, log.flushed_end) == (start,) * 3
        assert (log.reader.corruption, log.leader_epochs.entries, log.reader.segment_count) == (
            (),
            (),
            1,
        )
        assert len(log.producers) == 0
        assert log.reader.read(start, 1000, start).length == 0
    if start:
        # The log may have had batches of this producer before, so any first sequence is accepted.
        append(disk.log, batch(producer=(7, 0, 80)), epoch=9)
    else:
        append(disk.log, epoch=9)
    disk.log.flush()
    assert offsets(disk.reopen()) == [start]
    assert disk.log.leader_epochs.entries == ((9, start),)


def test_follower_appends_a_batch_that_begins_below_the_log_start_offset() -> None:
    """A leader's log start may lie inside a batch, which the leader sends whole."""
    leader, disk = Disk().log, Disk()
    for _ in range(4):
        append(leader, batch(10))
    leader.delete_records_before(25)
    disk.log.start_at(25)
    assert disk.log.append_as_follower(fetched(leader, 25), 1, 0) == 40
    for log in lives(disk):
        assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (25, 40, ())
        assert read_header(log.reader.read(25, 1000, 40).read()).base_offset == 20
    with pytest.raises(CorruptMessageError):
        disk.log.append_as_follower(fetched(leader, 25), 1, 0)


def test_truncation_below_the_log_start_offset_leaves_an_empty_log() -> None:
    disk = Disk()
    disk.write(80)
    disk.log.delete_records_before(50)
    disk.log.truncate_to(40)
    for log in lives(disk):
        assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (40, 40, ())
    append(disk.log, batch(10))
    disk.log.delete_records_before(45)
    disk.log.truncate_to(47)
    for log in lives(disk):
        assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (45, 45, ())


def test_truncation_inside_the_first_batch_keeps_the_log_start() -> None:
    """Regression: the log then began at the truncation offset. The removed batch's records before
    this offset were not fetched again.

    If such a replica became leader, all replicas lost these records.
    """
    disk = Disk()
    append(disk.log, batch(3))
    append(disk.log, batch(5))
    disk.log.truncate_to(2)
    for log in lives(disk):
        assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (0, 0, ())
    leader = Disk()
    append(leader.log, batch(3))
    assert disk.log.append_as_follower(fetched(leader.log, 0), 1, 0) == 3


def test_truncation_below_the_log_start_can_be_retried_after_a_full_disk() -> None:
    """Regression: the truncation that failed left an empty log whose start was beyond its end.

    The retry then found nothing to truncate, and records that were fetched later counted as
    deleted.
    """
    for failing in ("recovery-point", "leader-epoch", segment_name(30), "log-start"):
        disk = Disk()
        for _ in range(20):
            append(disk.log, batch(3))
        disk.log.flush()
        disk.manager.checkpoint()
        disk.log.delete_records_before(45)
        disk.files.fail_next("create", ENOSPC, path=failing)
        with contextlib.suppress(StorageError):
            disk.log.truncate_to(30)
        disk.log.truncate_to(30)
        for log in lives(disk):
            assert (log.log_start_offset, log.log_end_offset, log.reader.corruption) == (30, 30, ())


def test_truncation_on_a_full_disk_does_not_take_the_data_directory_offline() -> None:
    disk = Disk(dataclasses.replace(SMALL, index_interval_bytes=0))
    disk.write(30)
    # Save indexes that describe all 30 batches.
    disk.log.close()
    disk.fill()
    disk.log.truncate_to(29)
    disk.fill(16 << 20)
    # The log has its former size again, but the saved indexes would have another end offset.
    append(disk.log, batch(2))
    disk.log.flush()
    for log in lives(disk):
        assert (log.log_end_offset, log.reader.corruption) == (31, ())
        assert offsets(log)[-1] == 29


def test_truncation_at_a_batch_that_the_disk_cannot_read_removes_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    disk.write(30)
    bad, pread = 20 * 120, MemFile.pread

    def failing(file: MemFile, position: int, length: int) -> bytes:
        if file.path.endswith(".log") and position <= bad < position + length:
            raise OSError(EIO, "a bad sector")
        return pread(file, position, length)

    monkeypatch.setattr(MemFile, "pread", failing)
    with pytest.raises(UnreadableRecordsError):
        disk.log.reader.read(20, 100, 30)
    disk.log.truncate_to(20)
    monkeypatch.undo()
    assert 15 < disk.log.log_end_offset <= 20
    assert offsets(disk.log) == list(range(disk.log.log_end_offset))
    append(disk.log)


def test_truncation_also_flushes_the_older_segments() -> None:
    disk = Disk()
    disk.write(50, flush=False)
    disk.log.truncate_to(40)
    assert disk.log.flushed_end == 40
    disk.files.crash(Random(1))
    disk.start()
    assert offsets(disk.log) == list(range(40))


# The follower truncates a corrupt log at the damage and fetches the rest again.


def damaged(flip: Callable[[Disk], None]) -> Disk:
    disk = Disk()
    disk.write(80)
    disk.manager.checkpoint()
    disk.kill()
    flip(disk)
    disk.start()
    return disk


@pytest.mark.parametrize(
    ("flip", "first"),
    [
        (lambda disk: disk.flip(segment_name(34), 6 * 120 + 100), 40),
        (lambda disk: disk.flip(segment_name(34), 6 * 120 + 16), 40),
        (lambda disk: disk.flip(segment_name(68), 11), 68),
        (lambda disk: disk.flip(segment_name(0), 3), 0),
        (lambda disk: disk.shrink(segment_name(34), 130), 66),
        (lambda disk: disk.shrink(segment_name(68), 10), 79),
        (lambda disk: disk.remove(segment_name(34)), 34),
        (lambda disk: disk.remove(segment_name(0)), 0),
    ],
    ids=[
        "flipped bit in a body",
        "flipped bit in a magic byte",
        "flipped bit in a length",
        "flipped bit in the first base offset",
        "middle segment truncated",
        "last segment truncated",
        "middle segment removed",
        "first segment removed",
    ],
)
def test_follower_truncated_at_a_corrupt_batch_appends_the_leaders_batches_again(
    flip: Callable[[Disk], None], first: int
) -> None:
    disk = damaged(flip)
    log = disk.log
    # The start does not scan closed segments below the recovery point.
    found = log.reader.corruption or tuple(verify(log, 0, 80))
    assert found[0].first_offset == first
    log.truncate_to(first)
    assert (log.log_end_offset, log.flushed_end, log.reader.corruption) == (first, first, ())
    leader = Disk()
    leader.write(90)
    log.append_as_follower(fetched(leader.log, first), 1, 0)
    assert log.flush() == 90
    assert (verify(log, 0, 90), stored(log)) == ([], stored(leader.log))
    for log in lives(disk):
        assert (log.reader.corruption, verify(log, 0, 90), stored(log)) == (
            (),
            [],
            stored(leader.log),
        )


# Power cuts and disk errors interrupt random runs of a follower.


STEP = 12
"""The disk error is injected at every n-th disk operation."""


class Followed:
    """A seeded random run of a follower's log; ``claimed`` is the flushed end that the log
    reported."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = Disk()
        self.leader = filled(0)
        self.epoch = 1
        self.claimed = 0
        self.claimed_start = 0
        self.producer_id = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        log, choice = self.disk.log, self.random.randrange(100)
        if choice < 40:
            self.follow(log)
        elif choice < 60:
            self.claimed = log.flush()
        elif choice < 70:
            self.disk.manager.checkpoint()
        elif choice < 80:
            end = log.log_end_offset
            self.cut(log, self.random.randint(max(0, log.log_start_offset - 2), end))
        elif choice < 86:
            at = self.random.choice((0, 3, log.log_end_offset + 7, log.log_start_offset))
            self.claimed, self.claimed_start = 0, 0
            self.again(lambda: log.start_at(at))
            self.claimed = self.claimed_start = at
        elif choice < 93:
            at = self.random.randint(log.log_start_offset, log.log_end_offset)
            self.again(lambda: log.delete_records_before(at))
            self.claimed_start = max(self.claimed_start, log.log_start_offset)
        else:
            log.apply_retention(self.disk.now_ms, log.flushed_end)

    def cut(self, log: Log, offset: int) -> None:
        """Truncate the log to ``offset``, and lower the flushed end that the test expects."""
        self.claimed = min(self.claimed, offset - 2)
        if offset < log.log_start_offset:
            self.claimed_start = 0
        self.again(lambda: log.truncate_to(offset))
        self.claimed = log.flushed_end
        self.claimed_start = max(self.claimed_start, min(log.log_start_offset, offset))

    def follow(self, log: Log) -> None:
        self.epoch += self.random.random() < 0.3
        leader = Disk().log
        leader.start_at(log.log_end_offset)
        for _ in range(self.random.randint(1, 4)):
            self.producer_id += 1
            rows, producer = self.random.randint(1, 3), (self.producer_id, 0, 0)
            append(leader, batch(rows, size=600, producer=producer), epoch=self.epoch)
        sent = fetched(leader, log.log_end_offset)
        self.again(lambda: log.append_as_follower(sent, self.epoch, 0))

    def again(self, change: Callable[[], object]) -> None:
        """Make a change of the log; if the disk was full, retry it once, as brokers do."""
        try:
            change()
        except StorageError:
            if self.disk.log.failed:
                raise
            change()

    def check(self) -> None:
        log = self.disk.log
        assert log.reader.corruption == ()
        assert log.flushed_end == log.log_end_offset >= self.claimed
        assert log.log_start_offset >= self.claimed_start
        assert verify(log, log.log_start_offset, log.log_end_offset) == []
        offset = log.log_start_offset
        for header in stored(log):
            assert header.base_offset <= offset < header.next_offset
            assert log.reader.epoch_at(max(header.base_offset, log.log_start_offset)) == (
                header.leader_epoch
            )
            offset = header.next_offset
        assert offset == log.log_end_offset
        self.check_producers()

    def check_producers(self) -> None:
        """Check that the producer state names only batches that are in the log."""
        log = self.disk.log
        for producer_id in range(self.producer_id + 1):
            for produced in ((known := log.producers.get(producer_id)) and known.batches) or ():
                assert produced.next_offset <= log.log_end_offset
                if produced.base_offset >= log.log_start_offset:
                    found = log.reader.read(produced.base_offset, 1, log.log_end_offset).read()
                    assert read_header(found).producer_id == producer_id


@pytest.mark.parametrize("seed", range(4))
def test_follower_survives_a_power_cut_at_every_file_operation(seed: int) -> None:
    trace = Followed(seed)
    first = trace.disk.files.operations
    trace.run(50)
    end = trace.disk.files.operations
    for stop_at in range(first, end + 1, 2):
        trace = Followed(seed)
        trace.disk.files.stop_at = stop_at
        with contextlib.suppress(PowerCut):
            trace.run(50)
        trace.disk.files.crash(Random(seed * 7919 + stop_at))
        trace.disk.start()
        trace.check()
        # The recovered log must accept further batches.
        trace.follow(trace.disk.log)
        trace.disk.log.flush()
        trace.check()
        trace.disk.reopen()
        trace.check()
    assert KEY in trace.disk.manager.logs and FOLDER


@pytest.mark.parametrize("error", [ENOSPC, EIO])
@pytest.mark.parametrize("seed", range(2))
def test_follower_log_recovers_from_a_fault_at_any_file_operation(seed: int, error: int) -> None:
    """A retry, or else the next start, completes the interrupted operation."""
    trace = Followed(seed)
    first = trace.disk.files.operations
    trace.run(50)
    for at in range(first + seed, trace.disk.files.operations + 1, STEP):
        trace = Followed(seed)
        fail_at(trace.disk.files, at, error)
        try:
            trace.run(50)
        except StorageError:
            assert trace.disk.log.failed
        else:
            trace.check_producers()
        trace.disk.reopen()
        trace.check()
        trace.follow(trace.disk.log)
        trace.disk.log.flush()
        trace.check()


def fail_at(files: MemFiles, at: int, error: int) -> None:
    """Let the disk operation number ``at`` fail once with ``error``."""
    before = files._take_fault

    def take_fault(operation: str, path: str) -> tuple[str, str, int, int] | None:
        fault = before(operation, path)
        return fault or ((operation, path, error, 7) if files.operations == at else None)

    files._take_fault = take_fault  # type: ignore[method-assign]
