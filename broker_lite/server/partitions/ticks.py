"""Deliver ``Tick`` events to the state machines of replicas, which read no clock.

A flush tick tells a replica to check whether its flush is due. Replicas whose topic flushes by time
receive flush ticks while they have unflushed records.

A slow tick tells a leader to look for lagging followers, and a follower to retry failed operations.
Replicas of partitions with several replicas always receive slow ticks.

Each of the two timers runs only while a replica needs it. ``replica_manager`` owns the timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from broker_lite.replication.events import Tick
from broker_lite.server.clock import Clock
from broker_lite.server.partitions.replica import Replica

TICK_MS = 100
"""Time in ms between two flush ticks, the events on which replicas of topics with flush.messages
above 1 check whether a flush is due."""

SLOW_TICK_MS = 1000
"""Maximum time in ms between two slow ticks. On a slow tick, leaders look for lagging followers,
and followers retry failed operations."""


class Ticks:
    """The two timers that deliver Tick events to replicas. There are at least four slow ticks in
    ``replica_lag_ms`` milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, replica_lag_ms: int) -> None:
        self._loop = loop
        self._clock = clock
        self._flushing: dict[Replica, None] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self._replicated: dict[Replica, None] = {}
        self._slow_ms = min(SLOW_TICK_MS, max(replica_lag_ms // 4, 1))
        self._slow_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def replicated(self) -> Collection[Replica]:
        """The replicas of partitions with more than one replica."""
        return self._replicated

    def watch(self, replica: Replica, *, flushes_by_time: bool, is_replicated: bool) -> None:
        """Set which Tick events the replica receives from now on: one every ``TICK_MS`` while it
        has unflushed records (``flushes_by_time``), and one every ``SLOW_TICK_MS`` at most
        (``is_replicated``)."""
        if flushes_by_time:
            self._flushing[replica] = None
        else:
            self._flushing.pop(replica, None)
        if is_replicated:
            self._replicated[replica] = None
            self._tick_slowly()
        else:
            self._replicated.pop(replica, None)

    def forget(self, replica: Replica) -> None:
        self._flushing.pop(replica, None)
        self._replicated.pop(replica, None)

    def appended(self, replica: Replica) -> None:
        """Start the flush timer after an append, if the replica flushes by time."""
        if replica in self._flushing and self._flush_timer is None:
            self._flush_timer = self._loop.call_later(TICK_MS / 1000, self._tick)

    def _tick(self) -> None:
        self._flush_timer = None
        now_ms = self._clock.monotonic_ms()
        unflushed = False
        for replica in self._flushing:
            replica.carry_out(replica.role.step(now_ms, Tick()))
            unflushed = unflushed or replica.role.flushed_end < replica.role.log_end_offset
        if unflushed:
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
