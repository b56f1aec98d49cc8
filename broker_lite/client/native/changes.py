"""What the member tells one stream's reader, kept until the reader has time for it.

The member's thread (or the loop) adds, the reader takes: given, taken and lost partitions in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker_lite.client.blocking import monotonic_ms
from broker_lite.client.fetching import Arrival, FetchEngine
from broker_lite.client.intake import Intake
from broker_lite.client.native.events import Give, Lose, Start, Take
from broker_lite.model import CommittedOffset, TopicPartition

Change = Give | Take | Lose

GONE_MS = 5000
"""How long a topic that brokers do not know (any more) may be the group's still."""


class Changes:
    """``pending``: given, and not begun yet. ``on_settled`` tells the member that reading of a
    partition has stopped, and how far the reader is done with it."""

    def __init__(
        self,
        queue: deque[Change],
        intake: Intake,
        engine: FetchEngine,
        on_settled: Callable[[TopicPartition, CommittedOffset | None], None],
        *,
        says_how_far: bool,
    ) -> None:
        self.pending: dict[TopicPartition, Start] = {}
        self._queue = queue
        self._intake = intake
        self._on_settled = on_settled
        self._says_how_far = says_how_far
        self._engine = engine
        self._put_off: list[tuple[float, Arrival]] = []
        self._told: set[tuple[TopicPartition, int]] = set()
        intake.puts_off = self._puts_off

    def __bool__(self) -> bool:
        """Whether there is something to be taken or begun."""
        is_due = bool(self._put_off) and self._put_off[0][0] <= monotonic_ms()
        return bool(self._queue) or bool(self.pending) or is_due

    def _puts_off(self, arrival: Arrival) -> bool:
        """A topic that is gone is taken from its readers, so brokers' word of it is no error,
        unless it is still theirs after a while."""
        key = arrival.where, arrival.generation
        if key in self._told:
            return False
        self._told.add(key)
        self._put_off.append((monotonic_ms() + GONE_MS, arrival))
        return True

    def take(self) -> None:
        """The reader has asked for more, so what it was handed out is done with."""
        while self._put_off and self._put_off[0][0] <= monotonic_ms():
            self._engine.arrivals.append(self._put_off.pop(0)[1])
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

    def begin(self, offsets: dict[TopicPartition, int], epochs: dict[TopicPartition, int]) -> None:
        """Read these, of the pending ones, from here on."""
        for where in offsets:
            self.pending.pop(where, None)
        self._intake.begin(offsets, epochs)
