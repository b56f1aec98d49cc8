"""Requests of the machine that are under way, and the effects of the present step. Pure.

The parts of one machine share it. What a request is followed by is a callback, which is dropped
when the connection is lost: whoever asked asks again when there is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker_lite.metadata.store import Operation, Refused, Znode
from broker_lite.native.events import Beat, Effect, Get, List, Write

BACKOFF_MS = 50
BACKOFF_MAX_MS = 2000


def backoff_ms(tries: int) -> int:
    """The pause after so many tries that failed, the first one counted as 0."""
    return min(BACKOFF_MS << min(tries, 10), BACKOFF_MAX_MS)


class _Asked(NamedTuple):
    sent_ms: int
    then: Callable[[Any], None]


class Asking:
    """``now_ms`` and ``out`` are those of the step; ``session_id`` of the present connection."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.out: list[Effect] = []
        self.session_id = 0
        self.sent_ms = 0
        """When the request was sent whose answer is being dealt with."""
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
        """Go on with whoever asked, unless that is forgotten."""
        asked = self._asked.pop(tag, None)
        if asked is not None:
            self.sent_ms = asked.sent_ms
            asked.then(value)

    def is_asked(self, tag: int) -> bool:
        return tag in self._asked

    def forget(self) -> None:
        """The connection is lost: nothing is answered any more."""
        self._asked.clear()
