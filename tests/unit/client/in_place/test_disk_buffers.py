"""Tests of buffers for reads by direct I/O: aligned, and reused once no view of them exists."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from broker_lite.client.in_place.disk_buffers import HUGE_BYTES, DiskBuffers

FRONT, SIZE = 70_000, 3 * HUGE_BYTES


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_buffer_is_aligned_to_a_huge_page() -> None:
    kept = DiskBuffers()
    for front, size in ((FRONT, SIZE), (0, 4096), (HUGE_BYTES, HUGE_BYTES)):
        buffer, begin = kept.take(front, size)
        assert begin >= front
        assert len(buffer) >= begin + size
        assert address(buffer[begin:]) % HUGE_BYTES == 0
        buffer[begin - front : begin + size] = bytes(front + size)


def test_buffer_is_reused_once_no_view_of_it_exists() -> None:
    kept = DiskBuffers()
    buffer, begin = kept.take(FRONT, SIZE)
    first = address(buffer)
    column = pa.py_buffer(buffer[begin : begin + 10])
    del buffer
    assert address(kept.take(FRONT, SIZE)[0]) != first, "a column still uses the buffer"
    del column
    held = [kept.take(FRONT, size)[0] for size in (SIZE, 4096)]
    assert first in map(address, held)
    assert address(kept.take(FRONT, SIZE)[0]) not in map(address, held)


def test_full_pool_of_buffers_evicts_the_least_recently_used_one() -> None:
    kept = DiskBuffers(kept_max=2)
    held = [kept.take(0, 4096)[0] for _ in range(3)]
    assert len(kept._buffers) == 2
    del held
    large, _ = kept.take(0, SIZE)
    assert len(kept._buffers) == 2
    assert address(large) in (address(memoryview(buffer.memory)) for buffer in kept._buffers)


def test_two_threads_never_get_the_same_buffer() -> None:
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
