"""Memory that received or read bytes land in, used again once nobody looks at it any more.

The first touch of fresh memory costs more than the copy into it, and what was used a moment ago is
still in the processor's cache. A room is free when no view of it is left: columns over it, and what
Spark made of them, keep it. Any thread.
"""

from __future__ import annotations

import threading

from broker_lite.wire.reused_memory import is_free

ROUND_BYTES = 64 << 10
ROOM_BYTES_MAX = 16 << 20
"""Larger ones are rare, and not kept."""


class Rooms:
    """At most ``count`` rooms are kept, of up to ``ROOM_BYTES_MAX`` each."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rooms: list[bytearray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """A view of ``size`` bytes, of any content, that nobody else has."""
        with self._lock:
            for at, room in enumerate(self._rooms):
                if len(room) >= size and is_free(room):
                    # The one used last comes first: it is the likeliest to be in the cache.
                    self._rooms.insert(0, self._rooms.pop(at))
                    return memoryview(room)[:size]
        room = bytearray(-(-size // ROUND_BYTES) * ROUND_BYTES)
        view = memoryview(room)[:size]
        if size <= ROOM_BYTES_MAX:
            with self._lock:
                self._rooms.insert(0, room)
                del self._rooms[self._count :]
        return view


received_rooms = Rooms(8)
"""For answers, and for what is read out of files. A reader, whoever converts what it read, and the
answers that wait between them hold one each."""
