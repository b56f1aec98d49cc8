"""The memory that a broker's connections may hold, and who waits for some. Loop thread only.

Frames that have not arrived whole and large answers that are not sent depend on what clients do, so
each kind has a share of the limit: clients that stop in the middle cannot keep the broker from
reading small requests. Whole requests are given back by the broker's own work.
"""

from __future__ import annotations

import math
from typing import Protocol

UNFINISHED_SHARE = 0.5
"""Of a budget: what frames that have not arrived whole may hold."""
ANSWERS_SHARE = 0.5
"""Of a budget: what answers may hold that ``Reply.build`` announced."""


class Waiter(Protocol):
    """A connection that waits for memory. Compared by identity."""

    def resume_soon(self) -> None:
        """Ask again in the loop's next turn."""


class Budget:
    """The memory of requests and answers, of all connections together: at most the limit, one frame
    and the answers that are being built.

    A frame that has not arrived whole counts with the memory that it has, not with its declared
    length. Such frames share ``UNFINISHED_SHARE`` of the limit, so that they cannot keep the broker
    from reading small requests. Where that is used up, one frame at a time goes on beyond it until
    it is whole: unfinished frames that wait for each other cannot block the broker. Large answers
    that are built and not sent share ``ANSWERS_SHARE`` in the same way.
    """

    __slots__ = (
        "_answer_bytes",
        "_building",
        "_finisher",
        "_growing",
        "_starting",
        "_unfinished_bytes",
        "limit_bytes",
        "used_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._unfinished_bytes = 0
        self._answer_bytes = 0
        self._finisher: Waiter | None = None
        # Connections that wait for memory: to begin another request, for more of one begun, or to
        # build an answer.
        self._starting: dict[Waiter, None] = {}
        self._growing: dict[Waiter, int] = {}
        self._building: dict[Waiter, int] = {}

    @property
    def is_exceeded(self) -> bool:
        return self.used_bytes > self.limit_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection is not served for want of memory."""
        return bool(self._starting or self._growing or self._building)

    def may_start(self, connection: Waiter) -> bool:
        """Whether another request may be received; if not, ``resume_soon`` is called later."""
        if self.is_exceeded:
            self._starting[connection] = None
            return False
        return True

    def may_grow(self, connection: Waiter, size: int) -> bool:
        """Whether a frame may take ``size`` more; if not, ``resume_soon`` is called later."""
        if size <= self._growth_left:
            return True
        if self._finisher is None and self._may_finish:
            self._finisher = connection
        if self._finisher is connection:
            return True
        self._growing[connection] = size
        return False

    @property
    def _growth_left(self) -> float:
        share = self.limit_bytes * UNFINISHED_SHARE
        return min(self.limit_bytes - self.used_bytes, share - self._unfinished_bytes)

    @property
    def _may_finish(self) -> bool:
        """Whether a frame may go beyond its share. Beyond the limit: only where unfinished frames
        hold all of the memory, and no request under way will give any back."""
        return not self.is_exceeded or self.used_bytes == self._unfinished_bytes

    def may_build(self, connection: Waiter, size: int) -> bool:
        """Whether an answer of ``size`` bytes may be built, which counts from now on; if not,
        ``resume_soon`` is called later. One answer always may."""
        if size <= self._answers_left:
            self._answer_bytes += size
            return True
        self._building[connection] = size
        return False

    @property
    def _answers_left(self) -> float:
        if not self._answer_bytes:
            return math.inf
        return self.limit_bytes * ANSWERS_SHARE - self._answer_bytes

    def count_answers(self, change: int) -> None:
        """Count answers for more or fewer bytes: they were built, or sent."""
        self._answer_bytes += change
        if self._building:
            self._wake_building()

    def take(self, size: int) -> None:
        """Count the memory of a whole request."""
        self.used_bytes += size

    def take_unfinished(self, size: int) -> None:
        """Count memory of a frame that has not arrived whole."""
        self.used_bytes += size
        self._unfinished_bytes += size

    def finish(self, connection: Waiter, size: int) -> None:
        """Count a frame of ``size`` bytes as a whole request from now on."""
        self._unfinished_bytes -= size
        if self._finisher is connection:
            self._finisher = None
        self._wake()

    def give(self, size: int) -> None:
        """Return what was taken; connections that waited for memory read on."""
        self.used_bytes -= size
        if self._starting or self._growing or self._building:
            self._wake()

    def _wake(self) -> None:
        while self._starting and not self.is_exceeded:
            self._starting.popitem()[0].resume_soon()
        if self._growing:
            self._wake_growing()
        if self._building:
            self._wake_building()

    def _wake_growing(self) -> None:
        left = self._growth_left
        while self._growing:
            connection, size = next(iter(self._growing.items()))
            left -= size
            if left < 0:
                if self._finisher is not None or not self._may_finish:
                    return
                self._finisher = connection
            del self._growing[connection]
            connection.resume_soon()

    def _wake_building(self) -> None:
        left = self._answers_left
        while self._building:
            connection, size = next(iter(self._building.items()))
            if size > left:
                return
            left = min(left, self.limit_bytes * ANSWERS_SHARE) - size
            del self._building[connection]
            connection.resume_soon()

    def forget(self, connection: Waiter) -> None:
        """Give nothing more to a connection that is closed."""
        self._starting.pop(connection, None)
        self._growing.pop(connection, None)
        self._building.pop(connection, None)
        if self._finisher is connection:
            self._finisher = None
            self._wake()
