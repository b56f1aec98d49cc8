"""Handle DeleteGroups 0-2: delete groups with their committed offsets.

The coordinator of a group deletes it. A group with members is not deleted (NON_EMPTY_GROUP).
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import NO_ERROR, LogbusError, wire_code
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import WAIT_MS, within
from broker_lite.server.network.access import Access
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DeleteGroupsResponse as Response
from broker_lite.wire.tables import build


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Delete the groups. Each group has its own error in the answer."""
    return Response(
        results=[
            build(
                Response.DeletableGroupResult,
                group_id=group,
                error_code=await delete(parts, request.access, group),
            )
            for group in message.groups_names
        ]
    )


async def delete(parts: BrokerContext, access: Access, group: str) -> int:
    """Delete one group. Return the error code; 0 on success."""
    try:
        access.check_group(group)
        await within(WAIT_MS, _delete(parts, group))
    except LogbusError as error:
        return wire_code(error)
    return NO_ERROR


async def _delete(parts: BrokerContext, group: str) -> None:
    async def check_empty() -> None:
        await parts.groups.check_empty(group)
        parts.groups.forget(group)

    await parts.registry.group_deletion.delete(group, check_empty)
