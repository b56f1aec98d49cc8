"""Virtual time: an asyncio loop whose clock jumps to the next timer, and nothing else.

No sockets, no threads, no wall clock: the same coroutines with the same seed run in the same order
every time. A loop with nothing left to do and something still awaited is a deadlock and raises.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any


class Deadlock(Exception):
    """Everything waits and no timer is left."""


class _Selector:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock(f"nothing is left to happen at {self._loop.time():.6f}")
        if timeout > 0:
            self._loop.now += timeout
        return []


class SimLoop(asyncio.BaseEventLoop):
    """``now`` is seconds of virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Selector(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody is elsewhere."""

    def run_in_executor(self, *values: Any) -> Any:
        raise AssertionError("a thread in the simulator")


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end in virtual time; what is left of tasks is cancelled."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


def stream(seed: int, purpose: str) -> random.Random:
    """A source of chance for one purpose: using one more often does not change the others."""
    return random.Random(f"{seed}/{purpose}")
