"""Handle DescribeGroups 0-6: return the state and the members of groups.

The group's coordinator serves the request. A group with offsets but no members is Empty, with a
blank protocol type if it never had members. A group that does not exist is Dead, from version 6 on
with GROUP_ID_NOT_FOUND, as in Kafka.

Subscriptions and assignments are shown only while the group is Stable. A group taken over from a
failed coordinator is PreparingRebalance until its members have contacted this broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_lite.coordinator.group import State
from broker_lite.coordinator.members import CONSUMER
from broker_lite.errors import NO_ERROR, GroupIdNotFoundError, LogbusError, wire_code
from broker_lite.metadata import znodes
from broker_lite.metadata.loader import gather
from broker_lite.metadata.native_members import NativeMember
from broker_lite.security.acls import ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.consumer_protocol import encode_assignment, encode_subscription
from broker_lite.wire.tables import DescribeGroupsResponse as Response
from broker_lite.wire.tables import build

NOT_FOUND_FROM = 6
"""The first version of DescribeGroups whose clients know GROUP_ID_NOT_FOUND."""
GROUPS_AT_ONCE = 10
"""Maximum number of groups of one request that are read from ZooKeeper at the same time."""
PROTOCOL_NATIVE = "range"
"""The protocol shown for a native group, whose members coordinate through ZooKeeper."""

_Group = Response.DescribedGroup


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Describe the groups. Each group has its own error in the answer, and one row even if the
    request repeats it."""
    names = dict.fromkeys(message.groups)
    rows = await gather([_describe(parts, request, name) for name in names], GROUPS_AT_ONCE)
    if message.include_authorized_operations:
        for row in rows:
            if not row.error_code:
                row.authorized_operations = request.access.operations(
                    ResourceKind.GROUP, row.group_id
                )
    return Response(groups=rows)


async def _describe(parts: BrokerContext, request: RequestContext, group: str) -> Any:
    fields: dict[str, Any] = {"group_state": str(State.DEAD), "protocol_type": ""}
    try:
        request.access.check_group(group)
        parts.groups.check_coordinator(group)
        found = await _found(parts, group)
    except LogbusError as error:
        fields |= {"error_code": wire_code(error), "error_message": error.message}
    else:
        fields |= found
        if not found and request.api_version >= NOT_FOUND_FROM:
            fields["error_code"] = GroupIdNotFoundError.code
            fields["error_message"] = f"group {group!r} does not exist"
    return build(
        _Group,
        **{
            "error_code": NO_ERROR,
            "error_message": None,
            "protocol_data": "",
            "members": [],
            **fields,
        },
        group_id=group,
    )


async def _found(parts: BrokerContext, group: str) -> dict[str, Any]:
    """Return the answer's fields for the group; empty if the group does not exist."""
    machine = await parts.groups.find_described(group)
    if machine is None:
        kind = await parts.registry.groups.kind(group)
        if kind is None:
            return {}
        if kind == znodes.KIND_NATIVE:
            return _native(await parts.registry.groups.describe_native(group))
        is_open = await parts.registry.groups.is_open(group, kind)
        return {"group_state": str(State.EMPTY), "protocol_type": "" if is_open else CONSUMER}
    view = machine.view()
    return {
        "group_state": str(view.state),
        "protocol_type": view.protocol_type,
        "protocol_data": view.protocol,
        "members": [
            build(
                _Group.DescribedGroupMember,
                member_id=row.member_id,
                group_instance_id=row.instance_id,
                client_id=row.client_id,
                client_host=row.client_host,
                member_metadata=row.metadata,
                member_assignment=row.assignment,
            )
            for row in view.members
        ],
    }


def _native(members: Sequence[NativeMember]) -> dict[str, Any]:
    """Return the answer's fields for a native group, whose members coordinate through ZooKeeper."""
    return {
        "group_state": str(State.STABLE if members else State.EMPTY),
        "protocol_type": CONSUMER,
        "protocol_data": PROTOCOL_NATIVE if members else "",
        "members": [
            build(
                _Group.DescribedGroupMember,
                member_id=row.name,
                group_instance_id=None,
                client_id=row.subscription.client_id,
                client_host=row.subscription.host,
                # Only the member knows which topics match its pattern, so the description lists
                # only the topics that the subscription names.
                member_metadata=encode_subscription(row.subscription.topics),
                member_assignment=encode_assignment(row.owned),
            )
            for row in members
        ],
    }
