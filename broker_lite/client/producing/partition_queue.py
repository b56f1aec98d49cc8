"""A producer's batches for one partition, queued or in flight, and the partition's next sequence.

After a batch fails, ``held`` is True: nothing is sent until the results of all batches in flight
are known. ``spoiled`` is True if a batch that has a sequence will never be in the log. The broker
would then refuse the sequences after it, so ``settle`` gives the later batches new ones. Only the
sender's thread uses this module, which does no I/O and reads no clock."""

from __future__ import annotations

from collections import deque

from broker_lite.client.producing.batches import SEQUENCE_MASK, ProducerBatch, ProducerIdentity
from broker_lite.errors import LogbusError
from broker_lite.model import NO_EPOCH


class PartitionQueue:
    """A producer's batches for one partition, in the order in which they must enter the log
    (``ProducerBatch.order``)."""

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
        "refusals",
        "retry_at_ms",
        "sent_count",
        "spoiled",
    )

    def __init__(self) -> None:
        self.queue: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.identity: ProducerIdentity | None = None
        self.next_sequence = 0
        self.acked_sequence = -1
        self.held = False
        self.spoiled = False
        self.sent_count = 0
        self.failures = 0
        self.refusals = 0
        """Number of failures in a row under one leader, by which the backoff grows.

        A new leader resets it, so that failures at the old one do not delay retries."""
        self.error: LogbusError | None = None
        self.retry_at_ms = 0.0
        self.leader_epoch = NO_EPOCH

    def is_remembered(self, max_in_flight: int, *, idempotent: bool) -> bool:
        """Return whether the broker would recognise a retry of the oldest batch in flight even
        after it has appended the next batch.

        A broker remembers only the last five batches of a producer. While a batch waits for an
        answer of a former leader, the new leader may append more than five later batches. So
        ``max_in_flight`` also limits the distance from the oldest batch in flight to the next
        batch, in the order of first sending (``number``)."""
        if not self.in_flight:
            return True
        if idempotent and self.acked_sequence < 0:
            # Send the first batch alone. If retention has deleted the log's start, a broker that
            # does not know the producer accepts any sequence. It could then refuse the first batch
            # and append the second.
            return False
        following = self.queue[0].number
        if following < 0:
            following = self.sent_count
        return following - min(batch.number for batch in self.in_flight) < max_in_flight

    def sent(self, batch: ProducerBatch, leader_epoch: int) -> None:
        """Mark the first queued batch as in flight to the leader with ``leader_epoch``."""
        self.queue.popleft()
        if batch.number < 0:
            batch.number, self.sent_count = self.sent_count, self.sent_count + 1
        self.in_flight.append(batch)
        if leader_epoch != self.leader_epoch:
            self.refusals = 0
        self.leader_epoch = leader_epoch

    def returned(self, batch: ProducerBatch) -> bool:
        """Remove a batch from those in flight. Return False if it was not among them."""
        if batch not in self.in_flight:
            return False
        self.in_flight.remove(batch)
        return True

    def accepted(self, batch: ProducerBatch) -> None:
        """Record that the broker acknowledged the batch, and reset the partition's count of
        failures."""
        self.failures = self.refusals = 0
        self.error = None
        if batch.sequence >= 0 and batch.identity == self.identity:
            last = (batch.sequence + batch.row_count - 1) & SEQUENCE_MASK
            # Responses may arrive in another order than the requests, if one request hung. Keep the
            # highest acknowledged sequence.
            if (last - self.acked_sequence) & SEQUENCE_MASK <= SEQUENCE_MASK // 2:
                self.acked_sequence = last

    def requeue(self, batch: ProducerBatch) -> None:
        """Queue the batch again, before all batches that were sent after it."""
        self.held = True
        self.queue.insert(sum(other.order < batch.order for other in self.queue), batch)

    def has_earlier(self, batch: ProducerBatch) -> bool:
        """Return whether an earlier batch under the same producer id is unacknowledged."""
        return any(
            other.identity == batch.identity and other.order < batch.order
            for other in (*self.queue, *self.in_flight)
        )

    def settle(self) -> bool:
        """Allow sends to the partition again after a failure, if no batch is in flight.

        If ``spoiled`` (a batch with a sequence will never be in the log), the queued batches get
        new sequences. Return whether no batch is queued or in flight."""
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
                    # A batch that may be in the log keeps its sequence, so the next batch's
                    # sequence follows it.
                    self.next_sequence = (batch.sequence + batch.row_count) & SEQUENCE_MASK
        return not self.queue
