"""Memory that a disk writes into by itself, used again when nobody looks at it any more.

A disk is told of every piece of memory that lies apart: of 512 pieces for 2 MB of pages of 4 KB, of
one for a huge page. With huge pages such reads take a third of the processor time, and half of the
time where the disk is a virtual machine's. A system that has none gives small ones, and nothing
else changes. Nobody gives anything back by hand; any thread.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from typing import NamedTuple

import numpy as np

HUGE_BYTES = 2 << 20
"""Of a huge page of most processors. What a disk writes begins at a multiple of it."""
KEPT_MAX = 8
"""Rooms of a process: the parts that two readers have under way, and what is made of rows."""
_HUGE = getattr(mmap, "MADV_HUGEPAGE", -1)


class Room(NamedTuple):
    """``memory`` from ``begin`` on is for the disk; what lies before is its reader's."""

    memory: mmap.mmap
    begin: int

    @property
    def is_free(self) -> bool:
        """Whether nobody has a view of it: Python refuses to resize what somebody sees."""
        try:
            self.memory.resize(len(self.memory))
        except BufferError:
            return False
        return True


class DiskRooms:
    """``take`` gives writable memory; what was given before is taken again where it is free."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._rooms: list[Room] = []
        """The one that was taken last is the last."""
        self._lock = threading.Lock()

    def take(self, front: int, size: int) -> tuple[memoryview, int]:
        """Memory with any content, the caller's until its last view is gone, and where in it the
        disk may write ``size`` bytes; at least ``front`` lie before that."""
        with self._lock:
            rooms = self._rooms
            for place in range(len(rooms) - 1, -1, -1):
                room = rooms[place]
                is_fit = room.begin >= front and len(room.memory) - room.begin >= size
                if is_fit and room.is_free:
                    del rooms[place]
                    rooms.append(room)
                    return memoryview(room.memory), room.begin
            room = _new(front, size)
            if self._has_place():
                rooms.append(room)
        return memoryview(room.memory), room.begin

    def _has_place(self) -> bool:
        """Whether one more is kept; the free one that was not taken for longest goes for it."""
        if len(self._rooms) < self._kept_max:
            return True
        for place, room in enumerate(self._rooms):
            if room.is_free:
                del self._rooms[place]
                return True
        return False


def _new(front: int, size: int) -> Room:
    memory = mmap.mmap(-1, front + HUGE_BYTES + size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
    begin = front + -(address + front) % HUGE_BYTES
    huge = size - size % HUGE_BYTES
    if huge and _HUGE >= 0:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(_HUGE, begin, huge)
    return Room(memory, begin)


disk_rooms = DiskRooms()
"""For all of this process's readers."""
