"""Memory that is used again: never while anybody can see it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from broker_lite.client import rooms
from broker_lite.client.rooms import Rooms


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_a_room_is_used_again_when_nothing_looks_at_it() -> None:
    kept = Rooms(2)
    small = address(kept.take(1000))
    large = address(kept.take(70_000))
    assert small != large
    assert address(kept.take(80_000)) == large
    assert address(kept.take(70_000)) == large
    view = kept.take(50)
    assert address(view) == large, "what was used last is the likeliest to be in the cache"
    assert len(view) == 50
    view[:] = b"x" * 50
    assert address(kept.take(1000)) == small


def test_whatever_sees_it_keeps_a_room() -> None:
    kept = Rooms(4)
    view = kept.take(1000)
    view[:] = bytes(1000)
    held: object
    for look in (
        lambda room: room[5:10],
        lambda room: pa.py_buffer(room[5:10]),
        lambda room: np.frombuffer(room, np.uint8)[3:],
        lambda room: pa.Array.from_buffers(pa.uint8(), 9, [None, pa.py_buffer(room[:9])]).slice(2),
    ):
        where, held = address(view), look(view)
        del view
        view = kept.take(1000)
        assert address(view) != where
        del held


def test_few_rooms_are_kept_and_no_large_ones() -> None:
    kept = Rooms(2)
    views = [kept.take(10) for _ in range(5)]
    assert len({address(view) for view in views}) == 5
    assert len(kept._rooms) == 2
    kept.take(rooms.ROOM_BYTES_MAX + 1)
    assert max(map(len, kept._rooms)) < rooms.ROOM_BYTES_MAX
