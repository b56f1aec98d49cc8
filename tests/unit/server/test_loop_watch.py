"""Tests of the recorded delays of a broker's event loop, with a clock that the test sets.

A timer that runs late shows how long the event loop was blocked.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_lite.server.clock import Clock
from broker_lite.server.loop_watch import INTERVAL_MAX_MS, INTERVAL_MS, RULE_MS, LoopWatch
from broker_lite.server.metrics import Metrics


class SetClock(Clock):
    """A clock that stands still until the test moves it."""

    __slots__ = ("at_ms",)

    def __init__(self) -> None:
        self.at_ms = 1000

    def monotonic_ms(self) -> int:
        return self.at_ms


async def lateness(*kept_ms: int) -> Metrics:
    """Let timers run late by these numbers of milliseconds; return the metrics of the LoopWatch."""
    loop, clock, metrics = asyncio.get_running_loop(), SetClock(), Metrics()
    watch = LoopWatch(loop, clock=clock, metrics=metrics)
    turns = iter(kept_ms)
    done = loop.create_future()
    measure = watch._measure

    def turn() -> None:
        kept: Any = next(turns, None)
        if kept is None:
            watch.close()
            done.set_result(None)
            return
        clock.at_ms += INTERVAL_MS + kept
        metrics.count("requests", "fetch")
        measure()

    watch._measure = turn  # type: ignore[method-assign]
    watch.start()
    await asyncio.wait_for(done, 20)
    return metrics


def delays(metrics: Metrics) -> tuple[tuple[int, ...], float]:
    """Return the bucket counts of the loop delay histogram, and the sum in seconds."""
    [sample] = [one for one in metrics.samples() if one.metric.name == "loop_delay_seconds"]
    return sample.buckets[()]


def test_event_loop_delays_are_recorded_and_long_delays_counted() -> None:
    metrics = asyncio.run(lateness(0, RULE_MS, RULE_MS + 1, 70, 2))
    counts, total = delays(metrics)
    assert total == pytest.approx(0.083)
    assert sum(counts[:3]) == 3, "three delays are at most 5 ms"
    assert sum(counts) == 5
    assert metrics.value("loop_rule_violations") == 2


def test_timer_that_fires_early_counts_as_no_event_loop_delay() -> None:
    assert delays(asyncio.run(lateness(-1)))[1] == 0


class RecordedLoop:
    """Stands for an event loop, and stores timers that the test then calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, Any]] = []

    def call_later(self, delay_s: float, callback: Any) -> None:
        self.asked.append((delay_s, callback))


def test_idle_broker_measures_event_loop_delays_less_often() -> None:
    """Regression: three idle brokers used 1.6 % of a core, mostly for timers every 20 ms.

    A broker that gets few requests, such as waiting fetches of followers, counts as idle.
    """
    loop, metrics = RecordedLoop(), Metrics()
    watch = LoopWatch(loop, clock=SetClock(), metrics=metrics)  # type: ignore[arg-type]
    watch.start()
    for requests in (0, 0, 0, 0, 0, 9, 10, 0):
        metrics.count("requests", "fetch", amount=requests)
        loop.asked[-1][1]()
    waits_ms = [round(delay_s * 1000) for delay_s, _ in loop.asked]
    assert waits_ms == [20, 40, 80, 160, 320, 500, 500, INTERVAL_MS, 40]
    assert max(waits_ms) == INTERVAL_MAX_MS
