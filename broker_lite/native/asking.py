"""Requests in flight of one machine, and the effects of the current step. Pure.

The parts of a machine share one instance. A callback handles each answer. A lost connection drops
all callbacks; the parts repeat their requests on the next connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker_lite.metadata.store import Operation, Refused, Znode
from broker_lite.native.events import Beat, Effect, Get, List, Write

BACKOFF_MS = 50
BACKOFF_MAX_MS = 2000


def backoff_ms(tries: int) -> int:
    """Return the backoff in milliseconds after failed try number ``tries``, counted from 0."""
    return min(BACKOFF_MS << min(tries, 10), BACKOFF_MAX_MS)


class _Asked(NamedTuple):
    sent_ms: int
    then: Callable[[Any], None]


class Asking:
    """Requests in flight. ``now_ms`` and ``out`` belong to the current step, ``session_id`` to the
    connection."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.out: list[Effect] = []
        self.session_id = 0
        self.sent_ms = 0
        """The time (ms) at which the request of the current answer was sent."""
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
        """Call the callback of a request unless it was dropped."""
        asked = self._asked.pop(tag, None)
        if asked is not None:
            self.sent_ms = asked.sent_ms
            asked.then(value)

    def is_asked(self, tag: int) -> bool:
        return tag in self._asked

    def forget(self) -> None:
        """Drop all callbacks: the connection is lost."""
        self._asked.clear()
