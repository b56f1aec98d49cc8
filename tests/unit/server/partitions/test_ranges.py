"""Tests of the file ranges that a fetch reads: CRC checks, conversion to rows, and read errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.hostile_clients import MIB, inflated_columns
from support import poison
from support.data_calls import batches, columns_batch, rows_batch, values

from broker_lite.errors import (
    CorruptMessageError,
    StorageError,
    UndecodableBatchError,
    UnreadableRecordsError,
    wire_code,
)
from broker_lite.model import PartitionKey
from broker_lite.record.batch import read_header
from broker_lite.record.walker import BatchWalker, LogBatch
from broker_lite.server.partitions import ranges
from broker_lite.server.partitions.ranges import Prepared, WantedRange, prepare, read_resident
from broker_lite.storage.files import File, OsFile, OsFiles
from broker_lite.storage.log import Log
from broker_lite.storage.manager import LogManager
from broker_lite.wire.fetch import FileRange, StoredRange


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    manager = LogManager(OsFiles(), str(tmp_path))
    manager.data.start()
    manager.open_all(1)
    yield manager.create(PartitionKey("abcdefghijklmnopqrstuQ", 0), None, 1)
    manager.close()


@pytest.fixture(autouse=True)
def _all_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all pages as cached, whatever is in the kernel's page cache."""
    monkeypatch.setattr(ranges, "_NOWAIT", 0)


def append(log: Log, batch: bytes, epoch: int = 0) -> None:
    buffer = memoryview(bytearray(batch))
    log.append_as_leader(buffer, read_header(buffer), epoch, 1)


def wanted(log: Log, offset: int = 0, **options: object) -> WantedRange:
    row = WantedRange(log.reader, offset, log.log_end_offset, 1 << 20, False, False)
    return row._replace(**options)  # type: ignore[arg-type]


def content(found: Prepared) -> memoryview:
    data = b""
    for part in found.parts:
        if isinstance(part, FileRange):
            with open(f"/proc/self/fd/{part.file.fileno()}", "rb") as file:
                file.seek(part.position)
                data += file.read(part.length)
        else:
            data += part
    assert len(data) == found.length
    return memoryview(data)


def damage(log: Log, position: int) -> None:
    (path,) = Path(log.directory).glob("*.log")
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_batches_that_need_no_crc_check_are_sent_directly_from_the_log_file(log: Log) -> None:
    for n in range(5):
        append(log, columns_batch([b"%d" % n * 4000]))
    (found,) = prepare([wanted(log)], 1 << 20)
    assert [type(part) for part in found.parts] == [FileRange]
    assert found.checked_end == -1
    assert values(content(found)) == [b"%d" % n * 4000 for n in range(5)]


def test_fetch_check_accepts_a_batch_that_begins_before_the_log_start_offset(log: Log) -> None:
    append(log, rows_batch([b"0", b"1", b"2"]), epoch=3)
    append(log, rows_batch([b"3"]), epoch=5)
    log.delete_records_before(2)
    (found,) = prepare([wanted(log, 2, check=True)], 1 << 20)
    assert (found.error, found.checked_end) == (None, 4)
    damage(log, 15)
    (found,) = prepare([wanted(log, 2, check=True)], 1 << 20)
    assert "the epoch file says 3" in str(found.error)


def test_checked_valid_batches_are_sent_directly_from_the_log_file(log: Log) -> None:
    for n in range(5):
        append(log, rows_batch([b"%d" % n] * 3))
    (found,) = prepare([wanted(log, check=True, rows_only=True)], 1 << 20)
    assert [type(part) for part in found.parts] == [FileRange]
    assert found.checked_end == 15


def test_only_arrow_batches_are_transcoded_to_kafka_record_batches(log: Log) -> None:
    for n in range(6):
        append(log, (columns_batch if n in (2, 3) else rows_batch)([b"%d" % n]))
    (found,) = prepare([wanted(log, check=True, rows_only=True)], 1 << 20)
    kinds = [isinstance(part, FileRange) for part in found.parts]
    assert kinds == [True, False, False, True]
    assert values(content(found)) == [b"%d" % n for n in range(6)]
    assert [h.base_offset for _, h in batches(content(found))] == list(range(6))


def test_oversized_arrow_batch_is_transcoded_only_as_the_first_batch_of_a_fetch(
    log: Log,
) -> None:
    """Transcoded: converted to rows. If the batch is the first of a fetch, ``prepare`` raises
    OversizedBatch with the batch's size. A second call with this limit converts the batch.

    If records precede the batch in the fetch, it is left to the next fetch.
    """
    append(log, columns_batch([b"first"]))
    append(log, inflated_columns(6 * MIB))
    row = wanted(log, rows_only=True)
    (found,) = prepare([row], MIB)
    assert values(content(found)) == [b"first"] and found.next_offset == 1
    large = row._replace(offset=1)
    with pytest.raises(ranges.OversizedBatch) as raised:
        prepare([large, row], MIB)
    assert 6 * MIB <= raised.value.decompressed < 7 * MIB
    found, after = prepare([large, row], MIB, raised.value.decompressed)
    assert values(content(found)) == [bytes(6 * MIB)] and after.length == 0
    first, behind = prepare([row, large], 2 * MIB)
    assert first.length and behind.length == 0 and behind.error is None


def test_crcs_of_batches_that_are_larger_than_a_read_chunk_are_checked(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "CHUNK_BYTES", 1000)
    sent = [bytes([n]) * size for n, size in enumerate((10, 5000, 900, 1, 3000))]
    for value in sent:
        append(log, rows_batch([value]))
    (found,) = prepare([wanted(log, check=True)], 1 << 20)
    assert values(content(found)) == sent
    assert found.checked_end == 5


def test_valid_batches_before_a_corrupt_one_are_sent(log: Log) -> None:
    for n in range(3):
        append(log, rows_batch([b"%d" % n * 20]))
    size = len(rows_batch([b"0" * 20]))
    damage(log, 2 * size - 1)
    (found,) = prepare([wanted(log, check=True)], 1 << 20)
    assert (found.error, found.checked_end) == (None, 1)
    assert values(content(found)) == [b"0" * 20]
    (bad,) = prepare([wanted(log, 1, check=True)], 1 << 20)
    assert isinstance(bad.error, CorruptMessageError)
    assert bad.error_offset == 1


def test_truncation_during_a_read_is_not_reported_as_corruption(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a replica that truncated its log during a read, and then appended batches of the
    new leader, reported these as damage."""
    for _ in range(3):
        append(log, rows_batch([b"former"]))
    walk_range = ranges.walk_range

    def overtaken(*arguments: Any) -> Iterator[LogBatch]:
        log.truncate_to(1)
        append(log, rows_batch([b"new" * 99]), epoch=1)
        return walk_range(*arguments)

    monkeypatch.setattr(ranges, "walk_range", overtaken)
    (prepared,) = prepare([wanted(log, 2, check=True)], MIB)
    assert isinstance(prepared.error, StorageError) and "truncation" in str(prepared.error)


@pytest.mark.parametrize("check", [False, True])
def test_undecodable_arrow_batch_with_a_correct_crc_is_not_taken_for_disk_damage(
    log: Log, check: bool
) -> None:
    append(log, columns_batch([b"good"]))
    append(log, poison.backwards(3, "lz4"))
    append(log, columns_batch([b"behind"]))
    (before,) = prepare([wanted(log, check=check, rows_only=True)], 1 << 20)
    assert values(content(before)) == [b"good"]
    (bad,) = prepare([wanted(log, 2, check=check, rows_only=True)], 1 << 20)
    assert isinstance(bad.error, UndecodableBatchError)
    assert (bad.error_offset, wire_code(bad.error)) == (2, CorruptMessageError.code)
    assert "continue reading at offset 4" in bad.error.message
    (behind,) = prepare([wanted(log, 4, check=check, rows_only=True)], 1 << 20)
    assert values(content(behind)) == [b"behind"]


def test_check_of_a_fetched_range_detects_damage_to_fields_outside_the_crc(log: Log) -> None:
    """The CRC does not cover the base offset and the leader epoch of a batch."""
    for n in range(3):
        append(log, rows_batch([b"%d" % n * 20]), epoch=3)
    size = len(rows_batch([b"0" * 20]))
    for position in (size + 15, size + 7):
        damage(log, position)
        (found,) = prepare([wanted(log, check=True)], 1 << 20)
        assert found.checked_end == 1
        damage(log, position)


def test_damaged_partition_does_not_fail_other_partitions_of_a_fetch(log: Log) -> None:
    append(log, rows_batch([b"0" * 20]))
    damage(log, len(rows_batch([b"0" * 20])) - 1)
    bad, raw = prepare([wanted(log, check=True), wanted(log)], 1 << 20)
    assert bad.error is not None and raw.error is None and raw.length


def test_first_batch_of_a_fetch_may_exceed_the_byte_limit_shared_by_its_partitions(
    log: Log,
) -> None:
    for n in range(4):
        append(log, rows_batch([b"%d" % n * 100]))
    size = len(rows_batch([b"0" * 100]))
    found = prepare([wanted(log)] * 3, 1)
    assert [one.length for one in found] == [size, 0, 0]
    found = prepare([wanted(log)] * 3, 6 * size)
    assert [one.length for one in found] == [4 * size, 2 * size, 0]


def test_read_at_the_end_of_the_log_returns_an_empty_range(log: Log) -> None:
    append(log, rows_batch([b"x"]))
    (found,) = prepare([wanted(log, 1)], 1 << 20)
    assert found == Prepared()


@pytest.mark.parametrize(
    ("outcome", "is_resident"),
    [
        (1, True),
        (BlockingIOError(), False),
        (OSError(errno.EOPNOTSUPP, "the file system cannot tell"), True),
        (OSError(errno.EIO, "bad sector"), False),
    ],
)
def test_large_read_counts_as_cached_if_its_first_byte_is_in_the_page_cache(
    log: Log, monkeypatch: pytest.MonkeyPatch, outcome: int | OSError, is_resident: bool
) -> None:
    append(log, rows_batch([b"x"]))
    append(log, rows_batch([bytes(ranges.COPIED_BYTES_MAX)]))
    asked: list[tuple[int, int]] = []

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        asked.append((position, flags))
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(ranges, "_NOWAIT", 8)
    monkeypatch.setattr(os, "preadv", preadv)
    found = read_resident([wanted(log, 1, max_bytes=8 << 20)], 8 << 20)
    assert asked == [(len(rows_batch([b"x"])), 8)]
    assert (found is not None) is is_resident


@pytest.mark.parametrize("read", [read_resident, prepare])
def test_small_fetched_data_is_copied_and_large_data_is_sent_from_the_file(
    log: Log, monkeypatch: pytest.MonkeyPatch, read: Callable[..., list[Prepared]]
) -> None:
    small = rows_batch([b"x" * 100])
    append(log, small)
    append(log, rows_batch([bytes(ranges.COPIED_BYTES_MAX)]))
    found = read([wanted(log, max_bytes=len(small)), wanted(log, 1)], 1 << 20)
    (copied,), (part,) = found[0].parts, found[1].parts
    assert isinstance(copied, bytes | bytearray)
    assert isinstance(part, FileRange)
    assert values(content(found[0])) == [b"x" * 100]
    monkeypatch.setattr(ranges, "COPIED_TOTAL_MAX", 2 * len(small))
    found = read([wanted(log, max_bytes=len(small))] * 3, 1 << 20)
    assert [isinstance(one.parts[0], FileRange) for one in found] == [False, False, True]


def test_reader_on_the_same_machine_receives_the_log_file_location_of_a_large_read(
    log: Log,
) -> None:
    for n in range(5):
        append(log, columns_batch([b"%d" % n * 1000] * 80))
    size = len(columns_batch([b"0" * 1000] * 80))
    for check in (False, True):
        (found,) = prepare([wanted(log, by_file=True, check=check)], 1 << 20)
        assert (found.parts, found.length) == ((), 5 * size)
        assert found.checked_end == (400 if check else -1)
        assert found.stored is not None
        (path,) = Path(log.directory).glob("*.log")
        status = path.stat()
        assert found.stored == StoredRange(str(path), status.st_dev, status.st_ino, 0, 5 * size)
    (resident,) = read_resident([wanted(log, by_file=True)], 1 << 20) or []
    assert resident.stored is not None
    (small,) = prepare([wanted(log, 240, by_file=True)], 1 << 20)
    assert (small.stored, small.length) == (None, 2 * size)
    damage(log, 5 * size - 1)
    (found,) = prepare([wanted(log, by_file=True, check=True)], 1 << 20)
    assert found.stored is not None
    assert (found.stored.length, found.checked_end) == (4 * size, 320)


def test_read_error_fails_only_its_own_partition_of_a_fetch(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a bad disk sector in one partition failed a follower's whole fetch of all
    partitions."""
    append(log, rows_batch([b"0"]))
    append(log, rows_batch([b"1"]))
    read, first = ranges.walk_range, wanted(log, check=True)

    def failing(file: File, walker: BatchWalker, chunk_bytes: int) -> Iterator[LogBatch]:
        if walker.position == 0:
            raise OSError(errno.EIO, "a bad sector")
        return read(file, walker, chunk_bytes)

    monkeypatch.setattr(ranges, "walk_range", failing)
    bad, good = prepare([first, wanted(log, 1, check=True)], 1 << 20)
    assert (type(bad.error), bad.error_offset) == (UnreadableRecordsError, 0)
    assert values(content(good)) == [b"1"]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, UnreadableRecordsError), (errno.EMFILE, StorageError)]
)
def test_failed_read_marks_the_records_as_unreadable_only_if_the_error_is_eio(
    log: Log, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StorageError]
) -> None:
    append(log, rows_batch([b"0"]))

    def failing(self: OsFile, position: int, length: int) -> bytes:
        raise OSError(number, "the read fails")

    monkeypatch.setattr(OsFile, "pread", failing)
    assert read_resident([wanted(log)], 1 << 20) is None
    (bad,) = prepare([wanted(log)], 1 << 20)
    assert (type(bad.error), bad.error_offset) == (kind, 0)


def test_read_returns_the_number_of_batches_that_it_transcoded(log: Log) -> None:
    append(log, columns_batch([b"x"]))
    append(log, rows_batch([b"x"]))
    (rows,) = prepare([wanted(log, rows_only=True)], 1 << 20)
    (stored,) = prepare([wanted(log)], 1 << 20)
    assert (rows.transcoded, stored.transcoded) == (1, 0)
