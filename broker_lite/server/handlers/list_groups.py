"""Handle ListGroups 0-5: list the groups that this broker coordinates.

A client sends the request to every broker. A group with offsets but no members is Empty, with a
blank protocol type if it never had members, as in Kafka. A group taken over from a failed
coordinator is PreparingRebalance until its members contact this broker. Native groups, whose
members coordinate through ZooKeeper, have the type "Native"."""

from __future__ import annotations

from typing import Any

from broker_lite.coordinator.group import State
from broker_lite.coordinator.members import CONSUMER
from broker_lite.errors import LogbusError, wire_code
from broker_lite.metadata import znodes
from broker_lite.metadata.loader import gather
from broker_lite.security.acls import ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import ListGroupsResponse as Response
from broker_lite.wire.tables import build

TYPES = {znodes.KIND_KAFKA: "Classic", znodes.KIND_NATIVE: "Native"}
"""The group type in the answer, for each kind of group in ZooKeeper."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """List the groups that pass the filters by state and type.

    Filters ignore case, and an empty filter passes all groups."""
    # Check a permission before anything else: the dispatcher drops the answer of a handler that
    # has checked none, even an error answer.
    request.access.visible(ResourceKind.GROUP, ())
    try:
        own = [
            group
            for group in await parts.registry.groups.names()
            if (chosen := parts.groups.coordinator_of(group)) is not None
            and chosen.broker_id == parts.broker_id
        ]
        visible = frozenset(request.access.visible(ResourceKind.GROUP, own))
        kinds = await parts.registry.groups.kinds(group for group in own if group in visible)
        states = await gather([_state(parts, group, kind) for group, kind in kinds.items()])
        rows = [(group, TYPES[kind], *state) for (group, kind), state in zip(kinds.items(), states)]
    except LogbusError as error:
        return Response(error_code=wire_code(error), groups=[])
    return Response(
        groups=[
            build(
                Response.ListedGroup,
                group_id=group,
                protocol_type=protocol_type,
                group_state=state,
                group_type=kind,
            )
            for group, kind, state, protocol_type in rows
            if _passes(message.states_filter, state) and _passes(message.types_filter, kind)
        ]
    )


async def _state(parts: BrokerContext, group: str, kind: str) -> tuple[str, str]:
    """Return the group's state and protocol type."""
    machine = parts.groups.find(group)
    if machine is not None:
        view = machine.view()
        return str(view.state), view.protocol_type
    if kind == znodes.KIND_NATIVE:
        members = await parts.registry.groups.native_members(group)
        return str(State.STABLE if members else State.EMPTY), CONSUMER
    if await parts.groups.has_former_members(group):
        return str(State.PREPARING), CONSUMER
    is_open = await parts.registry.groups.is_open(group, kind)
    return str(State.EMPTY), "" if is_open else CONSUMER


def _passes(accepted: list[str], value: str) -> bool:
    return not accepted or value.lower() in (word.lower() for word in accepted)
