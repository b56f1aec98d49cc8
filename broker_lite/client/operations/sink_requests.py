"""Send requests of Spark's exactly-once sink: join a micro-batch, keep a task attempt alive, end a
micro-batch.

A broker is the sink's coordinator. If another broker takes over, a request is retried there, until
the monotonic time ``deadline_ms``. A repeated request gets the same answer and has no effect."""

from __future__ import annotations

from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.group_requests import CachedCoordinator, on_coordinator
from broker_lite.client.transport.steps import CallExchange, Operation
from broker_lite.errors import LogbusError, error_of
from broker_lite.wire.calls.sinks import (
    EndBatchRequest,
    JoinBatchRequest,
    KeepBatchRequest,
    SinkResponse,
)

ATTEMPT_MS = 5_000
"""Milliseconds without a response after which a request is sent again.

The coordinator may hang; another broker then replaces it long before the micro-batch times out."""

SinkCall = JoinBatchRequest | EndBatchRequest | KeepBatchRequest


def ask_sink(
    cluster: Cluster, known: CachedCoordinator, request: SinkCall, deadline_ms: float
) -> Operation[SinkResponse]:
    """Send a request of Spark's exactly-once sink to the sink's coordinator; return the response.

    Raises the response's error with the coordinator's message."""
    exchange = CallExchange[SinkResponse](request)
    while True:
        attempt_ms = min(deadline_ms, cluster.now_ms() + ATTEMPT_MS)
        try:
            return (yield from on_coordinator(cluster, known, exchange, _check, attempt_ms))
        except LogbusError as error:
            if not error.retriable or attempt_ms >= deadline_ms:
                raise


def _check(answer: SinkResponse) -> LogbusError | None:
    return error_of(answer.error_code, answer.error_message)
