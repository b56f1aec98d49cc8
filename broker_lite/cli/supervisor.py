"""Restart the processes of a ``logbus up`` that have ended, after growing pauses, and report each
restart.

``LocalCluster`` itself restarts no process, because a test may end a process on purpose. One thread
calls ``ProcessSupervisor.check`` repeatedly. That call never waits for a process to start, so that
``logbus up`` can stop at any time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_lite.errors import LogbusError
from broker_lite.server.log_limits import rotate_foreign

if TYPE_CHECKING:
    from broker_lite.local.broker import LocalBroker
    from broker_lite.local.cluster import LocalCluster
    from broker_lite.local.console import LocalConsole
    from broker_lite.local.zookeeper import EmbeddedZooKeeper

PAUSES_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the first, second, … restart of a process. The last value repeats while the
process keeps ending."""
STEADY_SECONDS = 60.0
"""If a process ran for more than this many seconds, the pauses before its restarts begin anew."""

RENEWAL_SECONDS = 3600.0
"""Seconds between two checks for certificates of a secured cluster that must be renewed."""
_ANSWER_SECONDS = 0.1
"""Maximum seconds to read the line with which a starting broker reports its address."""


class _Pauses:
    """The pauses before restarts of one process. ``due`` is the time of the next restart in
    monotonic seconds; None while the process runs."""

    def __init__(self) -> None:
        self.due: float | None = None
        self._count = 0
        self._since = math.inf

    def ended(self, now: float) -> float:
        """Record that the process ended at ``now``. Return the seconds until its next restart."""
        if now - self._since > STEADY_SECONDS:
            self._count = 0
        self._since = math.inf
        pause = PAUSES_SECONDS[min(self._count, len(PAUSES_SECONDS) - 1)]
        self._count += 1
        self.due = now + pause
        return pause

    def started(self, now: float) -> None:
        self.due, self._since = None, now


class ProcessSupervisor:
    """Watches the processes of one cluster. ``say`` receives a line for each end and restart of a
    process."""

    def __init__(self, cluster: LocalCluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._say = say
        self._pauses = {broker.id: _Pauses() for broker in cluster.brokers}
        self._zookeeper = _Pauses()
        self._console = _Pauses()
        self._renewal_due = time.monotonic() + RENEWAL_SECONDS

    def check(self) -> bool:
        """Restart the processes whose pause is over. Return whether a restarted process has begun
        to serve: the caller must then store its pid and addresses (``running.update``)."""
        if time.monotonic() >= self._renewal_due:
            self._renewal_due = time.monotonic() + RENEWAL_SECONDS
            self._cluster.renew_certificates()
        server = self._cluster.zookeeper_server
        is_changed = server is not None and self._check_zookeeper(server)
        for broker in self._cluster.brokers:
            is_changed |= self._check_broker(broker, self._pauses[broker.id])
        console = self._cluster.console
        if console is not None:
            is_changed |= self._check_console(console)
        return is_changed

    def _check_broker(self, broker: LocalBroker, pauses: _Pauses) -> bool:
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

    def _check_console(self, console: LocalConsole) -> bool:
        now = time.monotonic()
        if console.is_starting:
            if not console.has_answered:
                return False
            try:
                console.wait_ready()
            except LogbusError as error:
                pause = self._console.ended(now)
                self._say(f"the console did not start: {error.message}{_next(pause)}")
                return False
            self._say(f"the console serves again on {console.url}")
            self._console.started(now)
            return True
        if console.is_running:
            return False
        if self._console.due is None:
            pause = self._console.ended(now)
            self._say(f"the console has ended ({console.ending}); see {console.log}{_next(pause)}")
        elif now >= self._console.due:
            console.start(console.port)
        return False

    def _check_zookeeper(self, server: EmbeddedZooKeeper) -> bool:
        now = time.monotonic()
        rotate_foreign(server.log)
        try:
            if server.is_starting:
                if not server.has_started():
                    return False
                self._say(f"ZooKeeper serves again on {server.address}")
                self._zookeeper.started(now)
                return True
            if server.is_running:
                return False
            if self._zookeeper.due is None:
                pause = self._zookeeper.ended(now)
                self._say(f"ZooKeeper has ended; see {server.log}{_next(pause)}")
            elif now >= self._zookeeper.due:
                server.start(wait=False)
        except LogbusError as error:
            pause = self._zookeeper.ended(now)
            self._say(f"ZooKeeper did not start: {error.message}{_next(pause)}")
        return False


def _next(pause: float) -> str:
    return "; it is started again" + (f" in {pause:.0f} s" if pause else "")
