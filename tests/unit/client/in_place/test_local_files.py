"""Tests of local reads: a client reads log files of a broker on its own machine.

The files may be truncated, rewritten or deleted meanwhile.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from support.data_calls import columns_batch, rows_batch
from support.stored_ranges import SIZES, opened, read_all, write

from broker_lite.client.in_place import local_files
from broker_lite.client.received import check_crc


@pytest.fixture
def values() -> list[bytes]:
    return [bytes([65 + n]) * size for n, size in enumerate(SIZES)]


@pytest.mark.parametrize("read_bytes", [100, 1000, 65_536, 1 << 20])
def test_local_read_returns_every_batch_once_with_any_read_size(
    tmp_path: Path, values: list[bytes], monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(local_files, "READ_BYTES", read_bytes)
    stored = write(tmp_path / "0.log", values)
    seen = list(read_all(opened(stored)))
    assert [batch.header.base_offset for batch in seen] == list(range(len(values)))
    for batch in seen:
        check_crc(batch.buffer, batch.header)
        assert len(batch.buffer) == batch.header.size_bytes
    assert b"".join(batch.buffer for batch in seen) == (tmp_path / "0.log").read_bytes()


def test_local_read_can_begin_in_the_middle_of_a_file(tmp_path: Path, values: list[bytes]) -> None:
    stored = write(tmp_path / "0.log", values)
    before = sum(len((rows_batch, columns_batch)[n % 2]([values[n]])) for n in range(3))
    middle = stored._replace(position=before, length=stored.length - before)
    seen = list(read_all(opened(middle, 3)))
    assert [batch.header.base_offset for batch in seen] == list(range(3, len(values)))


def test_bytes_outside_the_page_cache_are_read_from_the_disk(
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
    assert len(list(read_all(opened(stored)))) == len(values)
    assert [at for at, _ in told] == list(range(0, stored.length, told[0][1])), "each range once"


@pytest.mark.parametrize("reads_once", [False, True])
def test_local_read_drops_only_the_cached_pages_that_it_loaded(
    tmp_path: Path, values: list[bytes], monkeypatch: pytest.MonkeyPatch, reads_once: bool
) -> None:
    stored = write(tmp_path / "0.log", values)
    page = os.sysconf("SC_PAGE_SIZE")
    in_memory = 5 * page
    told: dict[int, list[tuple[int, int]]] = {}
    read = os.preadv

    def advise(fd: int, at: int, size: int, what: int) -> None:
        told.setdefault(what, []).append((at, at + size))

    def partly_cold(fd: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        if not flags:
            return read(fd, buffers, position)
        if position >= in_memory:
            raise BlockingIOError(11, "not in memory")
        return read(fd, [buffers[0][: in_memory - position]], position)

    monkeypatch.setattr(local_files, "DIRECT", 0)  # This simulates a file system without O_DIRECT.
    monkeypatch.setattr(local_files, "READ_BYTES", 1000)
    monkeypatch.setattr(local_files, "AHEAD_BYTES", 100_000)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(os, "preadv", partly_cold)
    found = opened(stored, reads_once=reads_once)
    assert len(list(read_all(found))) == len(values)
    gone = told.get(os.POSIX_FADV_DONTNEED, [])
    if not reads_once:
        assert not gone
        return
    assert len(gone) > 1, "pages are dropped during the read, not only at its end"
    assert gone[0][0] == in_memory
    assert gone[-1][1] == stored.length
    assert all(a[1] - page < b[0] <= a[1] for a, b in itertools.pairwise(gone))


def test_local_read_of_a_truncated_file_returns_the_remaining_batches(
    tmp_path: Path, values: list[bytes]
) -> None:
    stored = write(tmp_path / "0.log", values)
    found = opened(stored)
    os.truncate(stored.path, 1000)
    got = found.read()
    assert [batch.header.base_offset for batch in got.batches] == [0]
    assert not found.read().batches
    os.truncate(stored.path, 0)
    assert not found.read().batches
    assert not found.is_read
    found.close()
    found.close()


def test_batches_rewritten_during_a_local_read_are_reported_as_corruption(
    tmp_path: Path, values: list[bytes]
) -> None:
    stored = write(tmp_path / "0.log", values)
    found = opened(stored)
    write(tmp_path / "0.log", values, epoch=4)
    got = found.read()
    assert not got.batches
    assert "leader epoch 4" in str(got.damage)
    write(tmp_path / "0.log", values, base=7)
    assert not found.read().batches
    found.close()


def test_deleted_file_can_be_read_while_it_is_open_but_not_reopened(
    tmp_path: Path, values: list[bytes]
) -> None:
    stored = write(tmp_path / "0.log", values)
    found = opened(stored)
    os.unlink(stored.path)
    assert len(list(read_all(found))) == len(values)
    with pytest.raises(FileNotFoundError):
        opened(stored)


def test_client_refuses_a_log_file_if_its_inode_differs_from_the_brokers(
    tmp_path: Path, values: list[bytes]
) -> None:
    path = tmp_path / "0.log"
    stored = write(path, values)
    with pytest.raises(FileNotFoundError):
        opened(stored._replace(inode=stored.inode + 1))
    with pytest.raises(FileNotFoundError):
        opened(stored._replace(device=stored.device + 1))
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"0\.log"):
        opened(stored)
    path.unlink()
    os.mkfifo(path)
    status = path.stat()
    with pytest.raises(FileNotFoundError):
        opened(stored._replace(device=status.st_dev, inode=status.st_ino))
