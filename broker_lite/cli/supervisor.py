"""Starts a process of ``logbus up`` again when it has ended, with growing pauses, and says so.

``LocalCluster`` leaves what ended where it is: whoever uses it as a library decides. ``up`` is what
people leave running, so it keeps brokers and ZooKeeper up. One thread calls ``look`` again and
again; starting a broker never makes it wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_lite.errors import LogbusError

if TYPE_CHECKING:
    from broker_lite.local.broker import LocalBroker
    from broker_lite.local.cluster import LocalCluster
    from broker_lite.local.zookeeper import EmbeddedZooKeeper

PAUSES_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Before each start after an end; the last one goes on for as long as it keeps ending."""
STEADY_SECONDS = 60.0
"""Who ran for so long begins with the first pause again."""

_ANSWER_SECONDS = 0.1
"""Enough to take an answer that is there; where none came in time the broker is ended."""


class _Pauses:
    """When the next start is due; None while nothing has ended."""

    def __init__(self) -> None:
        self.due: float | None = None
        self._count = 0
        self._since = math.inf

    def ended(self, now: float) -> float:
        """The pause before the next start, in seconds."""
        if now - self._since > STEADY_SECONDS:
            self._count = 0
        self._since = math.inf
        pause = PAUSES_SECONDS[min(self._count, len(PAUSES_SECONDS) - 1)]
        self._count += 1
        self.due = now + pause
        return pause

    def started(self, now: float) -> None:
        self.due, self._since = None, now


class Keeper:
    """Watches one cluster. ``say`` gets a line for each end and each return."""

    def __init__(self, cluster: LocalCluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._say = say
        self._pauses = {broker.id: _Pauses() for broker in cluster.brokers}
        self._zookeeper = _Pauses()

    def look(self) -> bool:
        """Do what is due. Whether a process was replaced, so that records of them are old."""
        server = self._cluster.zookeeper_server
        is_changed = server is not None and self._look_at_zookeeper(server)
        for broker in self._cluster.brokers:
            is_changed |= self._look_at(broker, self._pauses[broker.id])
        return is_changed

    def _look_at(self, broker: LocalBroker, pauses: _Pauses) -> bool:
        now = time.monotonic()
        name = f"broker {broker.id}"
        if broker.is_starting:
            if not broker.has_answered:
                return False
            try:
                broker.wait_ready(_ANSWER_SECONDS)
            except LogbusError as error:
                self._say(f"{name} did not start: {error.message}{_next(pauses.ended(now))}")
                return False
            self._say(f"{name} serves again on {broker.endpoint}")
            pauses.started(now)
            return True
        if broker.is_running:
            return False
        if pauses.due is None:
            pause = pauses.ended(now)
            self._say(f"{name} has ended ({broker.ending}); see {broker.log}{_next(pause)}")
        elif now >= pauses.due:
            broker.start(wait=False)
        return False

    def _look_at_zookeeper(self, server: EmbeddedZooKeeper) -> bool:
        now = time.monotonic()
        if server.is_running:
            return False
        if self._zookeeper.due is None:
            pause = self._zookeeper.ended(now)
            self._say(f"ZooKeeper has ended; see {server.log}{_next(pause)}")
        elif now >= self._zookeeper.due:
            try:
                server.start()
            except LogbusError as error:
                pause = self._zookeeper.ended(now)
                self._say(f"ZooKeeper did not start: {error.message}{_next(pause)}")
                return False
            self._say(f"ZooKeeper serves again on {server.address}")
            self._zookeeper.started(now)
            return True
        return False


def _next(pause: float) -> str:
    return "; it is started again" + (f" in {pause:.0f} s" if pause else "")
