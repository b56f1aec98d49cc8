"""Tests of local reads that bypass the page cache with direct I/O, except for cached pages."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support.stored_ranges import SIZES, opened, read_all, write

from broker_lite.client.in_place import disk_parts, local_files
from broker_lite.client.in_place.disk_parts import ALIGNED_BYTES, DIRECT, NOWAIT, DiskParts
from broker_lite.client.in_place.local_files import LocalRange
from broker_lite.wire.fetch import StoredRange

VALUES = [bytes([65 + n % 26]) * size for n, size in enumerate(SIZES * 3)]


def forget(path: str) -> None:
    """Drop a file from the page cache, if the file system uses the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.pread(
        fd, os.fstat(fd).st_size, 0
    )  # Pages that are being read cannot be dropped, so wait for them.
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def open_count(path: str | Path) -> int:
    """Return the number of this process's file descriptors for a file."""
    fds = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return sum(fd == os.path.realpath(path) for fd in fds)


def open_direct(path: Path) -> int:
    """Open a file for direct I/O, if its file system supports O_DIRECT."""
    try:
        return os.open(path, os.O_RDONLY | DIRECT)
    except OSError:
        return os.open(path, os.O_RDONLY)


def report_all_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the code treat every page as absent from the page cache."""
    monkeypatch.setattr(disk_parts, "is_in_memory", lambda fd, position: False)
    monkeypatch.setattr(local_files, "is_in_memory", lambda fd, position: False)


def opens_direct(folder: Path) -> bool:
    """Return whether the file system of ``folder`` supports O_DIRECT (tmpfs may not)."""
    probe = folder / "probe"
    probe.touch()
    try:
        os.close(os.open(str(probe), os.O_RDONLY | DIRECT))
    except OSError:
        return False
    return DIRECT != 0


def content(stored: StoredRange) -> bytes:
    """Return the bytes of a file range, read batch by batch."""
    return b"".join(b.buffer for b in read_all(opened(stored, reads_once=True)))


@pytest.mark.parametrize(
    ("part", "front"), [(1 << 12, 1 << 12), (1 << 16, 100), (1 << 21, 1 << 20)]
)
def test_uncached_part_of_a_log_file_is_read_once_and_only_by_direct_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, front: int
) -> None:
    monkeypatch.setattr(disk_parts, "FIRST_BYTES", min(part, 1 << 16))
    monkeypatch.setattr(disk_parts, "PART_BYTES", part)
    monkeypatch.setattr(disk_parts, "FRONT_BYTES", front)
    monkeypatch.setattr(disk_parts, "PARTS_AHEAD", 4)
    report_all_cold(monkeypatch)
    monkeypatch.setattr(LocalRange, "_pread", lambda *_: pytest.fail("read through the cache"))
    stored = write(tmp_path / "0.log", VALUES)
    whole = (tmp_path / "0.log").read_bytes()
    read, open_file = os.preadv, os.open
    direct: set[int] = set()
    positions: list[int] = []

    def opening(path: str, flags: int, *mode: int, **options: int) -> int:
        fd = open_file(path, flags, *mode, **options)
        if DIRECT and flags & DIRECT:
            direct.add(fd)
        return fd

    def reading(fd: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        assert fd in direct
        positions.append(position)
        return read(fd, buffers, position, flags)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "preadv", reading)
    if not opens_direct(tmp_path):
        pytest.skip("this file system cannot open a file past the page cache")
    assert content(stored) == whole
    assert len(positions) == len(set(positions))
    assert not open_count(stored.path)


def test_log_file_of_which_only_the_first_pages_are_cached_is_read_by_direct_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker itself caches the first pages when it looks up the start of the range."""
    begins_until = 3 * ALIGNED_BYTES
    told = lambda fd, position: position < begins_until  # noqa: E731
    monkeypatch.setattr(disk_parts, "is_in_memory", told)
    monkeypatch.setattr(local_files, "is_in_memory", told)
    monkeypatch.setattr(LocalRange, "_pread", lambda *_: pytest.fail("by way of the cache"))
    dropped = []
    advise = lambda fd, at, size, what: dropped.append((at, what))  # noqa: E731
    monkeypatch.setattr(os, "posix_fadvise", advise)
    stored = write(tmp_path / "0.log", VALUES)
    assert content(stored) == (tmp_path / "0.log").read_bytes()
    gone = [at for at, what in dropped if what == os.POSIX_FADV_DONTNEED]
    assert gone and min(gone) >= begins_until


@pytest.mark.parametrize("seed", range(20))
def test_local_read_returns_all_bytes_whichever_pages_of_the_file_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Some reads start in the middle of the file, and some batches are too large for direct I/O."""
    chance = random.Random(seed)
    cached = chance.choice([0.0, 0.2, 0.8])
    told = lambda fd, position: chance.random() < cached  # noqa: E731
    monkeypatch.setattr(disk_parts, "is_in_memory", told)
    monkeypatch.setattr(local_files, "is_in_memory", told)
    for name in ("FIRST_BYTES", "PART_BYTES"):
        monkeypatch.setattr(disk_parts, name, chance.choice([1 << 12, 1 << 15, 1 << 18]))
    monkeypatch.setattr(local_files, "PASSING_BYTES_MAX", chance.choice([1 << 16, 1 << 30]))
    values = chance.sample(VALUES, len(VALUES))
    stored = write(tmp_path / "0.log", values)
    whole = (tmp_path / "0.log").read_bytes()
    assert content(stored) == whole
    skipped = chance.randrange(len(values))
    found = opened(stored, reads_once=True)
    before = sum(len(batch.buffer) for batch, _ in zip(read_all(found), range(skipped)))
    found.close()
    rest = stored._replace(position=before, length=stored.length - before)
    batches = list(read_all(opened(rest, skipped, reads_once=True)))
    assert b"".join(batch.buffer for batch in batches) == whole[before:]


def test_failed_direct_read_is_retried_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the read through the page cache fails too, the reader gets the error and fetches from
    the broker."""
    stored = write(tmp_path / "0.log", VALUES)
    whole = (tmp_path / "0.log").read_bytes()
    read, failing = os.preadv, [1 << 16]

    def fails(fd: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError(11, "not in memory")
        if position >= failing[-1]:
            raise OSError(5, "the disk does not answer")
        return read(fd, buffers, position)

    def fails_once(fd: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        try:
            return fails(fd, buffers, position, flags)
        except BlockingIOError:
            raise
        except OSError:
            failing[-1] = 1 << 40
            raise

    monkeypatch.setattr(disk_parts, "FIRST_BYTES", 1 << 15)
    monkeypatch.setattr(disk_parts, "PART_BYTES", 1 << 15)
    monkeypatch.setattr(os, "preadv", fails_once)
    assert content(stored) == whole
    failing.append(1 << 16)
    monkeypatch.setattr(os, "preadv", fails)
    found = opened(stored, reads_once=True)
    with pytest.raises(OSError, match="does not answer"):
        list(read_all(found))
    found.close()
    assert not open_count(stored.path)


def test_direct_read_of_a_truncated_file_ends_at_its_new_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_parts, "FIRST_BYTES", ALIGNED_BYTES)
    monkeypatch.setattr(disk_parts, "PART_BYTES", ALIGNED_BYTES)
    path = tmp_path / "0.log"
    data = os.urandom(5 * ALIGNED_BYTES)
    path.write_bytes(data)
    forget(str(path))
    cut_at = 2 * ALIGNED_BYTES + 100
    with path.open("rb") as cached:
        parts = DiskParts(cached.fileno(), open_direct(path), 7, len(data))
        found = parts.take(memoryview(b"rest"))
        assert bytes(found) == b"rest" + data[7:ALIGNED_BYTES]
        parts._drop()  # Discard reads of the file before its truncation.
        os.truncate(path, cut_at)
        parts._next = ALIGNED_BYTES
        found = parts.take(found)
        while len(more := parts.take(found)) > len(found):
            found = more
        assert bytes(found) == b"rest" + data[7:cut_at]
        assert not parts.is_under_way
        parts.close()
        parts.close()


def test_local_reader_that_is_closed_before_the_end_closes_its_files(tmp_path: Path) -> None:
    stored = write(tmp_path / "0.log", VALUES)
    forget(stored.path)
    for _ in range(3):
        found = opened(stored, reads_once=True)
        assert found.read().batches
        assert open_count(stored.path)
        found.close()
        found.close()
    assert not open_count(stored.path)
    assert NOWAIT or not DIRECT
