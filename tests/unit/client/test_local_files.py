"""Ranges of files as a reader on the broker's machine sees them, whatever became of the files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_calls import columns_batch, rows_batch

from broker_lite.client import local_files
from broker_lite.client.local_files import LocalRange
from broker_lite.client.received import RawBatch, check_crc
from broker_lite.model import TopicPartition
from broker_lite.record.batch import read_header, stamp
from broker_lite.wire.fetch import StoredRange

WHERE = TopicPartition("t", 0)
SIZES = [1, 3000, 40, 70_000, 5, 5, 5, 200_000, 1, 900, 64_000, 64_000, 2]


def write(path: Path, values: list[bytes], base: int = 0, epoch: int = 3) -> StoredRange:
    """Batches of one value each, rows and columns by turns; where they are."""
    with path.open("wb") as file:
        for n, value in enumerate(values):
            batch = memoryview(bytearray((rows_batch, columns_batch)[n % 2]([value])))
            stamp(batch, read_header(batch), base + n, epoch)
            file.write(batch)
    status = path.stat()
    return StoredRange(str(path), status.st_dev, status.st_ino, 0, status.st_size)


@pytest.fixture
def values() -> list[bytes]:
    return [bytes([65 + n]) * size for n, size in enumerate(SIZES)]


def read_all(found: LocalRange, offset: int = 0) -> Iterator[RawBatch]:
    while not found.is_read:
        got = found.read(offset, at_boundary=True)
        assert got.damage is None
        assert got.batches
        yield from got.batches
        offset = got.next_offset
    found.close()


@pytest.mark.parametrize("read_bytes", [100, 1000, 65_536, 1 << 20])
def test_every_batch_once_whatever_the_sizes(
    tmp_path: Path, values: list[bytes], monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(local_files, "READ_BYTES", read_bytes)
    stored = write(tmp_path / "0.log", values)
    seen = list(read_all(LocalRange(stored, WHERE, 3)))
    assert [batch.header.base_offset for batch in seen] == list(range(len(values)))
    for batch in seen:
        check_crc(batch.buffer, batch.header)
        assert len(batch.buffer) == batch.header.size_bytes
    assert b"".join(batch.buffer for batch in seen) == (tmp_path / "0.log").read_bytes()


def test_a_range_in_the_middle(tmp_path: Path, values: list[bytes]) -> None:
    stored = write(tmp_path / "0.log", values)
    before = sum(len((rows_batch, columns_batch)[n % 2]([values[n]])) for n in range(3))
    middle = stored._replace(position=before, length=stored.length - before)
    seen = list(read_all(LocalRange(middle, WHERE, 3), 3))
    assert [batch.header.base_offset for batch in seen] == list(range(3, len(values)))


def test_what_is_not_in_memory_is_read_from_the_disk(
    tmp_path: Path, values: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = write(tmp_path / "0.log", values)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, size, _: told.append((at, size)))

    def cold(fd: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError(11, "not in memory")
        data = os.pread(fd, len(buffers[0]), position)
        buffers[0][: len(data)] = data
        return len(data)

    monkeypatch.setattr(os, "preadv", cold)
    assert len(list(read_all(LocalRange(stored, WHERE, 3)))) == len(values)
    assert [at for at, _ in told] == list(range(0, stored.length, told[0][1])), "each once"


def test_a_file_that_was_cut_ends_the_range_without_a_batch(
    tmp_path: Path, values: list[bytes]
) -> None:
    stored = write(tmp_path / "0.log", values)
    found = LocalRange(stored, WHERE, 3)
    os.truncate(stored.path, 1000)
    got = found.read(0, at_boundary=True)
    assert [batch.header.base_offset for batch in got.batches] == [0]
    assert not found.read(1, at_boundary=True).batches
    os.truncate(stored.path, 0)
    assert not found.read(1, at_boundary=True).batches
    assert not found.is_read
    found.close()
    found.close()


def test_what_was_written_anew_in_its_place_is_damage(tmp_path: Path, values: list[bytes]) -> None:
    stored = write(tmp_path / "0.log", values)
    found = LocalRange(stored, WHERE, 3)
    write(tmp_path / "0.log", values, epoch=4)
    got = found.read(0, at_boundary=True)
    assert not got.batches
    assert "leader epoch 4" in str(got.damage)
    write(tmp_path / "0.log", values, base=7)
    assert not found.read(0, at_boundary=True).batches
    found.close()


def test_a_deleted_file_is_read_on_and_not_opened_again(
    tmp_path: Path, values: list[bytes]
) -> None:
    stored = write(tmp_path / "0.log", values)
    found = LocalRange(stored, WHERE, 3)
    os.unlink(stored.path)
    assert len(list(read_all(found))) == len(values)
    with pytest.raises(FileNotFoundError):
        LocalRange(stored, WHERE, 3)


def test_only_the_very_file_that_the_broker_has_is_read(
    tmp_path: Path, values: list[bytes]
) -> None:
    path = tmp_path / "0.log"
    stored = write(path, values)
    with pytest.raises(FileNotFoundError):
        LocalRange(stored._replace(inode=stored.inode + 1), WHERE, 3)
    with pytest.raises(FileNotFoundError):
        LocalRange(stored._replace(device=stored.device + 1), WHERE, 3)
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"0\.log"):
        LocalRange(stored, WHERE, 3)
    path.unlink()
    os.mkfifo(path)
    status = path.stat()
    with pytest.raises(FileNotFoundError):
        LocalRange(stored._replace(device=status.st_dev, inode=status.st_ino), WHERE, 3)
