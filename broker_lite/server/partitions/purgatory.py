"""Callbacks and deadlines of waiting requests, like Kafka's purgatory.

A fetch request that waits for records registers a callback with each of its replicas (``Waiters``)
and sets a timer of its own. Produce requests share one periodic check of all deadlines
(``Deadlines``), because nearly all complete long before their deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_lite.server.clock import Clock

SWEEP_MS = 250
"""Milliseconds between two checks for requests past their deadlines, so a produce request may time
out this long after its deadline."""


class Waiters:
    """Callbacks of the requests that wait for a change of one replica.

    A callback stays registered after it was called, until ``discard`` removes it."""

    __slots__ = ("_callbacks", "_is_due")

    def __init__(self) -> None:
        self._callbacks: dict[Callable[[], None], None] = {}
        self._is_due = False

    def __len__(self) -> int:
        return len(self._callbacks)

    def add(self, callback: Callable[[], None]) -> None:
        self._callbacks[callback] = None

    def discard(self, callback: Callable[[], None]) -> None:
        self._callbacks.pop(callback, None)

    def wake(self) -> None:
        self._is_due = False
        for callback in list(self._callbacks):
            callback()

    def wake_soon(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Schedule one ``wake`` with ``call_soon``, after the callbacks that were scheduled
        before."""
        if self._callbacks and not self._is_due:
            self._is_due = True
            call_soon(self.wake)


class Deadlines:
    """Deadlines of requests; a token is a request's number.

    ``expired(token)`` is called at most ``SWEEP_MS`` after the deadline. The timer of the periodic
    check runs only while there are deadlines."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, expired: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._expired = expired
        self._deadlines: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, token: int, deadline_ms: int) -> None:
        """Add a request with its deadline, in monotonic milliseconds."""
        self._deadlines[token] = deadline_ms
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_MS / 1000, self._sweep)

    def done(self, token: int) -> None:
        self._deadlines.pop(token, None)

    def close(self) -> None:
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        late = [token for token, deadline_ms in self._deadlines.items() if deadline_ms <= now_ms]
        for token in late:
            self._deadlines.pop(token, None)
            self._expired(token)
        if self._deadlines and self._timer is None:
            self._timer = self._loop.call_later(SWEEP_MS / 1000, self._sweep)
