"""A file from the disk past the page cache, part by part, several under way ahead of one reader.

What is read once need not be kept: a part goes straight into the memory that its batches are
decoded from, without a copy, and without pages that are taken for it and let go. The process's own
threads wait for the disk. What is in the page cache stays there and is left to others: nothing of
it is asked for ahead. Every error is an OSError. One object is used by one thread.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from broker_lite.client.in_place.disk_rooms import disk_rooms
from broker_lite.client.transport.rooms import received_rooms

FIRST_BYTES = 2 << 20
"""Of the first part, for which its reader waits."""
PART_BYTES = 8 << 20
"""Of each one after it: where a part ends in the middle of a batch its beginning is copied."""
PARTS_AHEAD = 2
"""Under way at once, so that the disk has work while a part is made of rows."""
THREADS = 8
"""Of a process, for all of its readers: Spark's worker has one."""
FRONT_BYTES = 4 << 20
"""Room in front of each part for what is left of the one before: the beginning of a batch. What is
not needed of it takes no memory."""
ALIGNED_BYTES = max(4096, os.sysconf("SC_PAGE_SIZE"))
"""Of positions, sizes and memory: as much as any disk asks for."""
DIRECT = getattr(os, "O_DIRECT", 0)
"""What a file is opened with for it; 0: this system does not have that."""
NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def is_in_memory(fd: int, position: int) -> bool:
    """Whether a byte of a file is in the page cache, or nobody can tell. Where it is not, the
    system begins to read its page."""
    try:
        return not NOWAIT or os.preadv(fd, [bytearray(1)], position, NOWAIT) != 0
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Part(NamedTuple):
    """``size`` bytes are read from position ``at`` into ``room``, from ``begin`` on. ``probed``:
    its first page was asked for by a look at whether it is in the page cache."""

    at: int
    size: int
    room: memoryview
    begin: int
    done: Future[int]
    probed: bool


class DiskParts:
    """From ``position`` to ``end``; the first part whatever is in memory. ``cached_fd``, which is
    the caller's, and ``direct_fd``, which is not from now on, are one file, opened without and with
    ``DIRECT``. ``probed``: a look at ``position`` began to read its page.
    """

    def __init__(
        self, cached_fd: int, direct_fd: int, position: int, end: int, *, probed: bool = True
    ) -> None:
        self._cached_fd = cached_fd
        self._fd = direct_fd
        self._end = end
        self._before = position % ALIGNED_BYTES
        """So many bytes of the first part are not asked for."""
        self._next = position - self._before
        self._parts: deque[_Part] = deque()
        self._probed: list[int] = []
        """Pages that looks began to read, and that were perhaps not there yet to be dropped."""
        self._begin(FIRST_BYTES, probed=probed)
        self._ask()

    @property
    def is_under_way(self) -> bool:
        """Whether there is a part ahead; else the end is reached, or what is in memory."""
        return bool(self._parts)

    def take(self, rest: memoryview) -> memoryview:
        """``rest``, of which its caller has made nothing yet, and the next part in one piece, also
        where that is in memory; no more than ``rest`` where the file or the range ends."""
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
            self._drop()  # The file was cut: what comes behind that is not the next.
            self._end = part.at + count
        first, stop = part.begin + self._before, part.begin + max(count, self._before)
        self._before = 0
        self._ask()
        if len(rest) <= first:
            part.room[first - len(rest) : first] = rest
            return part.room[first - len(rest) : stop]
        whole = received_rooms.take(len(rest) + stop - first)
        whole[: len(rest)] = rest
        whole[len(rest) :] = part.room[first:stop]
        return whole

    def _ask(self) -> None:
        while (
            len(self._parts) < PARTS_AHEAD
            and self._next < self._end
            and not is_in_memory(self._cached_fd, self._next)
        ):
            self._begin(PART_BYTES, probed=True)

    def _begin(self, size: int, *, probed: bool) -> None:
        size = min(size, self._end - self._next)
        size += -size % ALIGNED_BYTES
        room, begin = disk_rooms.take(FRONT_BYTES, size)
        target = room[begin : begin + size]
        done = _threads().submit(os.preadv, self._fd, [target], self._next)
        self._parts.append(_Part(self._next, size, room, begin, done, probed))
        self._next += size

    def _drop(self) -> None:
        """Wait for what the disk still writes into memory."""
        begun = [part.done for part in self._parts if not part.done.cancel()]
        self._parts.clear()
        concurrent.futures.wait(begun)

    def close(self) -> None:
        """Idempotent; before the caller closes its own."""
        self._drop()
        for at in self._probed:
            os.posix_fadvise(self._cached_fd, at, ALIGNED_BYTES, os.POSIX_FADV_DONTNEED)
        self._probed.clear()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_pool: tuple[int, ThreadPoolExecutor] | None = None


def _threads() -> ThreadPoolExecutor:
    """This process's own: one that it was forked from keeps its threads."""
    global _pool
    if _pool is None or _pool[0] != os.getpid():
        _pool = os.getpid(), ThreadPoolExecutor(THREADS, "logbus-disk")
    return _pool[1]
