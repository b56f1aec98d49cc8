"""Detect leaders that hang: their responses are overdue, and another replica may lead already."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, NamedTuple, TypeVar

from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.resettable_timer import ResettableTimer
from broker_lite.client.transport.steps import Shell
from broker_lite.model import Endpoint, TopicPartition

LATE_MS = 500
"""Milliseconds without a response after which a request to a leader is overdue."""

_Name = TypeVar("_Name")


class _RequestInFlight(NamedTuple):
    tps: Collection[TopicPartition]
    due_ms: float


class OverdueRequests(Generic[_Name]):
    """A client's unanswered requests to leaders. Requests to the same leader must have different
    names.

    Every ``LATE_MS``, leaders with overdue requests become the last brokers to ask for metadata,
    and ``on_overdue`` receives the partitions of the requests. It must refresh the metadata;
    ``deposed`` then returns the requests that a former leader received."""

    def __init__(
        self,
        shell: Shell,
        cluster: Cluster,
        on_overdue: Callable[[set[TopicPartition]], None],
    ) -> None:
        self._shell = shell
        self._cluster = cluster
        self._on_overdue = on_overdue
        self._in_flight: dict[tuple[Endpoint, _Name], _RequestInFlight] = {}
        self._timer = ResettableTimer(shell.later, self._check)

    def sent(
        self, leader: Endpoint, name: _Name, tps: Collection[TopicPartition], wait_ms: float = 0
    ) -> None:
        """Record a request to a leader about its partitions ``tps``. The leader may wait
        ``wait_ms`` before it answers."""
        due_ms = self._shell.now_ms() + wait_ms + LATE_MS
        self._in_flight[leader, name] = _RequestInFlight(tps, due_ms)
        if not self._timer.is_set:
            self._timer.set(LATE_MS)

    def answered(self, leader: Endpoint, name: _Name) -> None:
        """Record that a request was answered, has failed or was given up."""
        del self._in_flight[leader, name]

    def deposed(self) -> list[tuple[Endpoint, _Name]]:
        """Return the overdue requests with a partition that has a new leader in the metadata: for
        each, the former leader and the request's name."""
        view = self._cluster.view
        return [
            (leader, name)
            for (leader, name), (tps, _) in self._overdue().items()
            if any(view.leader(tp) not in (None, leader) for tp in tps)
        ]

    def close(self) -> None:
        """Stop looking for overdue requests."""
        self._timer.cancel()

    def _overdue(self) -> dict[tuple[Endpoint, _Name], _RequestInFlight]:
        now_ms = self._shell.now_ms()
        return {key: row for key, row in self._in_flight.items() if row.due_ms <= now_ms}

    def _check(self) -> None:
        if not self._in_flight:
            return
        self._timer.set(LATE_MS)
        overdue = self._overdue()
        for leader in dict.fromkeys(leader for leader, _ in overdue):
            self._cluster.failed(leader)
        if overdue:
            self._on_overdue({tp for tps, _ in overdue.values() for tp in tps})
