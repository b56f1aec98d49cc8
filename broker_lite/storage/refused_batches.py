"""The last refused batch of each idempotent producer, so that its pipeline is refused with it.

A producer keeps up to five batches under way. Where a broker refuses one with a retriable error,
the batches behind it no longer follow the log: OUT_OF_ORDER_SEQUENCE_NUMBER is true of them, but
makes librdkafka begin a new producer epoch, under which records that are in the log already may be
sent again. ``ProducerState.check`` therefore answers them with the error of the refused batch.
Written by disk threads and the loop, under a lock; one for all logs of a data directory. Nothing
is lost where an entry is forgotten: the broker then answers as Kafka's does.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from broker_lite.errors import LogbusError, error_for
from broker_lite.model import NO_PRODUCER, PartitionKey
from broker_lite.record.batch import BatchHeader

PRODUCERS_MAX = 4096
"""Producers remembered, over all partitions; the oldest entry is dropped first."""
_AHEAD_MAX = 1 << 30
"""A sequence that is ahead by more is behind: they wrap."""


class RefusedBatch(NamedTuple):
    """A batch that its producer will send again."""

    producer_epoch: int
    base_sequence: int
    code: int
    message: str

    @property
    def error(self) -> LogbusError:
        """The error that the batch was refused with, without the frames that raised it."""
        return error_for(self.code, self.message)

    def makes_gap(self, expected: int | None, first: int) -> bool:
        """Whether this batch is missing between ``expected``, the sequence that the log awaits, if
        it knows, and ``first``, that of a batch which came instead."""
        follows = 0 < _distance(self.base_sequence, first) < _AHEAD_MAX
        return follows and (
            expected is None or _distance(expected, self.base_sequence) < _AHEAD_MAX
        )


def _distance(start: int, end: int) -> int:
    """How many sequences come from ``start`` up to ``end``; after 2^31-1 comes 0."""
    return (end - start) & 0x7FFFFFFF


class RefusedBatches:
    """By partition and producer id. False while there is none."""

    __slots__ = ("_batches", "_lock")

    def __init__(self) -> None:
        self._batches: dict[tuple[PartitionKey, int], RefusedBatch] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._batches)

    def note(self, key: PartitionKey, header: BatchHeader, error: LogbusError) -> None:
        """Remember a batch that was refused. After an error that is final the producer gives the
        batch up and needs a new epoch in any case: that is not remembered."""
        if header.producer_id == NO_PRODUCER or not error.retriable:
            return
        batch = RefusedBatch(header.producer_epoch, header.base_sequence, error.code, error.message)
        with self._lock:
            self._batches.pop((key, header.producer_id), None)
            if len(self._batches) >= PRODUCERS_MAX:
                del self._batches[next(iter(self._batches))]
            self._batches[key, header.producer_id] = batch

    def find(self, key: PartitionKey, header: BatchHeader) -> RefusedBatch | None:
        """The last refused batch of the header's producer, if it is of the same epoch."""
        batch = self._batches.get((key, header.producer_id))
        return batch if batch and batch.producer_epoch == header.producer_epoch else None
