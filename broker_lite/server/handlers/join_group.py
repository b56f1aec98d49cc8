"""Handle JoinGroup 0-9: let a member join a Kafka consumer group, which starts a rebalance.

The answer waits until all members have joined, at most for the rebalance timeout. From version 4
on, a member without an id first gets one, and sends a second request with it (KIP-394)."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from broker_lite.coordinator import events as ev
from broker_lite.coordinator.effects import JoinResult
from broker_lite.errors import LogbusError, wire_code
from broker_lite.model import UNNUMBERED
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import JoinGroupResponse as Response
from broker_lite.wire.tables import build

REBALANCE_TIMEOUT_FROM = 1
"""The first version of JoinGroup with a rebalance timeout; earlier versions use the session
timeout."""
TWICE_FROM = 4
"""The first version of JoinGroup in which a member without an id must send a second request."""
NULLABLE_PROTOCOL_FROM = 7
"""The first version of JoinGroup whose answer may have a null protocol name."""
SKIP_ASSIGNMENT_FROM = 9
"""The first version of JoinGroup whose answer can tell the group's leader not to compute an
assignment."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer with the outcome of the rebalance, or with a new member id and the error
    MEMBER_ID_REQUIRED."""
    version = request.api_version
    has_timeout = version >= REBALANCE_TIMEOUT_FROM
    client_id = request.client_id or "consumer"
    new_id = f"{message.group_instance_id or client_id}-{uuid4()}"
    protocols = tuple(ev.Protocol(row.name, row.metadata) for row in message.protocols)
    join = ev.Join(
        UNNUMBERED,
        message.member_id,
        message.group_instance_id,
        client_id,
        f"/{request.session.host}",  # As in Kafka, a slash precedes the host.
        message.session_timeout_ms,
        message.rebalance_timeout_ms if has_timeout else message.session_timeout_ms,
        message.protocol_type,
        protocols,
        new_id,
        version >= TWICE_FROM,
        version >= SKIP_ASSIGNMENT_FROM,
    )
    try:
        request.access.check_group(message.group_id)
        result = await parts.groups.join(message.group_id, join)
    except LogbusError as error:
        result = JoinResult(error, message.member_id)
    absent = None if version >= NULLABLE_PROTOCOL_FROM else ""
    return Response(
        error_code=wire_code(result.error),
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=absent if result.protocol_name is None else result.protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            build(
                Response.JoinGroupResponseMember,
                member_id=row.member_id,
                group_instance_id=row.instance_id,
                metadata=row.metadata,
            )
            for row in result.members
        ],
    )
