"""Memory that a disk writes into: aligned, used again, never while anybody can see it."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from broker_lite.client.in_place.disk_buffers import HUGE_BYTES, DiskBuffers

FRONT, SIZE = 70_000, 3 * HUGE_BYTES


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_what_the_disk_writes_begins_where_a_huge_page_can() -> None:
    kept = DiskBuffers()
    for front, size in ((FRONT, SIZE), (0, 4096), (HUGE_BYTES, HUGE_BYTES)):
        buffer, begin = kept.take(front, size)
        assert begin >= front
        assert len(buffer) >= begin + size
        assert address(buffer[begin:]) % HUGE_BYTES == 0
        buffer[begin - front : begin + size] = bytes(front + size)


def test_a_room_is_taken_again_when_nothing_looks_at_it() -> None:
    kept = DiskBuffers()
    buffer, begin = kept.take(FRONT, SIZE)
    first = address(buffer)
    column = pa.py_buffer(buffer[begin : begin + 10])
    del buffer
    assert address(kept.take(FRONT, SIZE)[0]) != first, "a column is over it"
    del column
    held = [kept.take(FRONT, size)[0] for size in (SIZE, 4096)]
    assert first in map(address, held)
    assert address(kept.take(FRONT, SIZE)[0]) not in map(address, held)


def test_no_more_are_kept_than_were_said_and_the_longest_unused_goes() -> None:
    kept = DiskBuffers(kept_max=2)
    held = [kept.take(0, 4096)[0] for _ in range(3)]
    assert len(kept._buffers) == 2
    del held
    large, _ = kept.take(0, SIZE)
    assert len(kept._buffers) == 2
    assert address(large) in (address(memoryview(buffer.memory)) for buffer in kept._buffers)


def test_no_two_threads_have_one_room() -> None:
    kept, wrong = DiskBuffers(), []

    def work(number: int) -> None:
        for _ in range(300):
            buffer, begin = kept.take(0, 4096)
            buffer[begin : begin + 4] = bytes([number]) * 4
            if buffer[begin : begin + 4] != bytes([number]) * 4:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
