"""Handle AddOffsetsToTxn 0-4: add a consumer group to the transaction of a transactional id.

A producer of transaction version 1 sends this request before its first TxnOffsetCommit. A group
coordinator sends it too, with a tagged field of logbus: for a producer of version 1 to verify that
the transaction includes the group, for one of version 2 to add the group (KIP-890)."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import NO_ERROR, InvalidGroupIdError, LogbusError
from broker_lite.model import UNNUMBERED
from broker_lite.security.acls import Operation
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.transactions.effects import TransactionResult
from broker_lite.transactions.events import Add
from broker_lite.wire.calls.group_transactions import AddGroupResponse
from broker_lite.wire.error_codes import code_in_version
from broker_lite.wire.tables import AddOffsetsToTxnResponse as Response
from broker_lite.wire.tables import own_tag


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Add the group to the transaction, or only verify, if a group coordinator asks, that it has
    the group."""
    verify_only = own_tag(message)
    is_broker = verify_only is not None and request.may_be_broker
    try:
        result = await _add(parts, request, message, verify_only if is_broker else None)
    except LogbusError as error:
        code = code_in_version(error, request.api_key, request.api_version)
        return AddGroupResponse(code) if is_broker else Response(error_code=code)
    if not is_broker:
        return Response(error_code=NO_ERROR)
    place = parts.transactions.place_of(message.transactional_id)
    return AddGroupResponse(NO_ERROR, result.transaction, *place)


async def _add(
    parts: BrokerContext, request: RequestContext, message: Any, verify_only: bool | None
) -> TransactionResult:
    """Add the group to the transaction, or only verify that the transaction includes it.

    ``verify_only`` is None in a client's request; a group coordinator sets it."""
    is_client = verify_only is None
    if is_client:
        request.access.check_transactional_id(message.transactional_id)
        request.access.check_group(message.group_id)
    else:
        request.access.check_cluster(Operation.CLUSTER_ACTION)
    if not message.group_id:
        raise InvalidGroupIdError("the group id is empty; set group.id in the client")
    result = await parts.transactions.ask(
        message.transactional_id,
        Add(
            UNNUMBERED,
            message.producer_id,
            message.producer_epoch,
            groups=frozenset((message.group_id,)),
            version=1 if is_client else 2,
            verify_only=bool(verify_only),
            connection=request.session.number if is_client else None,
        ),
    )
    if result.error is not None:
        raise result.error
    return result
