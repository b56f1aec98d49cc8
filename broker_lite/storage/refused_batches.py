"""The last refused batch of each idempotent producer.

A producer keeps up to five batches in flight. When a broker refuses one with a retriable error, the
later ones leave a gap. OUT_OF_ORDER_SEQUENCE_NUMBER would be correct for them, but makes librdkafka
begin a new producer epoch, in which it may send records again that the log already holds.
``ProducerState.check`` therefore refuses them with the error of the first refused batch.

One instance serves all logs of a data directory. Disk threads and the event loop write this
instance under a lock. Once an entry is evicted, later batches get OUT_OF_ORDER_SEQUENCE_NUMBER, as
in Kafka; no records are lost."""

from __future__ import annotations

import threading
from typing import NamedTuple

from broker_lite.errors import LogbusError, error_for
from broker_lite.model import NO_PRODUCER, PartitionKey
from broker_lite.record.batch import BatchHeader

PRODUCERS_MAX = 4096
"""Maximum number of remembered batches, one for each partition and producer. The oldest is evicted
first."""
_AHEAD_MAX = 1 << 30
"""Maximum distance (modulo 2^31) from a sequence to a later one. A sequence at a larger distance is
an earlier one, because sequences wrap."""


class RefusedBatch(NamedTuple):
    """A batch that was refused with a retriable error, so that its producer will retry."""

    producer_epoch: int
    base_sequence: int
    code: int
    message: str

    @property
    def error(self) -> LogbusError:
        """A new instance of the error with which the batch was refused."""
        return error_for(self.code, self.message)

    def makes_gap(self, expected: int | None, first: int) -> bool:
        """Return whether the producer's sequence has a gap because this batch was refused.

        ``expected`` is the first sequence that the producer's next batch must have, or None if
        unknown; ``first`` is the arriving batch's first sequence."""
        follows = 0 < _distance(self.base_sequence, first) < _AHEAD_MAX
        return follows and (
            expected is None or _distance(expected, self.base_sequence) < _AHEAD_MAX
        )


def _distance(start: int, end: int) -> int:
    """Return the number of sequences from ``start`` to ``end``, modulo 2^31."""
    return (end - start) & 0x7FFFFFFF


class RefusedBatches:
    """The last refused batch of each partition and producer id. An empty object is false."""

    __slots__ = ("_batches", "_lock")

    def __init__(self) -> None:
        self._batches: dict[tuple[PartitionKey, int], RefusedBatch] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._batches)

    def note(self, key: PartitionKey, header: BatchHeader, error: LogbusError) -> None:
        """Remember a refused batch, if the error is retriable.

        After any other error the producer drops the batch and begins a new epoch, in which
        sequences start at 0 again."""
        if header.producer_id == NO_PRODUCER or not error.retriable:
            return
        batch = RefusedBatch(header.producer_epoch, header.base_sequence, error.code, error.message)
        with self._lock:
            self._batches.pop((key, header.producer_id), None)
            if len(self._batches) >= PRODUCERS_MAX:
                del self._batches[next(iter(self._batches))]
            self._batches[key, header.producer_id] = batch

    def find(self, key: PartitionKey, header: BatchHeader) -> RefusedBatch | None:
        """Return the last refused batch of the producer and epoch in ``header``, or None."""
        batch = self._batches.get((key, header.producer_id))
        return batch if batch and batch.producer_epoch == header.producer_epoch else None
