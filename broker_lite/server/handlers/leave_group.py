"""Handle LeaveGroup 0-5: remove members from a Kafka group.

From version 3 on, a request may name several members, by member id or instance id. Operators use
instance ids, because static members do not leave when they shut down."""

from __future__ import annotations

from typing import Any

from broker_lite.coordinator.events import Leaver
from broker_lite.errors import NO_ERROR, LogbusError, wire_code
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import LeaveGroupResponse as Response
from broker_lite.wire.tables import build

BATCHED_FROM = 3
"""The first version of LeaveGroup whose requests name several members."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Remove the named members from their group. Each member has its own error in the answer."""
    batched = request.api_version >= BATCHED_FROM
    leavers = [Leaver(message.member_id)]
    if batched:
        leavers = [Leaver(row.member_id, row.group_instance_id) for row in message.members]
    try:
        request.access.check_group(message.group_id)
        errors = (await parts.groups.leave(message.group_id, leavers)).errors
    except LogbusError as error:
        return Response(error_code=wire_code(error), members=[])
    codes = [wire_code(error) for error in errors]
    if not batched:
        return Response(error_code=codes[0], members=[])
    return Response(
        error_code=NO_ERROR,
        members=[
            build(
                Response.MemberResponse,
                member_id=leaver.member_id,
                group_instance_id=leaver.instance_id,
                error_code=code,
            )
            for leaver, code in zip(leavers, codes)
        ],
    )
