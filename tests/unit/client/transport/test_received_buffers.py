"""Tests of the pool of receive buffers, which all threads of a client share."""

from __future__ import annotations

import threading

import numpy as np

from broker_lite.client.transport import received_buffers
from broker_lite.client.transport.received_buffers import SharedBufferPool

SIZE_BYTES = 100_000


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_buffer_is_reused_after_its_last_view_is_released() -> None:
    kept = SharedBufferPool(1 << 20)
    first = address(kept.take(SIZE_BYTES))
    view = kept.take(SIZE_BYTES)
    assert address(view) == first
    assert address(kept.take(SIZE_BYTES)) != first


def test_large_buffers_are_not_pooled() -> None:
    kept = SharedBufferPool(4 * received_buffers.BUFFER_BYTES_MAX)
    kept.take(received_buffers.BUFFER_BYTES_MAX + 1)
    assert kept._memory.kept_bytes == 0
    kept.take(received_buffers.BUFFER_BYTES_MAX)
    assert kept._memory.kept_bytes == received_buffers.BUFFER_BYTES_MAX


def test_no_two_threads_share_a_buffer() -> None:
    kept, wrong = SharedBufferPool(1 << 20), []

    def work(number: int) -> None:
        for _ in range(500):
            view = kept.take(SIZE_BYTES)
            view[:4] = view[-4:] = bytes([number]) * 4
            if view[:4] != view[-4:] or view[0] != number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
