"""Tests that crash a log at every disk operation of a seeded random run.

After each recovery every flushed batch is readable, no unwritten byte is served, a retried batch is
a duplicate, and the open and aborted transactions are those of the batches in the log.
"""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from support.memory_files import PowerCut
from support.stored import KEY, SMALL, Disk, append, batch, epochs

from broker_lite.errors import OutOfOrderSequenceError, StorageError
from broker_lite.record import format as fmt
from broker_lite.record.batch import read_header
from broker_lite.record.control import Marker, decode_marker, encode_markers
from broker_lite.record.crc32c import crc32c
from broker_lite.storage.log import Log


class Trace:
    """A seeded random run of storage operations, and the offsets that the log has acknowledged."""

    def __init__(self, seed: int, length: int) -> None:
        self.random = Random(seed)
        self.disk = Disk(SMALL)
        self.length = length
        self.written: dict[int, bytearray] = {}
        self.appended_end = 0
        self.promised_end = 0
        self.promised_start = 0
        self.sequence = 0
        self.transactional: dict[int, int] = {}
        self.epoch = 1

    def run(self) -> None:
        for _ in range(self.length):
            self.step()

    def step(self) -> None:
        log, choice = self.disk.log, self.random.randrange(100)
        if choice < 10:
            self.write_transaction(log)
        elif choice < 18:
            self.end_transaction(log)
        elif choice < 60:
            self.append(log)
        elif choice < 80:
            self.promised_end = max(self.promised_end, log.flush())
        elif choice < 88:
            self.disk.manager.checkpoint()
        elif choice < 91:
            self.epoch += 1
            log.start_epoch(self.epoch)
        elif choice < 94:
            start = self.random.randint(log.log_start_offset, log.flushed_end)
            self.promised_start = max(self.promised_start, log.delete_records_before(start))
        elif choice < 97:
            self.disk.now_ms += 20
            log.apply_retention(self.disk.now_ms, log.flushed_end)
            self.disk.manager.tick(self.disk.now_ms)
        else:
            log.save_snapshot()

    def append(self, log: Log) -> None:
        size = self.random.choice((100, 300, 900, 2500))
        rows = self.random.randint(1, 4)
        data = batch(rows, size=size, producer=(7, 0, self.sequence), fill=self.sequence % 251)
        # Record the batch first: the append stamps it in place, and a crash may leave it in the
        # log.
        self.written[log.log_end_offset] = data
        appended = append(log, data, epoch=self.epoch, now_ms=self.disk.now_ms)
        self.appended_end = appended.next_offset
        self.sequence += rows

    def write_transaction(self, log: Log) -> None:
        producer = self.random.choice((21, 22, 23))
        sequence = self.transactional.get(producer, 0)
        data = batch(
            size=self.random.choice((100, 900)),
            producer=(producer, 0, sequence),
            attributes=fmt.ATTRIBUTE_TRANSACTIONAL,
        )
        self.written[log.log_end_offset] = data
        appended = append(log, data, epoch=self.epoch, now_ms=self.disk.now_ms)
        self.appended_end = appended.next_offset
        self.transactional[producer] = sequence + 1

    def end_transaction(self, log: Log) -> None:
        marker = Marker(self.random.choice((21, 22, 23)), 0, 1, self.random.random() < 0.3)
        buffer, _ = encode_markers([marker], log.log_end_offset, self.epoch, self.disk.now_ms)
        if log.producers.judge(log.key, marker):
            self.written[log.log_end_offset] = buffer
        log.append_markers([marker], self.epoch, self.disk.now_ms)
        self.appended_end = log.log_end_offset

    def check(self) -> None:
        """Compare the recovered log with the acknowledged offsets and with the written batches."""
        log = self.disk.log
        assert log.reader.corruption == ()
        assert log.flushed_end == log.log_end_offset >= self.promised_end
        assert log.log_start_offset >= self.promised_start
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            piece = log.reader.read(offset, 3000, log.log_end_offset)
            data = piece.read()
            while data:
                header = read_header(data)
                assert data[: header.size_bytes] == self.written[header.base_offset]
                assert header.base_offset <= offset < header.next_offset
                assert header.crc == crc32c(data[21 : header.size_bytes])
                assert log.reader.epoch_at(offset) == header.leader_epoch
                offset, data = header.next_offset, data[header.size_bytes :]
        assert all(start <= log.log_end_offset for _, start in epochs(log))
        self.check_transactions(log)
        self.check_producer(log)

    def check_transactions(self, log: Log) -> None:
        """Compare the log's open and aborted transactions with all batches ever written to the
        log."""
        open_at: dict[int, list[int]] = {}
        aborted: dict[int, list[int]] = {}
        for offset, data in sorted(self.written.items()):
            header = read_header(data)
            if offset >= log.log_end_offset or not header.is_transactional:
                continue
            if not header.is_control:
                open_at.setdefault(header.producer_id, []).append(offset)
            elif header.producer_id in open_at:
                offsets = open_at.pop(header.producer_id)
                end = decode_marker(data, header)
                if end is not None and not end.is_commit:
                    aborted[offset] = offsets
        start, end_offset = log.log_start_offset, log.log_end_offset
        # Once its first records are deleted, a transaction may start at a later record or be
        # dropped.
        held = log.reader.last_stable_offset(end_offset)
        assert held >= min((max(one[0], start) for one in open_at.values()), default=end_offset)
        remaining = [at for offsets in open_at.values() for at in offsets if at >= start]
        assert held <= min(remaining, default=end_offset)
        listed = {
            one.last_offset: one.first_offset for one in log.reader.aborted_in(start, end_offset)
        }
        for marker, offsets in aborted.items():
            if marker >= start and max(offsets) >= start:
                assert listed[marker] <= min(at for at in offsets if at >= start)
        assert listed.keys() <= aborted.keys()

    def check_producer(self, log: Log) -> None:
        """Check that the log recognises a repeated append of the last batch as a duplicate, and
        refuses a sequence gap."""
        last = max(
            (o for o, data in self.written.items() if o < log.log_end_offset and is_plain(data)),
            default=None,
        )
        if last is None or last < log.log_start_offset:
            return
        again = bytearray(self.written[last])
        again[0:8] = bytes(8)
        assert append(log, again, epoch=self.epoch).duplicate
        header = read_header(self.written[last])
        with pytest.raises(OutOfOrderSequenceError):
            append(log, batch(producer=(7, 0, header.last_sequence + 2)), epoch=self.epoch)


def is_plain(data: bytearray) -> bool:
    return not read_header(data).is_transactional


def _cut_and_recover(seed: int, length: int, stop_at: int, crash: Random | None) -> Trace:
    trace = Trace(seed, length)
    trace.disk.files.stop_at = stop_at
    with contextlib.suppress(PowerCut):
        trace.run()
    files = trace.disk.files
    if crash is None:
        files.kill()
    else:
        files.crash(crash)
    trace.disk.start()
    return trace


def _operations(seed: int, length: int) -> tuple[int, int]:
    trace = Trace(seed, length)
    first = trace.disk.files.operations
    trace.run()
    return first, trace.disk.files.operations


@pytest.mark.parametrize("seed", range(2))
def test_flushed_batches_survive_a_power_cut_at_every_operation(seed: int) -> None:
    first, end = _operations(seed, 70)
    assert end - first > 100
    for stop_at in range(first, end + 1):
        trace = _cut_and_recover(seed, 70, stop_at, Random(seed * 1000 + stop_at))
        trace.check()
        before = trace.disk.state()
        trace.disk.reopen()
        assert trace.disk.manager.reports[KEY].torn_bytes == 0
        after = trace.disk.state()
        assert {n: d for n, d in after.items() if n.endswith((".log", ".torn"))} == {
            n: d for n, d in before.items() if n.endswith((".log", ".torn"))
        }
        trace.check()


@pytest.mark.parametrize("seed", range(10, 13))
def test_flushed_batches_survive_whichever_unsynced_pages_a_power_cut_loses(seed: int) -> None:
    first, end = _operations(seed, 120)
    for i in range(60):
        stop_at = Random(i).randint(first, end)
        _cut_and_recover(seed, 120, stop_at, Random(i)).check()


@pytest.mark.parametrize("seed", range(20, 23))
def test_killed_process_loses_no_appended_batch(seed: int) -> None:
    first, end = _operations(seed, 70)
    for stop_at in range(first, end + 1, 3):
        trace = _cut_and_recover(seed, 70, stop_at, None)
        trace.check()
        assert trace.disk.log.log_end_offset >= trace.appended_end


@pytest.mark.parametrize("seed", range(30, 33))
def test_recovery_survives_a_power_cut_at_each_of_its_own_operations(seed: int) -> None:
    _, end = _operations(seed, 50)
    for i in range(40):
        trace = _cut_and_recover(seed, 50, end - i, Random(i))
        trace.disk.files.crash(Random(i))
        start = trace.disk.files.operations
        for stop in range(0, 40, 5):
            trace.disk.files.stop_at = start + stop + i % 5
            with contextlib.suppress(PowerCut):
                trace.disk.start()
            trace.disk.files.crash(Random(stop))
        trace.disk.start()
        trace.check()


@pytest.mark.parametrize("operation", ["datasync", "sync_dir"])
@pytest.mark.parametrize("seed", range(40, 50))
def test_failed_fsync_before_a_power_cut_loses_no_flushed_batch(operation: str, seed: int) -> None:
    trace = Trace(seed, 80)
    for _ in range(40):
        trace.step()
    trace.disk.files.fail_next(operation, 5)
    try:
        for _ in range(40):
            trace.step()
    except StorageError:
        assert trace.disk.log.failed
        with pytest.raises(StorageError):
            append(trace.disk.log)
    trace.disk.files.crash(Random(seed))
    trace.disk.start()
    trace.check()


def test_simulated_runs_with_equal_seeds_leave_equal_disks() -> None:
    states = []
    for _ in range(2):
        trace = _cut_and_recover(77, 60, 150, Random(5))
        states.append(trace.disk.state())
    assert states[0] == states[1]
