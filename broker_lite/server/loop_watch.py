"""Records how long the loop was kept from turning: the rule is that nothing keeps it over 5 ms.

A timer that is due every 20 ms while requests come looks how late it comes. Without requests each
interval is twice the one before, up to half a second: 50 wake-ups a second were most of what an
idle broker cost. That covers whatever runs on the loop thread, the library's callbacks, collections
and waits for the interpreter included; of a single stop it sees the part after the timer was due,
so what is shorter than the interval is seen as often as its share of it. On a machine whose cores
are all busy, the wait for a core counts too. Loop thread.
"""

from __future__ import annotations

import asyncio

from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics

INTERVAL_MS = 20
INTERVAL_MAX_MS = 500
"""Where nothing is asked. The first request after it is followed by a look within that time."""
RULE_MS = 5


class LoopWatch:
    """``loop_blocked`` (histogram, ms), ``loop_blocked_max_ms`` since the start, and a count of
    ``loop_rule_broken``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, clock: Clock, metrics: Metrics) -> None:
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._due_ms = 0
        self._interval_ms = INTERVAL_MS
        self._requests = 0
        self._handle: asyncio.TimerHandle | None = None
        self.max_ms = 0
        metrics.gauge("loop_blocked_max_ms", lambda: self.max_ms)

    def start(self) -> None:
        """Look from now on."""
        self._due_ms = self._clock.monotonic_ms() + self._interval_ms
        self._handle = self._loop.call_later(self._interval_ms / 1000, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._handle is not None:
            self._handle.cancel()

    def _look(self) -> None:
        late_ms = max(0, self._clock.monotonic_ms() - self._due_ms)
        self._metrics.observe_ms("loop_blocked", late_ms)
        if late_ms > RULE_MS:
            self._metrics.count("loop_rule_broken")
        self.max_ms = max(self.max_ms, late_ms)
        requests = self._metrics.total("requests")
        is_idle = requests == self._requests
        self._requests = requests
        self._interval_ms = min(self._interval_ms * 2, INTERVAL_MAX_MS) if is_idle else INTERVAL_MS
        self.start()
