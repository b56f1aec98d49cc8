"""Memory that a disk writes into: aligned, used again, never while anybody can see it."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from broker_lite.client.in_place.disk_rooms import HUGE_BYTES, DiskRooms

FRONT, SIZE = 70_000, 3 * HUGE_BYTES


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_what_the_disk_writes_begins_where_a_huge_page_can() -> None:
    kept = DiskRooms()
    for front, size in ((FRONT, SIZE), (0, 4096), (HUGE_BYTES, HUGE_BYTES)):
        room, begin = kept.take(front, size)
        assert begin >= front
        assert len(room) >= begin + size
        assert address(room[begin:]) % HUGE_BYTES == 0
        room[begin - front : begin + size] = bytes(front + size)


def test_a_room_is_taken_again_when_nothing_looks_at_it() -> None:
    kept = DiskRooms()
    room, begin = kept.take(FRONT, SIZE)
    first = address(room)
    column = pa.py_buffer(room[begin : begin + 10])
    del room
    assert address(kept.take(FRONT, SIZE)[0]) != first, "a column is over it"
    del column
    held = [kept.take(FRONT, size)[0] for size in (SIZE, 4096)]
    assert first in map(address, held)
    assert address(kept.take(FRONT, SIZE)[0]) not in map(address, held)


def test_no_more_are_kept_than_were_said_and_the_longest_unused_goes() -> None:
    kept = DiskRooms(kept_max=2)
    held = [kept.take(0, 4096)[0] for _ in range(3)]
    assert len(kept._rooms) == 2
    del held
    large, _ = kept.take(0, SIZE)
    assert len(kept._rooms) == 2
    assert address(large) in (address(memoryview(room.memory)) for room in kept._rooms)


def test_no_two_threads_have_one_room() -> None:
    kept, wrong = DiskRooms(), []

    def work(number: int) -> None:
        for _ in range(300):
            room, begin = kept.take(0, 4096)
            room[begin : begin + 4] = bytes([number]) * 4
            if room[begin : begin + 4] != bytes([number]) * 4:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
