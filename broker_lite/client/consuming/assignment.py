"""The queue of assignment changes that a consumer's reader receives from its group membership.

Any thread may append a change. The reader applies them in order when the user asks for records. A
grant number identifies one assignment of a partition; if the partition is lost and assigned again,
its number differs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from broker_lite.client.consuming.changes import Assign, Change, Lose, Revoke, StartBasis
from broker_lite.client.consuming.deleted_topics import DeletedTopics
from broker_lite.client.consuming.fetch_collector import FetchCollector
from broker_lite.client.consuming.starting import Starts
from broker_lite.model import TopicPartition


class Release(NamedTuple):
    """Partitions that the reader releases together: those of consecutive revocations in the
    ``AssignmentQueue``, or of consecutive losses (``is_lost``)."""

    is_lost: bool
    numbers: list[int]
    """The numbers of the revocations (``Revoke``). The reader reports them to the membership once
    it has stopped reading."""
    grants: dict[TopicPartition, int | None]
    """The partitions to release, each with the grant number of its assignment (``Assign``)."""


class AssignmentQueue:
    """The reader's queue of assignment changes.

    ``pending`` has the assigned partitions that the reader does not read yet. Each has the
    ``StartBasis`` that determines its starting offset, or None: the reader then looks up the
    committed offset."""

    def __init__(self, collector: FetchCollector) -> None:
        self.queue: deque[Change | Starts] = deque()
        """Assignment changes and, in order with them, starting offsets of partitions created after
        the consumer's start."""
        self.pending: dict[TopicPartition, StartBasis | None] = {}
        self.deleted_topics: DeletedTopics | None = None
        """Delays errors about deleted topics, as the group may revoke the partitions; None: no
        delay."""
        self._collector = collector
        self._grants: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        """Return whether the reader has a change to apply."""
        is_due = self.deleted_topics is not None and self.deleted_topics.is_due
        return bool(self.queue) or bool(self.pending) or is_due

    def grants(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the grant number (``Assign``) of the present assignment of each partition."""
        return {tp: self._grants[tp] for tp in tps if tp in self._grants}

    def next(self) -> Release | None:
        """Apply the queued changes up to the next revocation or loss. Return the revoked or lost
        partitions, which the reader must release, or None.

        Assigned partitions become ``pending`` (not read yet). Call this method only when the user
        asks for records: all records returned earlier then count as processed, so partitions may be
        released."""
        if self.deleted_topics is not None:
            self.deleted_topics.release()
        kind: type[Revoke] | type[Lose] | None = None
        numbers: list[int] = []
        tps: list[TopicPartition] = []
        while self.queue and (kind is None or isinstance(self.queue[0], kind)):
            change = self.queue.popleft()
            match change:
                case Starts():
                    self._collector.begin(*change)
                case Assign(grants, bases):
                    self.pending |= {tp: bases.get(tp) for tp in grants}
                    self._grants |= grants
                case Revoke(number, revoked):
                    kind = Revoke
                    numbers.append(number)
                    tps += revoked
                case Lose(lost):
                    kind = Lose
                    tps += lost
        if kind is None:
            return None
        return Release(kind is Lose, numbers, {tp: self._grants.get(tp) for tp in tps})

    def begin(self, starts: Starts) -> None:
        """Start to read assigned partitions at the offsets in ``starts``."""
        for tp in starts.offsets:
            self.pending.pop(tp, None)
        self._collector.begin(*starts)

    def end(self, tps: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions, and forget their grant numbers."""
        for tp in tps:
            self.pending.pop(tp, None)
            self._grants.pop(tp, None)
            self._collector.end(tp)
