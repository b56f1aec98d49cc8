"""``IdleProducers``: a client's producers that have no open transaction, for later transactions.

A new producer would need a thread, connections and an InitProducerId request. Any thread may use
this module."""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

from broker_lite.config import ProducerConfig

IDLE_MAX = 8
"""Maximum number of idle producers of a client (``Bus``), each with a thread and connections."""


class Reusable(Protocol):
    """The attributes of a producer that ``IdleProducers``, the pool of producers without a
    transaction, uses."""

    config: ProducerConfig

    @property
    def is_usable(self) -> bool: ...


P = TypeVar("P", bound=Reusable)


class IdleProducers(Generic[P]):
    """A client's idle producers by configuration, the one idle longest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[ProducerConfig, P] = {}

    def acquire(self, config: ProducerConfig) -> P | None:
        """Remove and return an idle producer with this configuration, or None if there is none."""
        with self._lock:
            producer = self._idle.pop(config, None)
        return producer if producer is not None and producer.is_usable else None

    def release(self, producer: P) -> list[P]:
        """Keep ``producer`` for later transactions. Return the producers that the caller must
        close: ``producer``, if it is unusable or its configuration has an idle one already, or the
        one idle longest, if there are too many."""
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
        """Remove and return all idle producers. The caller must close them."""
        with self._lock:
            idle, self._idle = self._idle, {}
        return list(idle.values())
