"""A pool of aligned buffers for direct disk reads, on huge pages where available.

The kernel maps a direct read page by page: 512 pages of 4 KB for 2 MB, or one huge page. Huge pages
cut the processor time of such reads to a third, and to half on a virtual machine's disk. Without
huge pages, the pool uses small pages. A buffer returns to the pool when its last view is released,
on any thread.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from typing import NamedTuple

import numpy as np

HUGE_BYTES = 2 << 20
"""Bytes of a huge page on most processors. The disk writes to addresses that are multiples of this
size."""
KEPT_MAX = 8
"""Maximum number of buffers that the pool keeps: enough for two readers and their decoded
batches."""
_HUGE = getattr(mmap, "MADV_HUGEPAGE", -1)


class DiskBuffer(NamedTuple):
    """A buffer of the pool. The disk writes from index ``begin`` on. The reader may use the bytes
    before ``begin``."""

    memory: mmap.mmap
    begin: int

    @property
    def is_free(self) -> bool:
        """Return whether no view of the buffer exists. Python refuses to resize a buffer with
        views."""
        try:
            self.memory.resize(len(self.memory))
        except BufferError:
            return False
        return True


class DiskBuffers:
    """A pool of aligned buffers. ``take`` returns a free buffer or a new one. Any thread may call
    it."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._buffers: list[DiskBuffer] = []
        """The buffers that the pool keeps, the least recently used first."""
        self._lock = threading.Lock()

    def take(self, front: int, size: int) -> tuple[memoryview, int]:
        """Return a buffer, and the position in it at which the disk may write ``size`` bytes.

        At least ``front`` bytes precede that position. The buffer's content is arbitrary. The
        caller owns the buffer until its last view is released.
        """
        with self._lock:
            buffers = self._buffers
            for place in range(len(buffers) - 1, -1, -1):
                buffer = buffers[place]
                is_fit = buffer.begin >= front and len(buffer.memory) - buffer.begin >= size
                if is_fit and buffer.is_free:
                    del buffers[place]
                    buffers.append(buffer)
                    return memoryview(buffer.memory), buffer.begin
            buffer = _new(front, size)
            if self._has_space():
                buffers.append(buffer)
        return memoryview(buffer.memory), buffer.begin

    def _has_space(self) -> bool:
        """Return whether the pool may keep one more buffer. If the pool is full, evict the least
        recently used free buffer."""
        if len(self._buffers) < self._kept_max:
            return True
        for place, buffer in enumerate(self._buffers):
            if buffer.is_free:
                del self._buffers[place]
                return True
        return False


def _new(front: int, size: int) -> DiskBuffer:
    memory = mmap.mmap(-1, front + HUGE_BYTES + size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
    begin = front + -(address + front) % HUGE_BYTES
    huge = size - size % HUGE_BYTES
    if huge and _HUGE >= 0:
        with contextlib.suppress(OSError):  # The kernel may lack huge pages.
            memory.madvise(_HUGE, begin, huge)
    return DiskBuffer(memory, begin)


disk_buffers = DiskBuffers()
"""The pool of all readers of this process."""
