"""End a micro-batch of Spark's exactly-once sink: commit it, or abort it or a failed attempt.

Spark commits in a process of its own, so this module imports neither pyarrow nor the producer.
"""

from __future__ import annotations

from broker_lite.client.discovery import parse_endpoints, security_for
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.group_requests import CachedCoordinator
from broker_lite.client.operations.sink_requests import ask_sink
from broker_lite.client.transport.blocking import monotonic_ms, shared_pool
from broker_lite.config.client_security import ClientSecurity
from broker_lite.wire.calls.sinks import EndBatchRequest


def end_batch(
    bootstrap_servers: str,
    client_id: str,
    request: EndBatchRequest,
    timeout_ms: int,
    security: ClientSecurity | None = None,
) -> None:
    """Send ``request`` to the sink's coordinator until its outcome is known, for at most
    ``timeout_ms``.

    Raises ProducerFencedError if an attempt was aborted or another run took the sink over. Raises
    SinkAheadOfCheckpointError, SinkRowsDifferError, or the last retriable error after the timeout.
    After a timeout the batch may be committed, which Spark's replay of the batch detects.
    """
    cluster = Cluster(
        parse_endpoints(bootstrap_servers), monotonic_ms, client_id, has_answered=True
    )
    operation = ask_sink(
        cluster, CachedCoordinator(request.sink), request, monotonic_ms() + timeout_ms
    )
    shared_pool(client_id, security_for(bootstrap_servers, security)).run(operation)
