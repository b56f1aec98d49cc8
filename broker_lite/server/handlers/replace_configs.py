"""Handle AlterConfigs 0-2, Kafka's older API: replace all settings that a topic overrides.

The request becomes an IncrementalAlterConfigs request that sets the given settings and deletes the
others."""

from __future__ import annotations

from typing import Any

from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers import alter_configs
from broker_lite.server.handlers.topic_settings import RESOURCE_TOPIC
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.configs import (
    OPERATION_DELETE,
    OPERATION_SET,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from broker_lite.wire.tables import AlterConfigsResponse as Response
from broker_lite.wire.tables import build


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Replace the settings of each resource. Each resource has its own error in the answer."""
    changes = IncrementalAlterConfigsRequest(
        tuple(_changes(parts, row) for row in message.resources), message.validate_only
    )
    answer = await alter_configs.handle(parts, request, changes)
    return Response(
        responses=[
            build(
                Response.AlterConfigsResourceResponse,
                error_code=row.error_code,
                error_message=row.error_message,
                resource_type=row.resource_type,
                resource_name=row.resource_name,
            )
            for row in answer.responses
        ]
    )


def _changes(parts: BrokerContext, row: Any) -> AlterConfigsResource:
    given = [AlterableConfig(each.name, OPERATION_SET, each.value) for each in row.configs]
    topic = parts.registry.snapshot.topics.get(row.resource_name)
    if row.resource_type == RESOURCE_TOPIC and topic is not None:
        kept_names = {each.name for each in row.configs}
        gone = [name for name in topic.config if name not in kept_names]
        given += [AlterableConfig(name, OPERATION_DELETE, None) for name in gone]
    return AlterConfigsResource(row.resource_type, row.resource_name, tuple(given))
