"""End a micro-batch of Spark's exactly-once sink: commit it, abort it, or abort task attempts.

Spark starts a separate process for this; to start fast, the module imports neither pyarrow nor the
producer."""

from __future__ import annotations

from broker_lite.client.discovery import security_for
from broker_lite.client.operations.cluster import cluster_at
from broker_lite.client.operations.group_requests import CachedCoordinator
from broker_lite.client.operations.sink_requests import ask_sink
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.pool import shared_pool
from broker_lite.config.client_security import ClientSecurity
from broker_lite.wire.calls.sinks import EndBatchRequest


def end_batch(
    bootstrap_servers: str,
    client_id: str,
    request: EndBatchRequest,
    timeout_ms: int,
    security: ClientSecurity | None = None,
) -> None:
    """End a micro-batch: send ``request`` to the coordinator of the exactly-once sink, with retries
    for ``timeout_ms``.

    Raises ProducerFencedError if a task attempt was aborted, or if another run of the query writes
    to the sink now. Raises SinkAheadOfCheckpointError if the sink has committed a later batch,
    SinkRowsDifferError if it has committed this batch with other rows, and the last retriable error
    after the timeout. The batch may be committed despite a timeout; when Spark repeats the batch,
    the coordinator answers that it is committed."""
    cluster = cluster_at(bootstrap_servers, has_answered=True)
    operation = ask_sink(
        cluster, CachedCoordinator(request.sink), request, monotonic_ms() + timeout_ms
    )
    shared_pool(client_id, security_for(bootstrap_servers, security)).run(operation)
