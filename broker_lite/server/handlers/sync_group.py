"""Handle SyncGroup 0-5: receive the assignments from the group's leader, and send each member its
own.

The answers to the other members wait for the leader's request."""

from __future__ import annotations

from typing import Any

from broker_lite.coordinator import events as ev
from broker_lite.coordinator.effects import SyncResult
from broker_lite.errors import LogbusError, wire_code
from broker_lite.model import UNNUMBERED
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import SyncGroupResponse as Response

PROTOCOL_FROM = 5
"""The first version of SyncGroup whose requests name the protocol type and the protocol."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer with the member's assignment; it is empty after an error."""
    names_protocol = request.api_version >= PROTOCOL_FROM
    assignments = tuple((row.member_id, row.assignment) for row in message.assignments)
    sync = ev.SyncGroup(
        UNNUMBERED,
        message.member_id,
        message.group_instance_id,
        message.generation_id,
        assignments,
        message.protocol_type if names_protocol else None,
        message.protocol_name if names_protocol else None,
    )
    try:
        request.access.check_group(message.group_id)
        result = await parts.groups.sync(message.group_id, sync)
    except LogbusError as error:
        result = SyncResult(error)
    return Response(
        error_code=wire_code(result.error),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
