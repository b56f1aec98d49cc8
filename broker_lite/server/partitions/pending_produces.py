"""Hold produce requests until the condition of their ``acks`` is met, the append fails, or they
time out.

Each request has a token, by which the replica reports the result of the append."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_lite.errors import LogbusError, RequestTimedOutError
from broker_lite.replication.events import Appended
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions.purgatory import Deadlines

Produced = Callable[[Appended | None, LogbusError | None], None]
"""A function that receives the result of an append, or the error. It is called exactly once."""


class PendingProduces:
    """The produce requests without a result, by token. ``len`` returns their number."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, metrics: Metrics) -> None:
        self._metrics = metrics
        self._token = 0
        self._pending: dict[int, Produced] = {}
        self._deadlines = Deadlines(loop, clock, self._timed_out)

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, deadline_ms: int, done: Produced) -> int:
        """Add a request and return its token. ``deadline_ms`` is monotonic time."""
        self._token = token = self._token + 1
        self._pending[token] = done
        self._deadlines.add(token, deadline_ms)
        return token

    def complete(self, token: int, appended: Appended | None, error: LogbusError | None) -> None:
        """Answer the request with this token, unless it has timed out."""
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
                    "the batch was not flushed on every in-sync replica within the request "
                    "timeout; the log may contain it"
                ),
            )

    def close(self) -> None:
        """Stop the timeouts of requests. ``replica_manager`` answers the requests when it closes
        the replicas."""
        self._deadlines.close()
