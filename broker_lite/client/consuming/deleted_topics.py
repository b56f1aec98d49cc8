"""Delay deleted-topic errors of a group's member, because the group may revoke the partition first.

The member raises the error only if it still owns the partition after the delay. Only the reader's
thread uses this module.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.client.consuming.fetch_collector import FetchCollector
from broker_lite.client.fetch.fetch_engine import FetchedBatches, FetchEngine
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.model import TopicPartition


class DeletedTopics:
    """The deleted-topic errors that a ``FetchCollector`` delays by ``patience_ms`` milliseconds.
    Calls ``on_delayed`` after it has delayed an error."""

    def __init__(
        self,
        collector: FetchCollector,
        engine: FetchEngine,
        patience_ms: float,
        on_delayed: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._patience_ms = patience_ms
        self._on_delayed = on_delayed
        self._delayed: list[tuple[float, FetchedBatches]] = []
        self._reported: set[tuple[TopicPartition, int]] = set()
        collector.delays_error = self.delays_error

    @property
    def is_due(self) -> bool:
        """Return whether some error has been delayed for ``patience_ms``."""
        return bool(self._delayed) and self._delayed[0][0] <= monotonic_ms()

    def delays_error(self, fetched: FetchedBatches) -> bool:
        """Delay the first deleted-topic error of a partition, and return True. Return False for a
        second error of the partition."""
        key = fetched.tp, fetched.generation
        if key in self._reported:
            return False
        self._reported.add(key)
        self._delayed.append((monotonic_ms() + self._patience_ms, fetched))
        self._on_delayed()
        return True

    def release(self) -> None:
        """Put the errors whose delay is over into the reader's queue. The reader ignores errors of
        partitions that it no longer reads."""
        while self.is_due:
            self._engine.fetched.append(self._delayed.pop(0)[1])
