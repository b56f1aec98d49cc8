"""DescribeGroups 0-6: the state of groups; any broker knows all of them.

Members come with group coordination: until then a group that has offsets is Empty. One that has
none is Dead, from version 6 with GROUP_ID_NOT_FOUND, as in Kafka.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import NO_ERROR, GroupIdNotFoundError, LogbusError, wire_code
from broker_lite.server.handlers.list_groups import PROTOCOL_TYPE, STATE_EMPTY
from broker_lite.server.parts import Parts
from broker_lite.wire.api import RequestHeader
from broker_lite.wire.tables import DescribeGroupsResponse as Response
from broker_lite.wire.tables import build

STATE_DEAD = "Dead"
NOT_FOUND_FROM = 6


async def handle(parts: Parts, request: RequestHeader, message: Any) -> Any:
    """A group that cannot be read carries the error; the others are answered."""
    return Response(
        groups=[await _describe(parts, group, request.api_version) for group in message.groups]
    )


async def _describe(parts: Parts, group: str, version: int) -> Any:
    fields: dict[str, Any] = {"group_state": STATE_DEAD, "protocol_type": ""}
    try:
        kind = await parts.registry.group_kind(group)
    except LogbusError as error:
        fields |= {"error_code": wire_code(error), "error_message": error.message}
    else:
        if kind is not None:
            fields |= {"group_state": STATE_EMPTY, "protocol_type": PROTOCOL_TYPE}
        elif version >= NOT_FOUND_FROM:
            fields["error_code"] = GroupIdNotFoundError.code
            fields["error_message"] = f"no group {group!r} has committed an offset"
    return build(
        Response.DescribedGroup,
        **{"error_code": NO_ERROR, "error_message": None, **fields},
        group_id=group,
        protocol_data="",
        members=[],
    )
