"""Test the interface Files: the real file system, and its simulation in memory.

Names of tests of only one implementation contain ``real_file`` or ``in_memory_file``.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from support.memory_files import MemFiles, PowerCut
from support.stored import RWF_DONTCACHE

from broker_lite.storage.files import Files, OsFile, OsFiles

World = tuple[Files, str]


@pytest.fixture(params=["os", "memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """The real file system or its simulation in memory, and an empty directory in it."""
    files: Files = OsFiles() if request.param == "os" else MemFiles()
    folder = str(tmp_path)
    files.make_dir(folder)
    return files, folder


def test_append_returns_the_position_at_which_pread_finds_the_bytes(world: World) -> None:
    files, folder = world
    file = files.create(f"{folder}/a")
    assert file.append([b"one"]) == 0
    assert file.append([bytearray(b"two"), memoryview(b"three")]) == 3
    assert file.size == files.size(f"{folder}/a") == 11
    assert file.pread(2, 5) == b"etwot"
    assert file.pread(9, 100) == b"ee"
    assert file.pread(50, 10) == b""


def test_single_append_writes_thousands_of_buffers_in_order(world: World) -> None:
    files, folder = world
    file = files.create(f"{folder}/a")
    file.append([b"%04d" % i for i in range(3000)])
    assert file.size == 12_000
    assert file.pread(0, 12_000) == b"".join(b"%04d" % i for i in range(3000))


def test_append_that_skips_the_page_cache_writes_the_same_bytes(world: World) -> None:
    files, folder = world
    file = files.create(f"{folder}/a")
    parts = [b"%06d" % n * (n % 700 + 1) for n in range(300)]
    for n, part in enumerate(parts):
        file.append([part[:5], part[5:]], keep=n % 3 == 0)
        if n % 50 == 0:
            file.datasync()
    assert file.size == sum(map(len, parts))
    assert file.pread(0, file.size + 1) == b"".join(parts)


def test_create_refuses_an_existing_file_and_open_a_missing_one(world: World) -> None:
    files, folder = world
    files.create(f"{folder}/a")
    with pytest.raises(FileExistsError):
        files.create(f"{folder}/a")
    for operation in (files.open, files.remove, files.size, files.modified_ms):
        with pytest.raises(FileNotFoundError):
            operation(f"{folder}/b")
    with pytest.raises(FileNotFoundError):
        files.list_dir(f"{folder}/nowhere")


def test_file_opened_for_reading_refuses_appends(world: World) -> None:
    files, folder = world
    files.create(f"{folder}/a").append([b"abc"])
    file = files.open(f"{folder}/a")
    assert (file.size, file.pread(0, 9)) == (3, b"abc")
    with pytest.raises(OSError):
        file.append([b"x"])
    files.open(f"{folder}/a", writable=True).append([b"d"])
    assert file.pread(0, 9) == b"abcd"


def test_append_after_truncate_continues_at_the_new_end(world: World) -> None:
    files, folder = world
    file = files.create(f"{folder}/a")
    file.append([b"0123456789"])
    file.truncate(4)
    assert file.size == 4
    assert file.append([b"xy"]) == 4
    assert file.pread(0, 99) == b"0123xy"
    file.start_sync(4)
    file.datasync()
    file.start_sync(99)
    file.forget_cached(0)
    assert file.pread(0, 99) == b"0123xy"


def test_files_can_be_renamed_removed_and_listed(world: World) -> None:
    files, folder = world
    for name in ("b", "a", "c"):
        files.create(f"{folder}/{name}")
    files.rename(f"{folder}/a", f"{folder}/z")
    files.rename(f"{folder}/b", f"{folder}/c")
    assert files.list_dir(folder) == ["c", "z"]
    files.remove(f"{folder}/z")
    assert files.exists(f"{folder}/c") and not files.exists(f"{folder}/z")
    files.sync_dir(folder)


def test_directories_are_created_renamed_and_removed(world: World) -> None:
    files, folder = world
    files.make_dir(f"{folder}/x/y")
    files.make_dir(f"{folder}/x/y")
    files.create(f"{folder}/x/y/f")
    assert files.list_dir(f"{folder}/x") == ["y"]
    with pytest.raises(OSError) as caught:
        files.remove_dir(f"{folder}/x/y")
    assert caught.value.errno == errno.ENOTEMPTY
    files.rename(f"{folder}/x/y", f"{folder}/x/w")
    files.remove(f"{folder}/x/w/f")
    files.remove_dir(f"{folder}/x/w")
    assert files.list_dir(f"{folder}/x") == []
    files.create(f"{folder}/plain")
    with pytest.raises(NotADirectoryError):
        files.list_dir(f"{folder}/plain")


def test_open_file_stays_readable_after_rename_and_removal(world: World) -> None:
    files, folder = world
    file = files.create(f"{folder}/a")
    file.append([b"kept"])
    files.rename(f"{folder}/a", f"{folder}/b")
    files.remove(f"{folder}/b")
    assert file.pread(0, 4) == b"kept"


def test_file_lock_is_exclusive_until_released(world: World) -> None:
    files, folder = world
    lock = files.lock(f"{folder}/lock")
    with pytest.raises(BlockingIOError):
        files.lock(f"{folder}/lock")
    lock.release()
    lock.release()
    files.lock(f"{folder}/lock").release()


def test_free_space_of_a_folder_and_modification_time_of_a_file_are_known(world: World) -> None:
    files, folder = world
    total, usable = files.space(folder)
    assert 0 < usable <= total
    files.create(f"{folder}/a")
    assert files.modified_ms(f"{folder}/a") >= 0


# The next tests use only the real file system.


def test_real_files_refuse_to_open_symbolic_links_and_fifos(tmp_path: Path) -> None:
    files = OsFiles()
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(OSError):
            files.open(str(tmp_path / name))
    with pytest.raises(OSError):
        files.create(str(tmp_path / "link"))


def test_real_files_are_private_and_not_inherited_by_child_processes(tmp_path: Path) -> None:
    file = OsFiles().create(str(tmp_path / "a"))
    assert not os.get_inheritable(file.fileno())
    assert (tmp_path / "a").stat().st_mode & 0o007 == 0


def test_real_files_continue_a_write_that_wrote_only_a_part_of_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., int] = os.pwritev

    def short(fd: int, buffers: list[memoryview], position: int) -> int:
        return real(fd, [memoryview(buffers[0])[:3]], position)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, [data[:2]], at))
    file = OsFiles().create(str(tmp_path / "a"))
    file.append([b"0123456789"])
    file.append([b"abcdefg", b"hijklmn"])
    assert file.pread(0, 99) == b"0123456789abcdefghijklmn"


@pytest.mark.skipif(sys.platform != "linux", reason="RWF_DONTCACHE is Linux's")
def test_append_that_skips_the_page_cache_sets_the_flag_rwf_dontcache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev
    asked: list[int] = []

    def writing(fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        asked.append(flags)
        return write(fd, buffers, offset, 0)  # Kernels before 6.14 refuse RWF_DONTCACHE.

    monkeypatch.setattr(os, "pwritev", writing)
    file = OsFiles().create(str(tmp_path / "a"))
    data = os.urandom(1 << 20)
    file.append([data], keep=False)
    file.append([data], keep=True)
    assert asked == [RWF_DONTCACHE]
    assert file.pread(0, file.size) == data + data


def test_append_without_page_cache_works_on_tmpfs() -> None:
    if not os.path.isdir("/dev/shm"):
        pytest.skip("needs a file system in memory")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        file = OsFiles().create(f"{folder}/a")
        assert [file.append([b"abc", b"de"], keep=False) for _ in range(3)] == [0, 5, 10]
        assert file.pread(0, 99) == b"abcde" * 3


def test_append_without_page_cache_works_if_python_has_no_pwritev2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: where Python has no pwritev2, ``os.pwritev`` with flags raises
    NotImplementedError, which stopped a follower."""
    write = os.pwritev

    def built_without(fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        if flags:
            raise NotImplementedError("pwritev2: flags unavailable on this platform")
        return write(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", built_without)
    file = OsFiles().create(str(tmp_path / "a"))
    assert [file.append([b"abc", b"de"], keep=False) for _ in range(3)] == [0, 5, 10]
    assert file.pread(0, 99) == b"abcde" * 3


def test_failed_append_on_a_full_disk_does_not_change_the_file_size(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    file = OsFile(os.open("/dev/full", os.O_RDWR), "/dev/full", 0)
    with pytest.raises(OSError) as caught:
        file.append([b"x"])
    assert (caught.value.errno, file.size) == (errno.ENOSPC, 0)


# The next tests use only the simulated file system.


def crashed(seed: int, build: Callable[[MemFiles], None]) -> MemFiles:
    files = MemFiles()
    files.make_dir("/d")
    files.sync_dir("/")
    build(files)
    files.crash(Random(seed))
    return files


def test_in_memory_files_keep_synced_bytes_after_a_power_cut_with_any_seed() -> None:
    def build(files: MemFiles) -> None:
        file = files.create("/d/a")
        file.append([b"s" * 6000])
        file.datasync()
        files.sync_dir("/d")
        file.append([b"u" * 6000])

    sizes, torn = set(), 0
    for seed in range(60):
        files = crashed(seed, build)
        data = files.open("/d/a").pread(0, 20_000)
        assert data[:6000] == b"s" * 6000
        assert set(data[6000:]) <= {0, ord("u")}
        sizes.add(len(data))
        torn += 0 in data[6000:] and ord("u") in data[6000:]
    assert 6000 in sizes and 12_000 in sizes and len(sizes) > 10
    assert torn > 5


def test_simulated_power_cut_can_lose_any_subset_of_unsynced_new_files() -> None:
    def build(files: MemFiles) -> None:
        for name in "abc":
            files.create(f"/d/{name}")

    seen = {tuple(crashed(seed, build).list_dir("/d")) for seed in range(80)}
    assert len(seen) == 8


def test_rename_of_an_in_memory_file_is_atomic_across_a_power_cut() -> None:
    def build(files: MemFiles) -> None:
        for name, data in (("a", b"old"), ("t", b"new")):
            file = files.create(f"/d/{name}")
            file.append([data])
            file.datasync()
        files.sync_dir("/d")
        files.rename("/d/t", "/d/a")

    seen = set()
    for seed in range(20):
        files = crashed(seed, build)
        names = files.list_dir("/d")
        seen.add((files.open("/d/a").pread(0, 9), tuple(names)))
    assert seen == {(b"old", ("a", "t")), (b"new", ("a",))}


def test_in_memory_files_lose_pages_of_a_failed_sync_even_if_a_later_sync_succeeds() -> None:
    files = MemFiles()
    file = files.create("/a")
    files.sync_dir("/")
    file.append([b"x" * 5000])
    files.fail_next("datasync", errno.EIO)
    with pytest.raises(OSError):
        file.datasync()
    file.datasync()
    assert file.pread(0, 5000) == b"x" * 5000
    files.crash(Random(1))
    assert files.open("/a").pread(0, 5000) == bytes(5000)


def test_in_memory_files_simulate_full_disks_write_errors_and_power_cuts() -> None:
    files = MemFiles(capacity_bytes=10)
    file = files.create("/a")
    with pytest.raises(OSError) as caught:
        file.append([b"0123456789abc"])
    assert caught.value.errno == errno.ENOSPC
    assert files.size("/a") == 10 and file.size == 0
    file.truncate(0)
    files.fail_next("write", errno.EIO, path="/b")
    file.append([b"0123"])
    files.stop_at = files.operations + 1
    file.append([b"4"])
    for _ in range(2):
        with pytest.raises(PowerCut):
            file.append([b"5"])
    files.kill()
    with pytest.raises(OSError):
        file.pread(0, 1)
    assert files.open("/a").pread(0, 9) == b"01234"
