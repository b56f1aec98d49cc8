"""The ZooKeeper requests in flight of one machine, and the effects of its current step.

The parts of a machine share one ``Asking``. A callback handles each answer. After a lost connection
no callback runs, and the parts repeat their requests on the next connection. The module does no
I/O.
"""

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


class _Asked(NamedTuple):
    sent_ms: int
    then: Callable[[Any], None]


class Asking:
    """Requests in flight. ``now_ms`` is the time of the current step, and ``out`` has its effects.
    ``session_id`` is the ZooKeeper session of the connection."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.out: list[Effect] = []
        self.session_id = 0
        self.sent_ms = 0
        """The time (ms) at which the request was sent whose answer is being handled."""
        self._tag = 0
        self._asked: dict[int, _Asked] = {}

    def get(self, path: str, then: Callable[[Znode | None], None], *, watch: bool = False) -> None:
        self.out.append(Get(self._ask(then), path, watch))

    def list(
        self, path: str, then: Callable[[list[str] | None], None], *, watch: bool = False
    ) -> None:
        self.out.append(List(self._ask(then), path, watch))

    def write(
        self, operations: Sequence[Operation], then: Callable[[Refused | None], None]
    ) -> None:
        self.out.append(Write(self._ask(then), tuple(operations)))

    def beat(self, then: Callable[[None], None]) -> None:
        self.out.append(Beat(self._ask(then)))

    def _ask(self, then: Callable[[Any], None]) -> int:
        self._tag += 1
        self._asked[self._tag] = _Asked(self.now_ms, then)
        return self._tag

    def answered(self, tag: int, value: Any) -> None:
        """Call the callback of a request, unless ``forget`` has dropped it."""
        asked = self._asked.pop(tag, None)
        if asked is not None:
            self.sent_ms = asked.sent_ms
            asked.then(value)

    def is_asked(self, tag: int) -> bool:
        return tag in self._asked

    def forget(self) -> None:
        """Drop all callbacks, because the connection is lost."""
        self._asked.clear()
