"""What the member tells one stream's reader, kept until the reader has time for it.

The member's thread (or the loop) adds, the reader takes: given, taken and lost partitions in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from broker_lite.client.consuming.deleted_topics import GoneTopics
from broker_lite.client.consuming.fetching import FetchEngine
from broker_lite.client.consuming.intake import Intake
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.native.events import Give, Lose, Start, Take

Change = Give | Take | Lose


class Going(NamedTuple):
    """Partitions that are to be given up, or are lost already."""

    is_lost: bool
    wheres: list[TopicPartition]


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
        on_settled: Callable[[TopicPartition, CommittedOffset | None, int], None],
        *,
        says_how_far: bool,
    ) -> None:
        self.pending: dict[TopicPartition, Start] = {}
        self._queue = queue
        self._intake = intake
        self._on_settled = on_settled
        self._says_how_far = says_how_far
        self._gone = GoneTopics(intake, engine, GONE_MS)
        self._grants: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        """Whether there is something to be taken or begun."""
        return bool(self._queue) or bool(self.pending) or self._gone.is_due

    def grants(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """By which the reader has these now: to be asked with how far it came, on its thread."""
        return {where: self._grants[where] for where in wheres if where in self._grants}

    def next(self) -> Going | None:
        """The next partitions that go, of one kind: the reader tells its user and calls ``let_go``.
        The reader has asked for more, so what it was handed out is done with."""
        self._gone.release()
        kind: type[Take] | type[Lose] | None = None
        wheres: list[TopicPartition] = []
        while self._queue and (kind is None or not wheres or isinstance(self._queue[0], kind)):
            change = self._queue.popleft()
            if isinstance(change, Give):
                self.pending[change.where] = change.start
                self._grants[change.where] = change.start.grant
            else:
                kind = type(change)
                wheres.append(change.where)
        return None if kind is None else Going(kind is Lose, wheres)

    def read_of(self, going: Going) -> list[TopicPartition]:
        """Those that the reader has begun to read."""
        reads = set(self._intake.assignment())
        return [where for where in going.wheres if where in reads]

    def let_go(self, going: Going) -> None:
        """Read these no more, and say how far the reader came."""
        settled = self._intake.settled() if self._says_how_far else {}
        for where in going.wheres:
            self.pending.pop(where, None)
            self._intake.end(where)
            grant = self._grants.pop(where, None)
            if not going.is_lost and grant is not None:
                self._on_settled(where, settled.get(where), grant)

    def begin(self, offsets: dict[TopicPartition, int], epochs: dict[TopicPartition, int]) -> None:
        """Read these, of the pending ones, from here on."""
        for where in offsets:
            self.pending.pop(where, None)
        self._intake.begin(offsets, epochs)
