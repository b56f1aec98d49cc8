"""Handle ListConfigResources 0-1: list the resources that have settings: topics and brokers.

Version 0 asks only for client metrics subscriptions, of which logbus has none. Groups and broker
loggers have no settings in logbus."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import NO_ERROR
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.topic_settings import RESOURCE_BROKER, RESOURCE_TOPIC
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import ListConfigResourcesResponse as Response
from broker_lite.wire.tables import build

TYPES_FROM = 1
"""The first version of the API whose requests list resource types; an empty list means topics and
brokers."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer from the metadata snapshot, without a read of ZooKeeper."""
    snapshot = parts.registry.snapshot
    every: list[tuple[int, str]] = []
    if request.api_version >= TYPES_FROM:
        resource_types = message.resource_types or (RESOURCE_TOPIC, RESOURCE_BROKER)
        if RESOURCE_TOPIC in resource_types:
            every += [(RESOURCE_TOPIC, name) for name in snapshot.topics]
        if RESOURCE_BROKER in resource_types:
            every += [(RESOURCE_BROKER, str(broker_id)) for broker_id in snapshot.brokers]
    rows = [
        build(Response.ConfigResource, resource_name=name, resource_type=kind)
        for kind, name in sorted(every)
    ]
    return Response(error_code=NO_ERROR, config_resources=rows)
