"""Handle AlterConfigs 0-2, Kafka's older API: replace all settings that a topic overrides.

The request becomes an IncrementalAlterConfigs request that sets the given settings and deletes the
others. The controller determines the other settings, because this broker's metadata may be old."""

from __future__ import annotations

from typing import Any

from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.setting_changes import alter
from broker_lite.server.handlers.topic_settings import RESOURCE_TOPIC
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.configs import (
    OPERATION_DELETE_OTHERS,
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
        tuple(_changes(row) for row in message.resources), message.validate_only
    )
    answer = await alter(parts, request, changes)
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


def _changes(row: Any) -> AlterConfigsResource:
    given = [AlterableConfig(each.name, OPERATION_SET, each.value) for each in row.configs]
    if row.resource_type == RESOURCE_TOPIC:
        given.append(AlterableConfig("", OPERATION_DELETE_OTHERS))
    return AlterConfigsResource(row.resource_type, row.resource_name, tuple(given))
