"""Direct reads (O_DIRECT) of a file in parts, with several reads in flight ahead of the reader.

A part goes straight into the buffer from which its batches are decoded, without a copy and without
use of the page cache. A thread pool of the process waits for the disk. Pages that are already in
the page cache are not read ahead; the caller reads them. All errors are OSError. One thread uses an
object.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from broker_lite.client.in_place.disk_buffers import disk_buffers
from broker_lite.client.transport.received_buffers import received_buffers

FIRST_BYTES = 2 << 20
"""Bytes of the first part. It is small, because the reader waits for it."""
PART_BYTES = 8 << 20
"""Bytes of each later part. A batch that continues in the next part is copied once."""
PARTS_AHEAD = 2
"""Number of reads in flight, so that the disk stays busy while batches are decoded."""
THREADS = 8
"""Number of threads that wait for the disk, for all readers of a process."""
FRONT_BYTES = 4 << 20
"""Bytes in front of each part, for the begin of a batch that the previous part cut off. Unused
pages take no memory."""
ALIGNED_BYTES = max(4096, os.sysconf("SC_PAGE_SIZE"))
"""Alignment of positions, sizes and buffers, sufficient for any disk."""
DIRECT = getattr(os, "O_DIRECT", 0)
"""The open flag for direct I/O; 0 if the system does not support it."""
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
"""The flag of a read that returns only cached bytes; 0 if the system does not support the flag."""


def is_in_memory(fd: int, position: int) -> bool:
    """Return whether a byte of a file is in the page cache, or True if the system cannot tell.

    If the byte is not cached, the system starts to read its page.
    """
    try:
        return not NOWAIT or os.preadv(fd, [bytearray(1)], position, NOWAIT) != 0
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Part(NamedTuple):
    """A read of ``size`` bytes from file position ``at`` into ``buffer[begin:]``.

    ``probed`` says that ``is_in_memory`` may have brought the part's first page into the cache.
    """

    at: int
    size: int
    buffer: memoryview
    begin: int
    done: Future[int]
    probed: bool


class DiskParts:
    """Direct reads of a file from ``position`` to ``end``.

    The object reads the first part even if it is cached. It reads no further part ahead whose first
    page is cached. ``cached_fd``, which the caller closes, and ``direct_fd``, which this object
    closes, are the same file, opened without and with ``DIRECT``. ``probed`` says that
    ``is_in_memory`` was called for ``position``.
    """

    def __init__(
        self, cached_fd: int, direct_fd: int, position: int, end: int, *, probed: bool = True
    ) -> None:
        self._cached_fd = cached_fd
        self._fd = direct_fd
        self._end = end
        self._before = position % ALIGNED_BYTES
        """Number of bytes between the aligned start of the first part and ``position``."""
        self._next = position - self._before
        self._parts: deque[_Part] = deque()
        self._probed: list[int] = []
        """File positions of pages that ``is_in_memory`` may have brought into the cache. ``close``
        drops them."""
        self._begin(FIRST_BYTES, probed=probed)
        self._read_ahead()

    @property
    def is_under_way(self) -> bool:
        """Return whether the read of a part is in flight. If not, the range ends or the next page
        is cached."""
        return bool(self._parts)

    def take(self, rest: memoryview) -> memoryview:
        """Return the next part in one buffer with ``rest``, the caller's undecoded bytes before it.

        The part is read even if it is cached. At the end of the file or range, return only
        ``rest``.
        """
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
            self._drop()  # The file was truncated, so the later parts do not follow this one.
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
        """Cancel queued reads, and wait for the reads that write into buffers."""
        begun = [part.done for part in self._parts if not part.done.cancel()]
        self._parts.clear()
        concurrent.futures.wait(begun)

    def close(self) -> None:
        """End the reads and close the direct descriptor. Call this before ``cached_fd`` is closed.
        A second call does nothing."""
        self._drop()
        for at in self._probed:
            os.posix_fadvise(self._cached_fd, at, ALIGNED_BYTES, os.POSIX_FADV_DONTNEED)
        self._probed.clear()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_pool: tuple[int, ThreadPoolExecutor] | None = None


def _threads() -> ThreadPoolExecutor:
    """Return this process's thread pool. A forked child makes a pool of its own, because threads do
    not survive a fork."""
    global _pool
    if _pool is None or _pool[0] != os.getpid():
        _pool = os.getpid(), ThreadPoolExecutor(THREADS, "logbus-disk")
    return _pool[1]
