"""Reports of the member to one stream, queued until the reader asks for records.

The member's thread (or loop) appends, the reader takes: assigned, revoked and lost partitions, in
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from broker_lite.client.consuming.deleted_topics import GoneTopics
from broker_lite.client.consuming.intake import Intake
from broker_lite.client.fetch.fetch_engine import FetchEngine
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.native.events import PartitionStart, StreamGive, StreamLose, StreamTake

Change = StreamGive | StreamTake | StreamLose


class Going(NamedTuple):
    """Partitions that are revoked, or already lost."""

    is_lost: bool
    wheres: list[TopicPartition]


GONE_MS = 5000
"""Milliseconds for which a topic unknown to the brokers may still belong to the group."""


class Changes:
    """The queue of one stream.

    ``pending`` are assigned partitions that the reader has not started. ``on_settled`` reports the
    position at which the reader stopped a partition.
    """

    def __init__(
        self,
        queue: deque[Change],
        intake: Intake,
        engine: FetchEngine,
        on_settled: Callable[[TopicPartition, CommittedOffset | None, int], None],
        *,
        says_how_far: bool,
    ) -> None:
        self.pending: dict[TopicPartition, PartitionStart] = {}
        self._queue = queue
        self._intake = intake
        self._on_settled = on_settled
        self._says_how_far = says_how_far
        self._gone = GoneTopics(intake, engine, GONE_MS)
        self._grants: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        """Return whether a change waits for the reader."""
        return bool(self._queue) or bool(self.pending) or self._gone.is_due

    def grants(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the grants under which the reader has these partitions now. Reader's thread."""
        return {where: self._grants[where] for where in wheres if where in self._grants}

    def next(self) -> Going | None:
        """Return the next revoked or lost partitions, or None.

        The reader calls its callbacks and then ``let_go``. Since the reader asked for more records,
        all earlier ones are processed.
        """
        self._gone.release()
        kind: type[StreamTake] | type[StreamLose] | None = None
        wheres: list[TopicPartition] = []
        while self._queue and (kind is None or not wheres or isinstance(self._queue[0], kind)):
            change = self._queue.popleft()
            if isinstance(change, StreamGive):
                self.pending[change.where] = change.start
                self._grants[change.where] = change.start.grant
            else:
                kind = type(change)
                wheres.append(change.where)
        return None if kind is None else Going(kind is StreamLose, wheres)

    def read_of(self, going: Going) -> list[TopicPartition]:
        """Return the partitions of ``going`` that the reader has started."""
        reads = set(self._intake.assignment())
        return [where for where in going.wheres if where in reads]

    def let_go(self, going: Going) -> None:
        """Stop reading these partitions and report their positions."""
        settled = self._intake.settled() if self._says_how_far else {}
        for where in going.wheres:
            self.pending.pop(where, None)
            self._intake.end(where)
            grant = self._grants.pop(where, None)
            if not going.is_lost and grant is not None:
                self._on_settled(where, settled.get(where), grant)

    def begin(self, offsets: dict[TopicPartition, int], epochs: dict[TopicPartition, int]) -> None:
        """Start pending partitions at these offsets."""
        for where in offsets:
            self.pending.pop(where, None)
        self._intake.begin(offsets, epochs)
