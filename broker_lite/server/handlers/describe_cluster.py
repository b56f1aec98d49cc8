"""Handle DescribeCluster 0-2: return the cluster id, the controller and the live brokers.

Endpoint type 2 (KRaft controllers) is refused: logbus has none. Fenced brokers are never listed."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import InvalidRequestError
from broker_lite.security.acls import CLUSTER_NAME, ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.cluster_rows import brokers, controller
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DescribeClusterResponse as Response

ENDPOINT_BROKERS = 1
"""Kafka's endpoint type that stands for brokers."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer from the metadata snapshot, without a read of ZooKeeper."""
    snapshot = parts.registry.snapshot
    if message.endpoint_type != ENDPOINT_BROKERS:
        return Response(
            error_code=InvalidRequestError.code,
            error_message=(
                f"endpoint type {message.endpoint_type} does not exist in this cluster, which has "
                "no KRaft controllers; request the brokers, with endpoint type 1"
            ),
            endpoint_type=message.endpoint_type,
            cluster_id=snapshot.cluster_id,
            brokers=[],
        )
    on_cluster = message.include_cluster_authorized_operations
    return Response(
        endpoint_type=ENDPOINT_BROKERS,
        cluster_id=snapshot.cluster_id,
        controller_id=controller(snapshot),
        brokers=brokers(
            parts, snapshot, Response.DescribeClusterBroker, "broker_id", request.session.listener
        ),
        authorized_operations=(
            request.access.operations(ResourceKind.CLUSTER, CLUSTER_NAME) if on_cluster else None
        ),
    )
