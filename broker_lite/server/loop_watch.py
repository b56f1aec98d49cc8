"""Measure how long the event loop is blocked; no callback may block it for more than 5 ms.

While requests arrive, a timer runs every 20 ms and measures how late it is. Below ``BUSY_PER_S``
requests a second the interval doubles, up to half a second: 50 wake-ups a second would take most of
an idle broker's CPU time.

The delay includes all work on the event loop's thread: callbacks of libraries, garbage collections,
waits for the interpreter lock or for a busy core. The timer measures only the part of a block after
the time at which it was due, so it can miss a block that is shorter than the interval."""

from __future__ import annotations

import asyncio

from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics

INTERVAL_MS = 20
INTERVAL_MAX_MS = 500
"""Milliseconds between two measurements on an idle broker.

If requests begin to arrive, the next measurement still waits until this time is over."""
BUSY_PER_S = 20
"""Number of requests a second below which the broker is idle, and measures less often."""
RULE_MS = 5


class LoopWatch:
    """A timer that measures how late it runs, in the metric ``loop_delay_seconds``. The metric
    ``loop_rule_violations`` counts delays above ``RULE_MS``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, clock: Clock, metrics: Metrics) -> None:
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._due_ms = 0
        self._interval_ms = INTERVAL_MS
        self._requests = 0
        self._handle: asyncio.TimerHandle | None = None
        self._delays = metrics.histogram("loop_delay_seconds")

    def start(self) -> None:
        """Start to measure how long the event loop is blocked."""
        self._due_ms = self._clock.monotonic_ms() + self._interval_ms
        self._handle = self._loop.call_later(self._interval_ms / 1000, self._measure)

    def close(self) -> None:
        """Stop measuring the event loop."""
        if self._handle is not None:
            self._handle.cancel()

    def _measure(self) -> None:
        late_ms = max(0, self._clock.monotonic_ms() - self._due_ms)
        self._delays.observe(late_ms / 1000)
        if late_ms > RULE_MS:
            self._metrics.count("loop_rule_violations")
        requests = int(self._metrics.total("requests"))
        is_idle = (requests - self._requests) * 1000 < BUSY_PER_S * self._interval_ms
        self._requests = requests
        self._interval_ms = min(self._interval_ms * 2, INTERVAL_MAX_MS) if is_idle else INTERVAL_MS
        self.start()
