"""Tests of the purgatory: requests that wait until a change wakes them or a deadline expires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_lite.server.clock import Clock
from broker_lite.server.partitions.purgatory import Deadlines, Waiters


def test_delayed_request_is_woken_every_time_until_it_is_discarded() -> None:
    waiters, woken = Waiters(), []

    def once() -> None:
        woken.append("once")
        waiters.discard(once)

    waiters.add(once)
    waiters.add(lambda: woken.append("always"))
    waiters.wake()
    waiters.wake()
    assert woken == ["once", "always", "always"]
    assert len(waiters) == 1


def test_waiting_request_is_woken_once_for_all_wake_ups_in_one_event_loop_turn() -> None:
    waiters = Waiters()
    turn: list[Callable[[], None]] = []
    waiters.wake_soon(turn.append)
    assert not turn
    woken: list[int] = []
    waiters.add(lambda: woken.append(len(turn)))
    for _ in range(2):
        waiters.wake_soon(turn.append)
        waiters.wake_soon(turn.append)
        assert len(turn) == 1
        turn.pop()()
    assert woken == [0, 0]


def test_completed_request_does_not_time_out() -> None:
    async def main() -> None:
        late: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        clock = Clock()
        deadlines = Deadlines(asyncio.get_running_loop(), clock, late.set_result)
        now_ms = clock.monotonic_ms()
        for token, deadline_ms in ((1, now_ms), (2, now_ms), (3, now_ms + 60_000)):
            deadlines.add(token, deadline_ms)
        deadlines.done(1)
        assert await asyncio.wait_for(late, 20) == 2
        assert len(deadlines) == 1
        deadlines.done(3)
        deadlines.close()

    asyncio.run(main())
