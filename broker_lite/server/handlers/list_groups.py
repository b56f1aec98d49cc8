"""ListGroups 0-5: every group that has an offset in ZooKeeper; any broker lists all of them.

Members come with group coordination: until then every group is Empty, of the classic type.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import LogbusError, wire_code
from broker_lite.server.parts import Parts
from broker_lite.wire.api import RequestHeader
from broker_lite.wire.tables import ListGroupsResponse as Response
from broker_lite.wire.tables import build

STATE_EMPTY = "Empty"
TYPE_CLASSIC = "Classic"
PROTOCOL_TYPE = "consumer"


async def handle(parts: Parts, request: RequestHeader, message: Any) -> Any:
    """Filters compare without regard to case; an empty filter lets everything through."""
    if not (
        _passes(message.states_filter, STATE_EMPTY) and _passes(message.types_filter, TYPE_CLASSIC)
    ):
        return Response(groups=[])
    try:
        listed = await parts.registry.list_groups()
    except LogbusError as error:
        return Response(error_code=wire_code(error), groups=[])
    return Response(
        groups=[
            build(
                Response.ListedGroup,
                group_id=row.group,
                protocol_type=PROTOCOL_TYPE,
                group_state=STATE_EMPTY,
                group_type=TYPE_CLASSIC,
            )
            for row in listed
        ]
    )


def _passes(wanted: list[str], value: str) -> bool:
    return not wanted or value.lower() in (word.lower() for word in wanted)
