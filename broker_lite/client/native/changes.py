"""What the member tells one stream's reader, kept until the reader has time for it.

The member's thread (or the loop) adds, the reader takes: given, taken and lost partitions in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker_lite.client.intake import Intake
from broker_lite.client.native.events import Give, Lose, Start, Take
from broker_lite.model import CommittedOffset, TopicPartition

Change = Give | Take | Lose


class Changes:
    """``pending``: given, and not begun yet. ``on_settled`` tells the member that reading of a
    partition has stopped, and how far the reader is done with it."""

    def __init__(
        self,
        queue: deque[Change],
        intake: Intake,
        on_settled: Callable[[TopicPartition, CommittedOffset | None], None],
        *,
        says_how_far: bool,
    ) -> None:
        self.pending: dict[TopicPartition, Start] = {}
        self._queue = queue
        self._intake = intake
        self._on_settled = on_settled
        self._says_how_far = says_how_far

    def take(self) -> None:
        """The reader has asked for more, so what it was handed out is done with."""
        while self._queue:
            change = self._queue.popleft()
            match change:
                case Give(_, where, start):
                    self.pending[where] = start
                case Take(_, where):
                    final = self._intake.settled().get(where) if self._says_how_far else None
                    self._end(where)
                    self._on_settled(where, final)
                case Lose(_, where):
                    self._end(where)

    def _end(self, where: TopicPartition) -> None:
        self.pending.pop(where, None)
        self._intake.end(where)

    def begin(self, offsets: dict[TopicPartition, int]) -> None:
        """Read these, of the pending ones, from here on."""
        for where in offsets:
            self.pending.pop(where, None)
        self._intake.begin(offsets)
