"""Tests of the buffer pool: it reuses a block only after the last view of the block is released."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.wire.buffer_pool import REUSED_FROM_BYTES, STEP_BYTES, BufferPool
from broker_lite.wire.frame import FrameReceiver

MIB = 1 << 20


def test_block_is_reused_after_its_last_view_is_released() -> None:
    memory = BufferPool(8 * MIB)
    frame = memory.take(MIB)
    block = id(frame.obj)
    part = frame[100:200]
    frame.release()
    assert id(memory.take(MIB).obj) != block  # ``part`` is a view of the block.
    del part
    assert block in {id(view.obj) for view in (memory.take(MIB), memory.take(MIB))}
    assert memory.kept_bytes == 2 * MIB


def test_block_with_a_live_view_is_not_reused() -> None:
    memory = BufferPool(64 * MIB)
    for look in (
        lambda frame: frame[5:10],
        lambda frame: pa.py_buffer(frame[5:10]),
        lambda frame: np.frombuffer(frame, np.uint8)[3:],
        lambda frame: pa.Array.from_buffers(pa.uint8(), 9, [None, pa.py_buffer(frame[:9])])[2:],
    ):
        frame = memory.take(MIB)
        where = np.frombuffer(frame, np.uint8).ctypes.data
        held = look(frame)
        del frame
        others = [memory.take(MIB) for _ in range(3)]
        assert where not in {np.frombuffer(each, np.uint8).ctypes.data for each in others}
        del held, others


def test_later_frames_do_not_overwrite_an_earlier_frame() -> None:
    memory = BufferPool(4 * MIB)
    receiver = FrameReceiver(8 * MIB, allocate=memory.take)
    kept = []
    for number in range(8):
        body = bytes([number]) * (MIB + number)
        data = len(body).to_bytes(4, "big") + body
        while data:
            target = receiver.buffer()
            size = min(len(target), len(data))
            target[:size] = data[:size]
            data = data[size:]
            kept += receiver.received(size)
    assert [bytes(frame) for frame in kept] == [
        bytes([number]) * (MIB + number) for number in range(8)
    ]


def test_buffer_pool_does_not_reuse_small_receive_buffers() -> None:
    memory = BufferPool(MIB)
    assert len(memory.take(REUSED_FROM_BYTES - 1)) == REUSED_FROM_BYTES - 1
    assert memory.kept_bytes == 0


def test_buffer_pool_evicts_free_blocks_for_a_block_of_a_larger_size() -> None:
    memory = BufferPool(4 * MIB)
    held = [memory.take(MIB) for _ in range(4)]
    large = memory.take(4 * MIB)
    # The pool is full, so ``large`` is not pooled.
    assert (len(large), memory.kept_bytes) == (4 * MIB, 4 * MIB)
    del held, large
    again = memory.take(4 * MIB)
    assert memory.kept_bytes == 4 * MIB and len(again.obj) == 4 * MIB


def test_buffer_pool_frees_blocks_that_stay_unused_between_two_sweeps() -> None:
    memory = BufferPool(64 * MIB)
    held = [memory.take(MIB) for _ in range(4)]
    held.clear()
    memory.sweep()
    assert memory.kept_bytes == 4 * MIB
    kept = memory.take(MIB)
    memory.sweep()
    assert memory.kept_bytes == MIB
    memory.sweep()
    memory.sweep()
    assert memory.kept_bytes == MIB  # ``kept`` still uses its block.
    del kept
    memory.sweep()
    assert memory.kept_bytes == 0


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 8)), max_size=60))
def test_buffers_in_use_never_share_memory(steps: list[tuple[int, int]]) -> None:
    """Take and release buffers of random sizes; check that each keeps the first and last byte
    written to it."""
    memory = BufferPool(20 * STEP_BYTES)
    held: list[tuple[memoryview, int]] = []
    for mark, (steps_long, keeps) in enumerate(steps):
        frame = memory.take(steps_long * STEP_BYTES // 2 + 1)
        frame[0] = frame[-1] = mark
        held.append((frame[:], mark))
        del frame
        del held[: max(0, len(held) - keeps)]
        if mark % 7 == 0:
            memory.sweep()
        assert all(view[0] == view[-1] == number for view, number in held)
        assert memory.kept_bytes <= memory.limit_bytes
    held.clear()
    memory.sweep()
    memory.sweep()
    assert memory.kept_bytes == 0
