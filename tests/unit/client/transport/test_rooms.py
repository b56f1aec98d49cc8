"""Memory that all threads take from: used again, never while anybody can see it."""

from __future__ import annotations

import threading

import numpy as np

from broker_lite.client.transport import rooms
from broker_lite.client.transport.rooms import Rooms

ROOM_BYTES = 100_000


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_a_room_is_used_again_when_nothing_looks_at_it() -> None:
    kept = Rooms(1 << 20)
    first = address(kept.take(ROOM_BYTES))
    view = kept.take(ROOM_BYTES)
    assert address(view) == first
    assert address(kept.take(ROOM_BYTES)) != first


def test_large_rooms_are_not_kept() -> None:
    kept = Rooms(4 * rooms.ROOM_BYTES_MAX)
    kept.take(rooms.ROOM_BYTES_MAX + 1)
    assert kept._memory.kept_bytes == 0
    kept.take(rooms.ROOM_BYTES_MAX)
    assert kept._memory.kept_bytes == rooms.ROOM_BYTES_MAX


def test_no_two_threads_have_one_room() -> None:
    kept, wrong = Rooms(1 << 20), []

    def work(number: int) -> None:
        for _ in range(500):
            view = kept.take(ROOM_BYTES)
            view[:4] = view[-4:] = bytes([number]) * 4
            if view[:4] != view[-4:] or view[0] != number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
