"""A pool of aligned buffers for direct disk reads (O_DIRECT), on huge pages where available.

A direct read costs processor time for each page of its buffer. A buffer of 2 MB has 512 pages of 4
KB, or one huge page. With huge pages a read takes a third of the processor time, or half on the
disk of a virtual machine. The pool reuses a buffer when the last view of it is released, on any
thread."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from typing import NamedTuple

import numpy as np

HUGE_BYTES = 2 << 20
"""Bytes of a huge page on most processors. In a buffer, data from the disk begin at an address that
is a multiple of this size."""
KEPT_MAX = 8
"""Maximum number of buffers in the pool: enough for the reads in flight and decoded batches of two
readers."""
_HUGE = getattr(mmap, "MADV_HUGEPAGE", -1)


class DiskBuffer(NamedTuple):
    """A buffer of the pool. Data from the disk begin at ``begin``. The bytes before it are free for
    the beginning of a batch that the previous disk read cut off."""

    memory: mmap.mmap
    begin: int

    @property
    def is_free(self) -> bool:
        """Whether no view of the buffer exists. Tries to resize it, because Python refuses to
        resize a buffer with views."""
        try:
            self.memory.resize(len(self.memory))
        except BufferError:
            return False
        return True


class DiskBuffers:
    """A pool of page-aligned buffers for direct disk reads. Any thread may use it."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._buffers: list[DiskBuffer] = []
        """The buffers that the pool keeps, the least recently used first."""
        self._lock = threading.Lock()

    def take(self, front: int, size: int) -> tuple[memoryview, int]:
        """Return a buffer, and an aligned index after which ``size`` bytes from the disk fit.

        At least ``front`` bytes precede the index. The content is arbitrary. The buffer is reused
        only after the caller has released all views of it."""
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

    def forked(self) -> None:
        """Replace the lock in a forked child: another thread may have held it during the fork."""
        self._lock = threading.Lock()

    def _has_space(self) -> bool:
        """Return whether the pool may get one more buffer. If it is full, first drop a free
        buffer."""
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
        # A kernel without huge pages refuses the call: continue without them.
        with contextlib.suppress(OSError):
            memory.madvise(_HUGE, begin, huge)
    return DiskBuffer(memory, begin)


disk_buffers = DiskBuffers()
"""The pool that all readers of this process share."""

os.register_at_fork(after_in_child=disk_buffers.forked)
