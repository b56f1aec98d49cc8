"""Run operations of the client, the generators of ``client.operations``, without a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import Operation, Pause, Send, SendAll
from broker_lite.errors import LogbusError
from broker_lite.model import Endpoint
from broker_lite.wire.calls.groups import FindCoordinatorResponse, FoundCoordinator

T = TypeVar("T")


class OperationPlayer:
    """Runs operations on a clock that only their pauses advance. ``pauses`` has the pauses, in ms.

    The operations get ``cluster``, which knows the address ``host``:1."""

    def __init__(self, host: str = "one") -> None:
        self.now_ms = 0.0
        self.pauses: list[float] = []
        self.cluster = Cluster((Endpoint(host, 1),), lambda: self.now_ms)

    def run(self, operation: Operation[T], answer: Callable[[Send | SendAll], Any]) -> T:
        """Return the result of an operation. ``answer`` returns the response to each step, or the
        error that the step raises."""
        result: Any = None
        try:
            while True:
                if isinstance(result, LogbusError):
                    step = operation.throw(result)
                else:
                    step = operation.send(result)
                if isinstance(step, Pause):
                    self.now_ms, result = self.now_ms + step.delay_ms, None
                    self.pauses.append(step.delay_ms)
                else:
                    result = answer(step)
        except StopIteration as stop:
            found: T = stop.value
            return found


def coordinator_of(group: str) -> FindCoordinatorResponse:
    """Return the answer that broker 1, at one:1, coordinates the group."""
    return FindCoordinatorResponse(0, (FoundCoordinator(group, 1, "one", 1, 0, None),))
