"""Produces that are not decided: each is told once what became of its batch, or that time is up.

Loop thread only. ``replica_manager`` owns them; a replica decides by the token that its machine was
given, when the batch is where the request's ``acks`` wants it, or cannot come there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_lite.errors import LogbusError, RequestTimedOutError
from broker_lite.replication.events import Appended
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions.purgatory import Deadlines

Produced = Callable[[Appended | None, LogbusError | None], None]
"""Called once, with what was appended or with the error."""


class Produces:
    """By token. ``len`` is how many are not decided."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, metrics: Metrics) -> None:
        self._metrics = metrics
        self._token = 0
        self._pending: dict[int, Produced] = {}
        self._deadlines = Deadlines(loop, clock, self._timed_out)

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, deadline_ms: int, done: Produced) -> int:
        """The token of a new one; ``deadline_ms`` is of the monotonic clock."""
        self._token = token = self._token + 1
        self._pending[token] = done
        self._deadlines.add(token, deadline_ms)
        return token

    def decided(self, token: int, appended: Appended | None, error: LogbusError | None) -> None:
        """Tell it; one whose time was up before has been told."""
        done = self._pending.pop(token, None)
        if done is not None:
            self._deadlines.done(token)
            done(appended, error)

    def _timed_out(self, token: int) -> None:
        done = self._pending.pop(token, None)
        if done is not None:
            self._metrics.count("produces_timed_out")
            done(
                None,
                RequestTimedOutError(
                    "the batch was not flushed on every in-sync replica in the request's time; "
                    "it may be in the log"
                ),
            )

    def close(self) -> None:
        """No time is up any more: whoever closes the replicas decides what waits."""
        self._deadlines.close()
