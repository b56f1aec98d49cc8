"""The ZooKeeper requests in flight of one ``NativeMachine``, the state machine of a consumer, and
the effects (operations to carry out) of its current step. No I/O.

The machine and its parts ``View`` and ``Ownership`` share one ``PendingRequests``. A callback
handles the answer to each request. If the connection to ZooKeeper is lost, the callbacks are
dropped, and the machine makes its requests again on the next connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker_lite.metadata.store import Operation, Refused, Znode
from broker_lite.native.events import Beat, Effect, Get, List, Write

BACKOFF_MS = 50
BACKOFF_MAX_MS = 2000
"""``BACKOFF_MS`` is the pause (ms) before a failed attempt is first repeated, ``BACKOFF_MAX_MS``
the longest pause."""


def backoff_ms(tries: int) -> int:
    """Return the pause (ms) before a retry: BACKOFF_MS for ``tries`` 0 (after the first failure),
    twice as long for each further failure, at most BACKOFF_MAX_MS."""
    return min(BACKOFF_MS << min(tries, 10), BACKOFF_MAX_MS)


class _PendingRequest(NamedTuple):
    sent_ms: int
    then: Callable[[Any], None]


class PendingRequests:
    """The requests of one consumer's state machine that are in flight.

    ``now_ms`` is the time of the machine's current step, and ``out`` collects the effects
    (operations) that the step returns. ``session_id`` is the id of the present ZooKeeper session.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.out: list[Effect] = []
        self.session_id = 0
        self.sent_ms = 0
        """The time (ms) of the request whose answer the state machine handles now."""
        self._tag = 0
        self._pending: dict[int, _PendingRequest] = {}

    def get(self, path: str, then: Callable[[Znode | None], None], *, watch: bool = False) -> None:
        self.out.append(Get(self._register(then), path, watch))

    def list(
        self, path: str, then: Callable[[list[str] | None], None], *, watch: bool = False
    ) -> None:
        self.out.append(List(self._register(then), path, watch))

    def write(
        self, operations: Sequence[Operation], then: Callable[[Refused | None], None]
    ) -> None:
        self.out.append(Write(self._register(then), tuple(operations)))

    def beat(self, then: Callable[[None], None]) -> None:
        self.out.append(Beat(self._register(then)))

    def _register(self, then: Callable[[Any], None]) -> int:
        self._tag += 1
        self._pending[self._tag] = _PendingRequest(self.now_ms, then)
        return self._tag

    def answered(self, tag: int, value: Any) -> None:
        """Call the callback of the request with the number ``tag``, unless a loss of the connection
        has dropped it (``forget``). ``value`` is the answer."""
        request = self._pending.pop(tag, None)
        if request is not None:
            self.sent_ms = request.sent_ms
            request.then(value)

    def is_pending(self, tag: int) -> bool:
        return tag in self._pending

    def forget(self) -> None:
        """Drop the callbacks of all requests, because the connection to ZooKeeper is lost."""
        self._pending.clear()
