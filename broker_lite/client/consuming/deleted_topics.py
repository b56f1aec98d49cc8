"""News that a topic is gone, put off: a group takes such a topic from its readers, so brokers' word
of it is no error to them, unless it is still theirs after a while. For the reader's thread."""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.client.consuming.fetching import Arrival, FetchEngine
from broker_lite.client.consuming.intake import Intake
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.model import TopicPartition


class GoneTopics:
    """Asks to be told by ``intake``; ``on_told`` hears of each piece of news."""

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
        """Whether something was put off for long enough."""
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
        """What is due is the reader's after all; news of partitions that were taken is void."""
        while self.is_due:
            self._engine.arrivals.append(self._put_off.pop(0)[1])
