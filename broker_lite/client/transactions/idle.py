"""Idle producers of ended transactions. The next transaction with the same configuration reuses
one.

A new producer costs a thread, connections and an InitProducerId. Any thread.
"""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

from broker_lite.config import ProducerConfig

IDLE_MAX = 8
"""Maximum idle producers of a bus; each holds a thread and connections."""


class Reusable(Protocol):
    """A producer of transactions."""

    config: ProducerConfig

    @property
    def is_usable(self) -> bool: ...


P = TypeVar("P", bound=Reusable)


class IdleProducers(Generic[P]):
    """Idle producers by configuration, the longest idle first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[ProducerConfig, P] = {}

    def take(self, config: ProducerConfig) -> P | None:
        """Remove a producer from the idle ones and return it, or None."""
        with self._lock:
            producer = self._idle.pop(config, None)
        return producer if producer is not None and producer.is_usable else None

    def give_back(self, producer: P) -> list[P]:
        """Keep a producer; return those that the caller must close."""
        if not producer.is_usable:
            return [producer]
        with self._lock:
            if producer.config in self._idle:
                return [producer]
            self._idle[producer.config] = producer
            if len(self._idle) <= IDLE_MAX:
                return []
            return [self._idle.pop(next(iter(self._idle)))]

    def drain(self) -> list[P]:
        """Return all producers; the caller must close them."""
        with self._lock:
            idle, self._idle = self._idle, {}
        return list(idle.values())
