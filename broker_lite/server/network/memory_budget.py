"""Limit the memory of the requests and answers of all connections, and let connections wait for it.

How long a partial frame or a large unsent answer takes memory depends on the client, so each of the
two has its own share of the limit. Without the shares, stalled clients could keep the broker from
reading small requests. The broker itself releases complete requests, so they need no share."""

from __future__ import annotations

from typing import Protocol

from broker_lite.wire.frame import FIRST_BYTES, SCRATCH_BYTES

UNFINISHED_SHARE = 0.5
"""Fraction of the memory limit that partially received frames may take."""
FIRST_SHARE = 1 / 64
"""Fraction of the memory left for partial frames that the first bytes of one more may take."""
ANSWERS_SHARE = 0.5
"""Fraction of the memory limit for answers that reserve memory before they are built
(``ResponseSlot.build``)."""
SHRUNK_BYTES = 32 << 20
"""Bytes of ended partial frames after which the broker returns free pages to the operating system
(``has_shrunk``)."""
LARGE_ANSWER_BYTES = 4 << 20
"""Bytes above which an answer counts as large. Only a single batch, which cannot be split, makes so
large an answer."""
LARGE_ANSWERS_SHARE = 0.75
"""Fraction of the memory of ``ANSWERS_SHARE`` that large answers may take.

The rest is reserved for small answers, so that unread large answers cannot block them."""


class Waiter(Protocol):
    """A connection that waits for memory. The budget compares waiters by identity."""

    def resume_soon(self) -> None:
        """Ask the budget for memory again, in the next iteration of the event loop."""


class Budget:
    """The memory of the requests and answers of all connections, in bytes.

    No new request is received while the total exceeds ``limit_bytes``, so the excess is at most one
    frame and answers to earlier requests. Two kinds of memory also have a share of the limit. Of
    each kind, one connection at a time may exceed the share, because otherwise connections could
    wait for each other for ever.

    - ``UNFINISHED_SHARE``: partial frames, which count with their allocated memory, not their
      declared length
    - ``ANSWERS_SHARE``: answers of ``ResponseSlot.build``, which reserves memory before an answer
      is built"""

    __slots__ = (
        "_answer_bytes",
        "_building",
        "_finisher",
        "_growing",
        "_starting",
        "_unfinished_bytes",
        "_unfinished_peak",
        "first_bytes",
        "limit_bytes",
        "used_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._unfinished_bytes = self._unfinished_peak = 0
        self.first_bytes = 0
        """How many bytes a connection may receive at once between two requests. A partial request
        among them takes memory without ``may_grow``, so that with a fixed number, thousands of
        connections could exceed UNFINISHED_SHARE."""
        self._count_unfinished(0)
        self._answer_bytes = 0
        self._finisher: Waiter | None = None
        # The connections that wait for memory, in this order: to receive a request, to receive more
        # of a partial one, and to build an answer.
        self._starting: dict[Waiter, None] = {}
        self._growing: dict[Waiter, int] = {}
        self._building: dict[Waiter, int] = {}

    @property
    def is_exceeded(self) -> bool:
        return self.used_bytes > self.limit_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether any connection waits for memory of the budget."""
        return bool(self._starting or self._growing or self._building)

    def may_start(self, connection: Waiter) -> bool:
        """Return whether the connection may receive another request.

        If not, the budget later calls ``connection.resume_soon``."""
        if self.is_exceeded:
            self._starting[connection] = None
            return False
        return True

    def may_grow(self, connection: Waiter, size: int) -> bool:
        """Return whether the connection's partial frame may take ``size`` more bytes.

        If not, the budget later calls ``connection.resume_soon``."""
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
        """Whether one partial frame may exceed ``UNFINISHED_SHARE``.

        It may even exceed ``limit_bytes`` if partial frames use all memory, because then no
        complete request is left that would release memory."""
        return not self.is_exceeded or self.used_bytes == self._unfinished_bytes

    def may_build(self, connection: Waiter, size: int) -> bool:
        """Reserve ``size`` bytes for an answer that a connection is to build, and return True.
        Return False if there is no memory; ``connection.resume_soon`` is called when there is.

        An answer of any size is allowed while no other has reserved memory."""
        if self._fits(self._answer_bytes, size):
            self._answer_bytes += size
            return True
        self._building[connection] = size
        return False

    def _fits(self, answer_bytes: int, size: int) -> bool:
        """Return whether an answer of ``size`` bytes may be built while other answers take
        ``answer_bytes``."""
        share = self.limit_bytes * ANSWERS_SHARE
        if size > LARGE_ANSWER_BYTES:
            share *= LARGE_ANSWERS_SHARE
        return not answer_bytes or answer_bytes + size <= share

    def count_answers(self, change: int) -> None:
        """Add ``change`` bytes, mostly a negative number, to the memory that ``may_build`` has
        reserved, after an answer was built or sent."""
        self._answer_bytes += change
        if self._building:
            self._wake_building()

    def charge(self, size: int) -> None:
        """Count the ``size`` bytes of a complete request as used memory."""
        self.used_bytes += size

    def charge_unfinished(self, size: int) -> None:
        """Count ``size`` bytes of a partial frame as used memory."""
        self.used_bytes += size
        self._count_unfinished(size)

    def _count_unfinished(self, change: int) -> None:
        self._unfinished_bytes += change
        self._unfinished_peak = max(self._unfinished_peak, self._unfinished_bytes)
        left = self.limit_bytes * UNFINISHED_SHARE - self._unfinished_bytes
        self.first_bytes = max(FIRST_BYTES, min(SCRATCH_BYTES, int(left * FIRST_SHARE)))

    def has_shrunk(self) -> bool:
        """Return whether partial frames take SHRUNK_BYTES less than at their peak since the last
        call that returned True."""
        if self._unfinished_peak - self._unfinished_bytes < SHRUNK_BYTES:
            return False
        self._unfinished_peak = self._unfinished_bytes
        return True

    def finish(self, connection: Waiter, size: int) -> None:
        """Count the connection's frame of ``size`` bytes as a complete request, no longer as a
        partial frame."""
        self._count_unfinished(-size)
        if self._finisher is connection:
            self._finisher = None
        self._wake()

    def release(self, size: int) -> None:
        """Release ``size`` bytes, and wake the connections that wait for memory."""
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
        """Wake the connections that wait for memory to build an answer, in order. Small answers may
        overtake a large one that does not fit."""
        answer_bytes = self._answer_bytes
        for connection, size in list(self._building.items()):
            if self._fits(answer_bytes, size):
                answer_bytes += size
                del self._building[connection]
                connection.resume_soon()
            elif size <= LARGE_ANSWER_BYTES:
                return

    def forget(self, connection: Waiter) -> None:
        """Remove a closed connection from the connections that wait for memory."""
        self._starting.pop(connection, None)
        self._growing.pop(connection, None)
        self._building.pop(connection, None)
        if self._finisher is connection:
            self._finisher = None
            self._wake()
