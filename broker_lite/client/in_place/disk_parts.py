"""``DiskParts``: reads a range of a file ahead of the reader, with direct I/O.

A part is what one large disk read returns. With O_DIRECT, the disk writes it straight into the
buffer from which its batches are decoded, without a copy and without the page cache. All readers of
the process share the threads that wait for the disk. Parts in the page cache are not read ahead;
the caller reads them from there. Every error raised is an OSError. Only one thread may use a
``DiskParts``."""

from __future__ import annotations

import concurrent.futures
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from broker_lite.client.in_place.disk_buffers import disk_buffers
from broker_lite.client.transport.received_buffers import received_buffers

FIRST_BYTES = 2 << 20
"""Bytes of the first disk read, which is small because the reader waits for it."""
PART_BYTES = 8 << 20
"""Bytes of each disk read after the first: large, because a batch across two reads must be
copied."""
PARTS_AHEAD = 2
"""Number of disk reads started ahead, so that the disk stays busy while batches are decoded."""
THREADS = 8
"""Number of threads that wait for the disk, for all readers of a process together."""
FRONT_BYTES = 4 << 20
"""Free bytes at the start of a buffer, for the beginning of a batch that the last read cut off.

Unless written, they take no memory."""
ALIGNED_BYTES = max(4096, os.sysconf("SC_PAGE_SIZE"))
"""Alignment of file positions, sizes and buffers that direct I/O on any disk accepts."""
DIRECT = getattr(os, "O_DIRECT", 0)
"""The flag with which a file is opened for direct I/O; 0 if the system does not support it."""
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
"""The flag for a read of bytes in the page cache only; 0 if the system has none."""


def is_in_memory(fd: int, position: int) -> bool:
    """Return whether a byte of a file is in the page cache; True if the system cannot tell.

    True makes the caller read through the page cache, which always works. The system may start to
    read the byte's page into the cache."""
    try:
        return not NOWAIT or os.preadv(fd, [bytearray(1)], position, NOWAIT) != 0
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Part(NamedTuple):
    """A read of ``size`` bytes at position ``at`` into ``buffer[begin:]``, in flight or done.

    ``probed`` says that ``is_in_memory`` found its first page not cached. This test may have
    cached the page, which is then evicted after the read."""

    at: int
    size: int
    buffer: memoryview
    begin: int
    done: Future[int]
    probed: bool


class DiskParts:
    """Reads a file from ``position`` to ``end`` in parts, with direct I/O.

    The first part is always read from the disk. A later part is read ahead only if its first page
    is not in the page cache. ``cached_fd`` and ``direct_fd`` are descriptors of the file, without
    and with ``DIRECT``; ``close`` closes only ``direct_fd``. ``probed`` says that the caller found
    the page of ``position`` not cached. This test may have cached it, so ``close`` evicts it."""

    def __init__(
        self, cached_fd: int, direct_fd: int, position: int, end: int, *, probed: bool = True
    ) -> None:
        self._cached_fd = cached_fd
        self._fd = direct_fd
        self._end = end
        self._before = position % ALIGNED_BYTES
        """Number of bytes before ``position`` in the first disk read, whose start must be
        aligned."""
        self._next = position - self._before
        self._parts: deque[_Part] = deque()
        self._probed: list[int] = []
        """Positions of pages that ``is_in_memory`` may have cached; ``close`` evicts these
        pages."""
        self._begin(FIRST_BYTES, probed=probed)
        self._read_ahead()

    @property
    def is_under_way(self) -> bool:
        """Whether a disk read was started ahead of the reader. If not, the range has ended, or its
        next page is in the page cache."""
        return bool(self._parts)

    def take(self, rest: memoryview) -> memoryview:
        """Return ``rest`` and, after it in the same buffer, the bytes of the next disk read.

        ``rest`` has the last bytes of the previous read, which the caller has not decoded. At the
        end of the file or range, return only ``rest``."""
        if not self._parts and self._next < self._end:
            self._begin(PART_BYTES, probed=False)
        if not self._parts:
            return rest
        part = self._parts.popleft()
        count = min(part.done.result(), self._end - part.at)
        if part.probed:
            os.posix_fadvise(self._cached_fd, part.at, ALIGNED_BYTES, os.POSIX_FADV_DONTNEED)
            self._probed.append(part.at)
        if count < min(part.size, self._end - part.at):
            # The file was truncated: drop the later parts, which no longer follow the last byte of
            # this part.
            self._drop()
            self._end = part.at + count
        first, stop = part.begin + self._before, part.begin + max(count, self._before)
        self._before = 0
        self._read_ahead()
        if len(rest) <= first:
            part.buffer[first - len(rest) : first] = rest
            return part.buffer[first - len(rest) : stop]
        whole = received_buffers.take(len(rest) + stop - first)
        whole[: len(rest)] = rest
        whole[len(rest) :] = part.buffer[first:stop]
        return whole

    def _read_ahead(self) -> None:
        while (
            len(self._parts) < PARTS_AHEAD
            and self._next < self._end
            and not is_in_memory(self._cached_fd, self._next)
        ):
            self._begin(PART_BYTES, probed=True)

    def _begin(self, size: int, *, probed: bool) -> None:
        size = min(size, self._end - self._next)
        size += -size % ALIGNED_BYTES
        buffer, begin = disk_buffers.take(FRONT_BYTES, size)
        target = buffer[begin : begin + size]
        done = _threads().submit(os.preadv, self._fd, [target], self._next)
        self._parts.append(_Part(self._next, size, buffer, begin, done, probed))
        self._next += size

    def _drop(self) -> None:
        """Cancel the reads that have not started; wait for those in flight."""
        begun = [part.done for part in self._parts if not part.done.cancel()]
        self._parts.clear()
        concurrent.futures.wait(begun)

    def close(self) -> None:
        """End all reads, evict pages that ``is_in_memory`` may have cached, and close
        ``direct_fd``."""
        self._drop()
        for at in self._probed:
            os.posix_fadvise(self._cached_fd, at, ALIGNED_BYTES, os.POSIX_FADV_DONTNEED)
        self._probed.clear()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_pool: tuple[int, ThreadPoolExecutor] | None = None


def _threads() -> ThreadPoolExecutor:
    """Return the threads of this process that wait for the disk; a forked child creates its own."""
    global _pool
    if _pool is None or _pool[0] != os.getpid():
        _pool = os.getpid(), ThreadPoolExecutor(THREADS, "logbus-disk")
    return _pool[1]
