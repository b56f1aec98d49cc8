"""The memory budget of a broker's connections, with the connections that wait for memory.

Loop thread only. Clients control how long partial frames and large unsent answers occupy memory.
Each of the two therefore has its own share of the limit, so that stalled clients cannot keep the
broker from reading small requests. Complete requests need no share, because the broker itself
releases their memory.
"""

from __future__ import annotations

from typing import Protocol

UNFINISHED_SHARE = 0.5
"""Share of the budget for partially received frames."""
ANSWERS_SHARE = 0.5
"""Share of the budget for answers announced with ``Reply.build``."""
LARGE_ANSWER_BYTES = 4 << 20
"""Bytes above which an answer is large. A large answer holds a single batch, which no fetch can
divide.
"""
LARGE_ANSWERS_SHARE = 0.75
"""Part of ``ANSWERS_SHARE`` that large answers may use. The rest is reserved for small answers, so
that a few large unread answers do not stop them.
"""


class Waiter(Protocol):
    """A connection that waits for memory; compared by identity."""

    def resume_soon(self) -> None:
        """Request the memory again in the next turn of the event loop."""


class Budget:
    """The memory of requests and answers of all connections.

    The total stays within the limit plus one frame plus the answers being built. A partially
    received frame counts with its allocated memory, not its declared length. Such frames share
    ``UNFINISHED_SHARE`` of the limit. When that share is used up, one frame at a time may exceed it
    until it is complete; otherwise partial frames would wait for each other for ever. Large answers
    share ``ANSWERS_SHARE`` in the same way.
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
        # Connections that wait for memory: to receive a request, to grow a partial one, or to build
        # an answer.
        self._starting: dict[Waiter, None] = {}
        self._growing: dict[Waiter, int] = {}
        self._building: dict[Waiter, int] = {}

    @property
    def is_exceeded(self) -> bool:
        return self.used_bytes > self.limit_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether any connection waits for memory."""
        return bool(self._starting or self._growing or self._building)

    def may_start(self, connection: Waiter) -> bool:
        """Return whether another request may be received; if not, call ``resume_soon`` later."""
        if self.is_exceeded:
            self._starting[connection] = None
            return False
        return True

    def may_grow(self, connection: Waiter, size: int) -> bool:
        """Return whether a frame may grow by ``size``; if not, call ``resume_soon`` later."""
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
        """Whether a frame may exceed the share. It may exceed the limit only if partial frames
        hold all memory and no request in flight will release any."""
        return not self.is_exceeded or self.used_bytes == self._unfinished_bytes

    def may_build(self, connection: Waiter, size: int) -> bool:
        """Reserve ``size`` bytes for an answer; if they are not available, return False and call
        ``resume_soon`` later. One answer is always allowed."""
        if self._fits(self._answer_bytes, size):
            self._answer_bytes += size
            return True
        self._building[connection] = size
        return False

    def _fits(self, answer_bytes: int, size: int) -> bool:
        """Return whether an answer of ``size`` bytes may be built beside ``answer_bytes``."""
        share = self.limit_bytes * ANSWERS_SHARE
        if size > LARGE_ANSWER_BYTES:
            share *= LARGE_ANSWERS_SHARE
        return not answer_bytes or answer_bytes + size <= share

    def count_answers(self, change: int) -> None:
        """Change the bytes counted for answers, after building or sending one."""
        self._answer_bytes += change
        if self._building:
            self._wake_building()

    def take(self, size: int) -> None:
        """Charge a fully received request to the budget."""
        self.used_bytes += size

    def take_unfinished(self, size: int) -> None:
        """Count the memory of a partially received frame."""
        self.used_bytes += size
        self._unfinished_bytes += size

    def finish(self, connection: Waiter, size: int) -> None:
        """Convert a frame of ``size`` bytes from partial to complete."""
        self._unfinished_bytes -= size
        if self._finisher is connection:
            self._finisher = None
        self._wake()

    def give(self, size: int) -> None:
        """Release the memory; waiting connections continue."""
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
        """Resume waiting connections in order. A large answer that does not fit does not hold up
        smaller answers behind it.
        """
        answer_bytes = self._answer_bytes
        for connection, size in list(self._building.items()):
            if self._fits(answer_bytes, size):
                answer_bytes += size
                del self._building[connection]
                connection.resume_soon()
            elif size <= LARGE_ANSWER_BYTES:
                return

    def forget(self, connection: Waiter) -> None:
        """Remove a closed connection from the waiting connections."""
        self._starting.pop(connection, None)
        self._growing.pop(connection, None)
        self._building.pop(connection, None)
        if self._finisher is connection:
            self._finisher = None
            self._wake()
