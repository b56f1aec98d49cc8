"""Handle Heartbeat 0-4: keep a member in its group, and tell the member when it must join again."""

from __future__ import annotations

from typing import Any

from broker_lite.coordinator import events as ev
from broker_lite.errors import LogbusError, wire_code
from broker_lite.model import UNNUMBERED
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import HeartbeatResponse as Response


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Restart the member's session timeout. During a rebalance, answer REBALANCE_IN_PROGRESS."""
    heartbeat = ev.Heartbeat(
        UNNUMBERED, message.member_id, message.group_instance_id, message.generation_id
    )
    try:
        request.access.check_group(message.group_id)
        error = (await parts.groups.heartbeat(message.group_id, heartbeat)).error
    except LogbusError as failure:
        error = failure
    return Response(error_code=wire_code(error))
