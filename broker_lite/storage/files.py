"""The ``Files`` interface: the operating-system calls that storage uses, and their implementation.

- One thread appends to a ``File``. Any number of threads read it; each read names its position.
- A ``File`` has no ``close``. Its descriptor closes when no reference to the object is left, so
  that a reader can still send bytes of a deleted file.
- Written bytes are on disk once ``datasync`` has returned, file names once ``sync_dir`` has.
- Every error is an OSError. A failed ``append`` may leave a part of the bytes at the end."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Sequence
from mmap import PAGESIZE
from typing import Protocol

Buffer = bytes | bytearray | memoryview

IOV_MAX = 1024
"""Maximum number of buffers of one ``writev`` on Linux and macOS."""


class File(Protocol):
    """An open file. Readers may read the first ``size`` bytes, all written by completed appends."""

    path: str
    size: int

    def fileno(self) -> int:
        """Return the descriptor for ``sendfile``. Raise OSError for a file in memory."""

    def append(self, buffers: Sequence[Buffer], *, keep: bool = True) -> int:
        """Write all buffers at the end of the file, and return the position of the first byte.

        Without ``keep`` the written pages leave the page cache once they are on disk, if the
        operating system supports that."""

    def pread(self, position: int, length: int) -> bytes:
        """Return ``length`` bytes from ``position`` on, or fewer at the end of the file."""

    def truncate(self, size: int) -> None:
        """Set the file's size. The size is durable after the next ``datasync``."""

    def datasync(self) -> None:
        """Sync the file's bytes and size. Never retry a sync after an error."""

    def start_sync(self, position: int) -> None:
        """Ask the operating system to start writing the bytes from ``position`` on, without
        waiting.

        This is a hint: it guarantees nothing and never raises an error."""

    def forget_cached(self, position: int) -> None:
        """Drop the clean pages from ``position`` on from the page cache, so that reads return the
        disk's content."""


class Lock(Protocol):
    """A lock that this process holds, freed by ``release`` or at the end of the process."""

    def release(self) -> None: ...


class Files(Protocol):
    """A file system. Paths are strings with ``/``. Every error is an OSError."""

    def create(self, path: str) -> File:
        """Create an empty writable file. Raise FileExistsError if the path exists."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open an existing regular file. Never follow a symbolic link."""

    def exists(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """Return the file's modification time in milliseconds since 1970."""

    def make_dir(self, path: str) -> None:
        """Create a directory and its missing parents. Do nothing if the directory exists."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory atomically within its directory, and replace a file at
        ``target``."""

    def remove(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Sync a directory, so that its file names survive a crash."""

    def lock(self, path: str) -> Lock:
        """Lock a lock file. Raise BlockingIOError if another process holds the lock."""

    def space(self, path: str) -> tuple[int, int]:
        """Return the total and the usable bytes of the file system that holds ``path``."""


class OsFile:
    """The real ``File``: a descriptor, which is closed when no reference to it is left."""

    __slots__ = ("_can_drop", "_fd", "path", "size")

    def __init__(self, fd: int, path: str, size: int) -> None:
        self._fd = fd
        self._can_drop = _DONTCACHE != 0
        self.path = path
        self.size = size

    def __del__(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def append(self, buffers: Sequence[Buffer], *, keep: bool = True) -> int:
        start = self.size
        if not keep and self._can_drop:
            written = self._write_and_drop(buffers, start)
        elif len(buffers) == 1:
            written = os.pwrite(self._fd, buffers[0], start)
        else:
            written = os.pwritev(self._fd, buffers[:IOV_MAX], start)
        total = sum(map(len, buffers)) if len(buffers) > 1 else len(buffers[0])
        if written < total:
            self._append_rest(buffers, written, total)
        self.size = start + total
        return start

    def _write_and_drop(self, buffers: Sequence[Buffer], start: int) -> int:
        try:
            return os.pwritev(self._fd, buffers[:IOV_MAX], start, _DONTCACHE)
        except NotImplementedError:
            pass  # This build of Python lacks pwritev2, so append without it.
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
        # The kernel or the file system does not support RWF_DONTCACHE: append without it from now
        # on.
        self._can_drop = False
        return os.pwritev(self._fd, buffers[:IOV_MAX], start)

    def _append_rest(self, buffers: Sequence[Buffer], written: int, total: int) -> None:
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        while written < total:
            skip, rest = written, []
            for view in views:
                if skip < len(view):
                    rest.append(view[skip:])
                skip = max(0, skip - len(view))
            count = os.pwritev(self._fd, rest[:IOV_MAX], self.size + written)
            if count == 0:
                raise OSError(errno.ENOSPC, "the file system accepted no more bytes", self.path)
            written += count

    def pread(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing and (data := os.pread(self._fd, missing, position + length - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self.size = size

    def datasync(self) -> None:
        _DATASYNC(self._fd)

    def start_sync(self, position: int) -> None:
        if _START_SYNC is not None:
            _START_SYNC(self._fd, position, 0, _SYNC_FILE_RANGE_WRITE)

    def forget_cached(self, position: int) -> None:
        if hasattr(os, "posix_fadvise"):
            # Round down to a page boundary: the kernel drops only whole pages from its cache.
            start = position - position % PAGESIZE
            os.posix_fadvise(self._fd, start, 0, os.POSIX_FADV_DONTNEED)


_DATASYNC = getattr(os, "fdatasync", os.fsync)
_DONTCACHE = 0x80 if hasattr(os, "RWF_DSYNC") and sys.platform == "linux" else 0
"""The flag RWF_DONTCACHE of pwritev2 (Linux 6.14 and later), which the ``os`` module lacks."""
_SYNC_FILE_RANGE_WRITE = 2
"""Flag of Linux's sync_file_range: start writeback without waiting; ``datasync`` reports its
errors."""


def _start_sync() -> Callable[[int, int, int, int], int] | None:
    try:
        call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    except OSError:
        return None  # In a statically linked Python, ctypes cannot look up the C function.
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


_START_SYNC = _start_sync()


class _OsLock:
    """A lock file, locked with flock. All processes must lock one inode: it is never deleted."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFiles:
    """The real file system. New files are readable by owner and group; no symlink is followed."""

    def create(self, path: str) -> OsFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return OsFile(os.open(path, flags, 0o640), path, 0)

    def open(self, path: str, *, writable: bool = False) -> OsFile:
        mode = os.O_RDWR if writable else os.O_RDONLY
        # O_NONBLOCK: opening a FIFO in place of a file must not hang the broker.
        fd = os.open(path, mode | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return OsFile(fd, path, status.st_size)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def size(self, path: str) -> int:
        return os.lstat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.lstat(path).st_mtime_ns // 1_000_000

    def make_dir(self, path: str) -> None:
        os.makedirs(path, 0o750, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return _OsLock(fd)

    def space(self, path: str) -> tuple[int, int]:
        status = os.statvfs(path)
        return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail
