"""The ZooKeeper requests in flight of one machine, and the effects of its current step.

The parts of a machine share one ``PendingRequests``. A callback handles each answer. After a lost
connection no callback runs, and the parts repeat their requests on the next connection. The module
does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker_lite.metadata.store import Operation, Refused, Znode
from broker_lite.native.events import Beat, Effect, Get, List, Write

BACKOFF_MS = 50
BACKOFF_MAX_MS = 2000
"""First and longest pause (ms) before a failed try is repeated."""


def backoff_ms(tries: int) -> int:
    """Return the backoff in milliseconds after failed try number ``tries``, counted from 0."""
    return min(BACKOFF_MS << min(tries, 10), BACKOFF_MAX_MS)


class _PendingRequest(NamedTuple):
    sent_ms: int
    then: Callable[[Any], None]


class PendingRequests:
    """The requests in flight of one machine.

    ``now_ms`` is the time of the current step, and ``out`` has the effects of the step.
    ``session_id`` is the ZooKeeper session of the connection.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.out: list[Effect] = []
        self.session_id = 0
        self.sent_ms = 0
        """The time (ms) at which the machine sent the request whose answer it handles now."""
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
        """Call the callback of the request ``tag``, unless ``forget`` has dropped the callback."""
        request = self._pending.pop(tag, None)
        if request is not None:
            self.sent_ms = request.sent_ms
            request.then(value)

    def is_pending(self, tag: int) -> bool:
        return tag in self._pending

    def forget(self) -> None:
        """Drop all callbacks, because the connection is lost."""
        self._pending.clear()
