"""Idle producers of ended transactions, which later transactions with the same configuration reuse.

A new producer would cost a thread, connections and an InitProducerId. Any thread may use this
module.
"""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

from broker_lite.config import ProducerConfig

IDLE_MAX = 8
"""Maximum number of idle producers of a bus. Each idle producer has a thread and connections."""


class Reusable(Protocol):
    """A transactional producer that another transaction can reuse."""

    config: ProducerConfig

    @property
    def is_usable(self) -> bool: ...


P = TypeVar("P", bound=Reusable)


class IdleProducers(Generic[P]):
    """Idle producers by configuration, the producer with the longest idle time first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[ProducerConfig, P] = {}

    def acquire(self, config: ProducerConfig) -> P | None:
        """Remove and return an idle producer with this configuration; None if no producer
        matches."""
        with self._lock:
            producer = self._idle.pop(config, None)
        return producer if producer is not None and producer.is_usable else None

    def release(self, producer: P) -> list[P]:
        """Keep a producer as idle, if it is usable. Return the producers that the caller must
        close."""
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
        """Return all idle producers, which the caller must close."""
        with self._lock:
            idle, self._idle = self._idle, {}
        return list(idle.values())
