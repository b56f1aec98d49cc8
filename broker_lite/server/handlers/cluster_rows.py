"""Brokers, controller and partitions as rows, which the answers of several APIs share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker_lite.errors import LeaderNotAvailableError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import NO_BROKER, Endpoint, PartitionView
from broker_lite.server.broker_context import BrokerContext
from broker_lite.wire.api import NodeEndpoint
from broker_lite.wire.tables import build


def brokers(
    parts: BrokerContext, snapshot: MetadataSnapshot, kind: Any, id_field: str, listener: str
) -> list[Any]:
    """Return the live brokers that have the listener, each as a message of type ``kind``.

    This broker is always included. ``id_field`` names the message's field for the broker id."""
    endpoints: dict[int, tuple[Endpoint, str | None]] = {
        parts.broker_id: (parts.listeners.get(listener, parts.endpoint), parts.config.rack or None)
    }
    for view in snapshot.brokers.values():
        endpoint = view.at(listener)
        if endpoint is not None:
            endpoints[view.broker_id] = (endpoint, view.rack)
    return [
        build(kind, **{id_field: broker_id}, host=endpoint.host, port=endpoint.port, rack=rack)
        for broker_id, (endpoint, rack) in sorted(endpoints.items())
    ]


def node_endpoints(
    snapshot: MetadataSnapshot, listener: str, leaders: Iterable[int]
) -> list[NodeEndpoint]:
    """Return, for the live brokers among ``leaders``, their addresses on ``listener``."""
    endpoints = []
    for broker_id in sorted(set(leaders)):
        view = snapshot.brokers.get(broker_id)
        endpoint = view.at(listener) if view is not None else None
        if view is not None and endpoint is not None:
            endpoints.append(NodeEndpoint(broker_id, endpoint.host, endpoint.port, view.rack))
    return endpoints


def controller(snapshot: MetadataSnapshot) -> int:
    """Return the controller's broker id, or -1 (clients then retry) if it is not a live broker."""
    return snapshot.controller_id if snapshot.controller_id in snapshot.brokers else NO_BROKER


def partition_row(kind: Any, view: PartitionView, snapshot: MetadataSnapshot) -> Any:
    """Return one partition as a message of type ``kind``, with its leader, replicas and ISR."""
    state, live = view.state, snapshot.brokers
    leader = state.leader if state.leader in live else NO_BROKER
    replicas = list(view.replicas)
    return build(
        kind,
        error_code=LeaderNotAvailableError.code if leader == NO_BROKER else 0,
        partition_index=view.partition,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=[replica.broker_id for replica in state.isr],
        offline_replicas=[broker_id for broker_id in replicas if broker_id not in live],
    )
