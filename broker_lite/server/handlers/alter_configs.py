"""Handle IncrementalAlterConfigs 0-1: change settings, or only items of a list setting."""

from __future__ import annotations

from typing import Any

from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.setting_changes import alter, unknown_operation
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.configs import OPERATION_DELETE_OTHERS


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Alter the settings of each resource. Each resource has its own error in the answer.

    Raises InvalidRequestError if a client sends OPERATION_DELETE_OTHERS, which only brokers may
    send."""
    operations = {each.config_operation for row in message.resources for each in row.configs}
    if OPERATION_DELETE_OTHERS in operations and not request.is_forwarded:
        raise unknown_operation(OPERATION_DELETE_OTHERS)
    return await alter(parts, request, message)
