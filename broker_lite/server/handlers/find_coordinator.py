"""FindCoordinator 0-4: return the broker that coordinates a group.

Every broker computes the same coordinator from the live brokers. When a broker joins or leaves,
only groups coordinated by that broker move. Transactional ids fail with the one error that all
clients treat as fatal; librdkafka retries every other error until it times out.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import (
    CoordinatorNotAvailableError,
    InvalidGroupIdError,
    InvalidRequestError,
    LogbusError,
    TransactionalIdAuthorizationError,
)
from broker_lite.model import NO_BROKER
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.groups import KEY_TYPE_GROUP, KEY_TYPE_TRANSACTION
from broker_lite.wire.tables import FindCoordinatorResponse as Response
from broker_lite.wire.tables import build

BATCHED_FROM = 4


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer from the metadata snapshot, without ZooKeeper."""
    batched = request.api_version >= BATCHED_FROM
    rows = []
    for key in message.coordinator_keys if batched else [message.key]:
        fields: dict[str, Any]
        try:
            broker_id, host, port = _coordinator(parts, key, message.key_type)
            fields = {"node_id": broker_id, "host": host, "port": port}
        except LogbusError as error:
            fields = {"node_id": NO_BROKER, "host": "", "port": -1}
            fields |= {"error_code": error.code, "error_message": error.message}
        rows.append((key, fields))
    if not batched:
        return Response(**rows[0][1])
    return Response(
        coordinators=[build(Response.Coordinator, key=key, **fields) for key, fields in rows]
    )


def _coordinator(parts: BrokerContext, key: str, key_type: int) -> tuple[int, str, int]:
    if key_type == KEY_TYPE_TRANSACTION:
        raise TransactionalIdAuthorizationError(
            "transactions are not supported; use a producer without transactional.id"
        )
    if key_type != KEY_TYPE_GROUP:
        raise InvalidRequestError(f"coordinator type {key_type} is not served; give 0, a group")
    if not key:
        raise InvalidGroupIdError("the group's name is empty; give group.id")
    chosen = parts.groups.coordinator_of(key)
    if chosen is None:
        raise CoordinatorNotAvailableError("no broker is registered at present; try again")
    return chosen.broker_id, chosen.endpoint.host, chosen.endpoint.port
