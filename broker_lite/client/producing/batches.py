"""``ProducerBatch``, from its creation to its acknowledgement; and ``Outgoing``, a produce request.

``delivery`` sends and retries a batch until its result is known, and ``futures`` report it. Only
the sender's thread uses the module, which does no I/O and reads no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker_lite.client.producing.futures import Outcome
from broker_lite.errors import LogbusError
from broker_lite.model import NO_OFFSET, NO_TIMESTAMP, Endpoint, TopicPartition
from broker_lite.record.arrow import Columns

SEQUENCE_MASK = 0x7FFFFFFF


class ProducerIdentity(NamedTuple):
    """The producer id and epoch that identify an idempotent producer to a broker."""

    producer_id: int
    producer_epoch: int


class ProducerBatch:
    """A batch of rows for one partition, with its sequence, its number of attempts and, once known,
    its offset or error."""

    __slots__ = (
        "attempts",
        "base_offset",
        "columns",
        "deadline_ms",
        "encoded",
        "error",
        "halves",
        "identity",
        "log_append_time_ms",
        "maybe_appended",
        "number",
        "order",
        "outcome",
        "partition",
        "row_count",
        "sequence",
        "size_bytes",
        "timestamp_ms",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Columns,
        *,
        timestamp_ms: int,
        size_bytes: int,
        deadline_ms: float,
        outcome: Outcome,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.columns: Columns | None = columns
        self.row_count = columns.row_count
        self.timestamp_ms = timestamp_ms
        self.size_bytes = size_bytes
        self.deadline_ms = deadline_ms
        self.outcome = outcome
        self.identity: ProducerIdentity | None = None
        self.sequence = -1
        self.number = -1
        """Number of batches sent to this partition before this one's first attempt; -1 until
        then."""
        self.order = (0, 0)
        self.attempts = 0
        self.maybe_appended = False
        self.encoded: memoryview | None = None
        self.base_offset = NO_OFFSET
        self.log_append_time_ms = NO_TIMESTAMP
        self.error: LogbusError | None = None
        self.halves: Sequence[ProducerBatch] = ()

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def is_done(self) -> bool:
        """Whether the batch was acknowledged, has failed, or was split into ``halves``, which are
        sent in its place."""
        return self.columns is None

    def renumber(self) -> None:
        """Clear the producer id and sequence, so that the next attempt gets new ones.

        Call it only for a batch that is certainly not in the log."""
        assert not self.maybe_appended
        self.identity, self.sequence, self.encoded = None, -1, None

    def halve(self) -> None:
        """Split a batch of at least two rows into two ``halves``, which are sent in its place.

        The rows keep the batch's producer id and their sequences."""
        assert self.columns is not None
        middle = self.row_count // 2
        size = self.size_bytes // 2
        halves = []
        for start, stop in ((0, middle), (middle, self.row_count)):
            half = ProducerBatch(
                self.topic,
                self.partition,
                self.columns.slice(start, stop),
                timestamp_ms=self.timestamp_ms,
                size_bytes=self.size_bytes - size if start else size,
                deadline_ms=self.deadline_ms,
                outcome=self.outcome,
            )
            half.order = (self.order[0], self.order[1] + start)
            if self.sequence >= 0:
                half.identity = self.identity
                half.sequence = (self.sequence + start) & SEQUENCE_MASK
            halves.append(half)
        self.halves = halves
        self.columns = self.encoded = None
        self.outcome.split_again()


class Outgoing(NamedTuple):
    """A produce request to one leader, with at most one batch for each partition."""

    endpoint: Endpoint
    batches: tuple[ProducerBatch, ...]
    topic_ids: dict[str, str]
