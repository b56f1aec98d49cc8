"""Delay the errors of a group member's fetches after a topic was deleted.

The group usually revokes the partitions within the delay; the member raises the error only if it
still owns the partition afterwards. Only the reader's thread uses this module."""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.client.consuming.fetch_collector import FetchCollector
from broker_lite.client.fetch.fetch_engine import FetchedBatches, FetchEngine
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.model import TopicPartition


class DeletedTopics:
    """Delays the errors of deleted topics by ``patience_ms``: the group may revoke the partitions
    first.

    ``on_delayed`` is called when the delay of an error begins."""

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
        """Return whether an error has been delayed for ``patience_ms``."""
        return bool(self._delayed) and self._delayed[0][0] <= monotonic_ms()

    def delays_error(self, fetched: FetchedBatches) -> bool:
        """Delay a partition's error about a deleted topic, and return True.

        Return False if the error was delayed before: ``FetchCollector`` then raises it."""
        key = fetched.tp, fetched.generation
        if key in self._reported:
            return False
        self._reported.add(key)
        self._delayed.append((monotonic_ms() + self._patience_ms, fetched))
        self._on_delayed()
        return True

    def release(self) -> None:
        """Put errors delayed for ``patience_ms`` back into the queue of fetch results.

        The reader now raises them, except those of partitions that it no longer reads."""
        while self.is_due:
            self._engine.fetched.append(self._delayed.pop(0)[1])
