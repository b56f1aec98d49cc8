"""Memory that received or read bytes land in, used again once nobody looks at it any more.

The first touch of fresh memory costs more than the copy into it, and what was used a moment ago is
still in the processor's cache. Columns over it, and what Spark made of them, keep it. Any thread.
"""

from __future__ import annotations

import threading

from broker_lite.wire.reused_memory import ReusedMemory

ROOM_BYTES_MAX = 16 << 20
"""Larger ones are rare, and not kept."""
KEPT_BYTES_MAX = 64 << 20
"""A reader, whoever converts what it read, and the answers that wait between them hold one each."""


class Rooms:
    """``ReusedMemory`` that all threads take from."""

    def __init__(self, limit_bytes: int) -> None:
        self._memory = ReusedMemory(limit_bytes)
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """Memory of ``size`` bytes with any content, the caller's until its last view is gone."""
        if size > ROOM_BYTES_MAX:
            return memoryview(bytearray(size))
        with self._lock:
            return self._memory.take(size)


received_rooms = Rooms(KEPT_BYTES_MAX)
"""For answers, and for what is read out of files."""
