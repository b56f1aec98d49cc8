"""One partition's batches: those that wait, those under way, and the numbers that come next.

``held``: after a failure nothing is sent until all that is under way has come back; then it goes on
from the oldest. ``spoiled``: a number was given out that will not be in the log, so what follows
gets others (``settle``). No I/O, no clock; for the sender's thread.
"""

from __future__ import annotations

from collections import deque

from broker_lite.client.producing.batches import SEQUENCE_MASK, Batch, Identity
from broker_lite.errors import LogbusError
from broker_lite.model import NO_EPOCH


class PartitionQueue:
    """In the order of ``Batch.order``; made by ``delivery`` for each partition that is sent to."""

    __slots__ = (
        "acked_sequence",
        "error",
        "failures",
        "held",
        "identity",
        "in_flight",
        "leader_epoch",
        "next_sequence",
        "queue",
        "retry_at_ms",
        "sent_count",
        "spoiled",
    )

    def __init__(self) -> None:
        self.queue: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.acked_sequence = -1
        self.held = False
        self.spoiled = False
        self.sent_count = 0
        self.failures = 0
        self.error: LogbusError | None = None
        self.retry_at_ms = 0.0
        self.leader_epoch = NO_EPOCH

    def is_remembered(self, max_in_flight: int, *, idempotent: bool) -> bool:
        """Whether a broker that has the oldest batch under way still knows it, once it has the next
        one too, and surely knows the producer by then: it remembers a producer's last five.
        Counting what is under way is not enough: a batch may hang at a leader that was deposed
        while the new one takes those behind it."""
        if not self.in_flight:
            return True
        if idempotent and self.acked_sequence < 0:
            # Of a log whose beginning was deleted, a broker that knows nothing of a producer takes
            # any number of it for the next: the second batch, if it refuses the first.
            return False
        following = self.queue[0].number
        if following < 0:
            following = self.sent_count
        return following - min(batch.number for batch in self.in_flight) < max_in_flight

    def sent(self, batch: Batch, leader_epoch: int) -> None:
        """The first of the queue is under way, to the leader of this epoch."""
        self.queue.popleft()
        if batch.number < 0:
            batch.number, self.sent_count = self.sent_count, self.sent_count + 1
        self.in_flight.append(batch)
        self.leader_epoch = leader_epoch

    def returned(self, batch: Batch) -> bool:
        """It is not under way any more; False: it was not."""
        if batch not in self.in_flight:
            return False
        self.in_flight.remove(batch)
        return True

    def accepted(self, batch: Batch) -> None:
        """It is in the log."""
        self.failures = 0
        self.error = None
        if batch.sequence >= 0 and batch.identity == self.identity:
            last = (batch.sequence + batch.row_count - 1) & SEQUENCE_MASK
            # One that hung is accepted after those behind it.
            if (last - self.acked_sequence) & SEQUENCE_MASK <= SEQUENCE_MASK // 2:
                self.acked_sequence = last

    def again(self, batch: Batch) -> None:
        """Back into the queue, before everything that was sent after it."""
        self.held = True
        self.queue.insert(sum(other.order < batch.order for other in self.queue), batch)

    def has_earlier(self, batch: Batch) -> bool:
        """Whether one that was numbered before it, by the same identity, is not in the log yet."""
        return any(
            other.identity == batch.identity and other.order < batch.order
            for other in (*self.queue, *self.in_flight)
        )

    def settle(self) -> bool:
        """After a batch came back: go on once nothing is under way. Whether nothing is left."""
        if self.in_flight:
            return False
        self.held = False
        if self.spoiled:
            self.spoiled = False
            self.next_sequence = (self.acked_sequence + 1) & SEQUENCE_MASK
            for batch in self.queue:
                if batch.sequence >= 0 and not batch.maybe_appended:
                    batch.renumber()
                elif batch.sequence >= 0 and batch.identity == self.identity:
                    # It keeps its numbers, so what follows must not have them.
                    self.next_sequence = (batch.sequence + batch.row_count) & SEQUENCE_MASK
        return not self.queue
