"""The producer ids with which attempts of Spark tasks write.

Each partition of ``__transaction_state`` has a pool of such producer ids (*slots*). A slot belongs
to an open attempt, or is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_lite.model import PartitionKey
from broker_lite.transactions.sink_events import JoinBatch
from broker_lite.transactions.sink_records import SinkSlot
from broker_lite.transactions.transaction import Now


@dataclass(slots=True)
class TaskAttempt:
    """An attempt of a Spark task, from its JoinBatch until all its markers are written.

    - ``slot``: the attempt's last appended record, committed or not
    - ``opened``: the time at which it joined its batch, or this coordinator loaded its state
    - ``added``: the partitions in its committed record. The attempt may write only to these.
    - ``joins``: the JoinBatch requests (tokens) that wait until its first record is committed"""

    slot: SinkSlot
    opened: Now
    added: frozenset[PartitionKey] = frozenset()
    joins: list[int] = field(default_factory=list)

    @property
    def is_opening(self) -> bool:
        """Whether the attempt's first record is not committed yet."""
        return bool(self.joins)


class SlotPool:
    """The producer ids of a partition: the free ones, each with its next epoch, and those of open
    attempts. Requests wait here for a free one.

    ``slots`` are all slots of the partition, by producer id."""

    def __init__(self, slots: Mapping[int, SinkSlot]) -> None:
        self.attempts = {
            producer_id: TaskAttempt(slot, Now(0, 0), slot.partitions)
            for producer_id, slot in slots.items()
            if not slot.is_free
        }
        """The attempts that are not committed or aborted yet, by producer id."""
        self._free = {producer_id: slot for producer_id, slot in slots.items() if slot.is_free}
        self._waiting: list[JoinBatch] = []
        self._fetches = 0

    def take(self) -> tuple[int, SinkSlot] | None:
        """Remove and return a free producer id and its state; None if no id is free."""
        return self._free.popitem() if self._free else None

    def give(self, producer_id: int, slot: SinkSlot) -> None:
        """Add a free producer id: a new one, or one whose last attempt has ended."""
        self._free[producer_id] = slot

    def wait(self, event: JoinBatch) -> bool:
        """Let a request wait for a producer id. Return whether the caller must fetch a new one."""
        self._waiting.append(event)
        if self._fetches >= len(self._waiting):
            return False
        self._fetches += 1
        return True

    def fetched(self) -> None:
        """Record that a fetch of a new producer id, in flight so far, has succeeded or failed."""
        self._fetches -= 1

    def take_waiting(self) -> list[JoinBatch]:
        """Remove and return the requests that wait for a producer id."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def abandon(self, token: int) -> None:
        """Drop the request with this token if it waits for a producer id."""
        self._waiting = [event for event in self._waiting if event.token != token]
