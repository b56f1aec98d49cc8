"""Deliver ``Tick`` events to the state machines of replicas, which read no clock.

While a leader has appended records whose flush has not started, flush ticks make it check whether
the flush is due. Slow ticks go to all replicas of replicated partitions: a leader looks for lagging
followers, a follower retries failed operations. Each of the two timers runs only while a replica
needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from broker_lite.replication.events import Tick
from broker_lite.server.clock import Clock
from broker_lite.server.partitions.replica import Replica

TICK_MS = 100
"""Milliseconds between checks whether a flush is due (flush ticks); at flush.messages=1 it is."""

SLOW_TICK_MS = 1000
"""Maximum milliseconds between two slow ticks, at which leaders look for lagging followers and
followers retry failed operations."""


class Ticks:
    """The timers of two kinds of ticks. At a flush tick, leaders start due flushes. At a slow tick,
    they look for lagging followers; slow ticks come at least four times in ``replica_lag_ms``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, replica_lag_ms: int) -> None:
        self._loop = loop
        self._clock = clock
        self._unflushed: dict[Replica, None] = {}
        """The leader replicas whose appended records wait for the start of a flush."""
        self._flush_timer: asyncio.TimerHandle | None = None
        self._replicated: dict[Replica, None] = {}
        self._slow_ms = min(SLOW_TICK_MS, max(replica_lag_ms // 4, 1))
        self._slow_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def replicated(self) -> Collection[Replica]:
        """The replicas of partitions with more than one replica."""
        return self._replicated

    def watch(self, replica: Replica, *, is_replicated: bool) -> None:
        """Begin slow ticks for the replica, or end them if its partition has no other replica."""
        if is_replicated:
            self._replicated[replica] = None
            self._tick_slowly()
        else:
            self._replicated.pop(replica, None)

    def forget(self, replica: Replica) -> None:
        self._unflushed.pop(replica, None)
        self._replicated.pop(replica, None)

    def appended(self, replica: Replica) -> None:
        """Deliver a Tick event every ``TICK_MS`` after an append, until the replica starts a flush.

        Do nothing if the flush of the appended records has started already."""
        if replica.role.awaits_flush:
            self._unflushed[replica] = None
            if self._flush_timer is None:
                self._flush_timer = self._loop.call_later(TICK_MS / 1000, self._tick)

    def _tick(self) -> None:
        self._flush_timer = None
        now_ms = self._clock.monotonic_ms()
        for replica in list(self._unflushed):
            replica.carry_out(replica.role.step(now_ms, Tick()))
            if not replica.role.awaits_flush:
                self._unflushed.pop(replica, None)
        if self._unflushed:
            self._flush_timer = self._loop.call_later(TICK_MS / 1000, self._tick)

    def _slow_tick(self) -> None:
        self._slow_timer = None
        now_ms = self._clock.monotonic_ms()
        for replica in list(self._replicated):
            replica.carry_out(replica.role.step(now_ms, Tick()))
        self._tick_slowly()

    def _tick_slowly(self) -> None:
        if self._replicated and self._slow_timer is None and not self._closed:
            self._slow_timer = self._loop.call_later(self._slow_ms / 1000, self._slow_tick)

    def close(self) -> None:
        self._closed = True
        for timer in (self._flush_timer, self._slow_timer):
            if timer is not None:
                timer.cancel()
