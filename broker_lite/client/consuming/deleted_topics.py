"""Delays deleted-topic errors of a group's member: the group may revoke the partition first.

An error is raised only if the member still owns the partition after the delay. Used on the reader's
thread.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.client.consuming.intake import Intake
from broker_lite.client.fetch.fetch_engine import Arrival, FetchEngine
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.model import TopicPartition


class GoneTopics:
    """Delayed deleted-topic errors of an ``Intake``. ``on_told`` is called for each of them."""

    def __init__(
        self,
        intake: Intake,
        engine: FetchEngine,
        patience_ms: float,
        on_told: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._patience_ms = patience_ms
        self._on_told = on_told
        self._put_off: list[tuple[float, Arrival]] = []
        self._told: set[tuple[TopicPartition, int]] = set()
        intake.puts_off = self._puts_off

    @property
    def is_due(self) -> bool:
        """Whether an error has been delayed for long enough."""
        return bool(self._put_off) and self._put_off[0][0] <= monotonic_ms()

    def _puts_off(self, arrival: Arrival) -> bool:
        key = arrival.where, arrival.generation
        if key in self._told:
            return False
        self._told.add(key)
        self._put_off.append((monotonic_ms() + self._patience_ms, arrival))
        self._on_told()
        return True

    def release(self) -> None:
        """Return overdue errors to the reader's queue; errors of revoked partitions are void."""
        while self.is_due:
            self._engine.arrivals.append(self._put_off.pop(0)[1])
