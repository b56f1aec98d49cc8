"""Restart the processes of a ``logbus up`` that have ended, after growing pauses, and report each
restart.

``LocalCluster`` itself restarts no process, because a test may end a process on purpose. One thread
calls ``ProcessSupervisor.check`` repeatedly. That call never waits for a process to start, so that
``logbus up`` can stop at any time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
"""Timeout in seconds for reading the line with which a started broker reports its address."""


@dataclass(slots=True)
class _Watch:
    """Restarts one process, after growing pauses.

    ``start`` starts the process and returns at once. ``is_ready`` tells whether the started process
    serves, and raises the error with which its start failed. ``address`` returns the address on
    which it serves. ``due`` is the time of the next restart in monotonic seconds; None while the
    process runs.
    """

    name: str
    process: LocalBroker | LocalConsole | EmbeddedZooKeeper
    say: Callable[[str], None]
    start: Callable[[], object]
    is_ready: Callable[[], bool]
    address: Callable[[], str]
    due: float | None = None
    count: int = 0
    since: float = math.inf

    def check(self) -> bool:
        """Restart the process if it has ended and the pause is over. Return whether a restarted
        process has begun to serve."""
        process, now = self.process, time.monotonic()
        try:
            if process.is_starting:
                if not self.is_ready():
                    return False
                self.say(f"{self.name} serves again on {self.address()}")
                self.due, self.since = None, now
                return True
            if process.is_running:
                return False
            if self.due is None:
                self._pause(now, f"has ended ({process.ending}); see {process.log}")
            elif now >= self.due:
                self.start()
        except LogbusError as error:
            self._pause(now, f"did not start: {error.message}")
        return False

    def _pause(self, now: float, why: str) -> None:
        """Choose the time of the next restart, and report why the process does not run."""
        if now - self.since > STEADY_SECONDS:
            self.count = 0
        self.since = math.inf
        pause = PAUSES_SECONDS[min(self.count, len(PAUSES_SECONDS) - 1)]
        self.count += 1
        self.due = now + pause
        after = f" in {pause:.0f} s" if pause else ""
        self.say(f"{self.name} {why}; it is started again{after}")


class ProcessSupervisor:
    """Watches the processes of one cluster. ``say`` receives a line for each end and restart of a
    process."""

    def __init__(self, cluster: LocalCluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._renewal_due = time.monotonic() + RENEWAL_SECONDS
        server, console = cluster.zookeeper_server, cluster.console
        self._watches = [] if server is None else [_watch_zookeeper(server, say)]
        self._watches += [_watch_broker(broker, say) for broker in cluster.brokers]
        self._watches += [] if console is None else [_watch_console(console, say)]

    def check(self) -> bool:
        """Restart the processes whose pause before a restart is over. Return whether a restarted
        process has begun to serve: the caller must then store its pid and addresses
        (``running.update``)."""
        if time.monotonic() >= self._renewal_due:
            self._renewal_due = time.monotonic() + RENEWAL_SECONDS
            self._cluster.renew_certificates()
        if self._cluster.zookeeper_server is not None:
            rotate_foreign(self._cluster.zookeeper_server.log)
        serve_again = [watch.check() for watch in self._watches]
        return any(serve_again)


def _watch_zookeeper(server: EmbeddedZooKeeper, say: Callable[[str], None]) -> _Watch:
    start = partial(server.start, wait=False)
    return _Watch("ZooKeeper", server, say, start, server.has_started, lambda: server.address)


def _watch_broker(broker: LocalBroker, say: Callable[[str], None]) -> _Watch:
    start = partial(broker.start, wait=False)
    is_ready = partial(_is_ready, broker, partial(broker.wait_ready, _ANSWER_SECONDS))
    return _Watch(f"broker {broker.id}", broker, say, start, is_ready, lambda: broker.endpoint)


def _watch_console(console: LocalConsole, say: Callable[[str], None]) -> _Watch:
    is_ready = partial(_is_ready, console, console.wait_ready)
    return _Watch(
        "the console",
        console,
        say,
        lambda: console.start(console.port),
        is_ready,
        lambda: console.url,
    )


def _is_ready(process: LocalBroker | LocalConsole, read_report: Callable[[], None]) -> bool:
    if process.has_answered:
        read_report()
    return not process.is_starting
