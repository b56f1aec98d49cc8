"""Handle TxnOffsetCommit 0-5: store a group's offsets as *pending* until the transaction ends.

From version 3 on, the request names the group member and its generation (KIP-447). From version 5
on, the broker adds the group to the transaction; older producers add it with AddOffsetsToTxn. A
logbus client sends each topic's id in a tagged field, as in OffsetCommit."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import LogbusError
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.coordinators.group_transactions import GroupCommit
from broker_lite.server.handlers.offset_rows import OffsetRows
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.error_codes import code_in_version
from broker_lite.wire.tables import TxnOffsetCommitResponse as Response

_Topic = Response.TxnOffsetCommitResponseTopic

ADDS_GROUP_FROM = 5
"""The first version of TxnOffsetCommit in which the broker adds the group to the transaction."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Store the offset of each partition until the transaction ends, even if other offsets are
    refused."""
    access = request.access

    def check_access(topic: str) -> None:
        access.check_transactional_id(message.transactional_id)
        access.check_group(message.group_id)
        access.check_topic(topic)

    rows = OffsetRows.checked(parts, message, check_access)
    commit = GroupCommit(
        message.group_id,
        message.transactional_id,
        message.producer_id,
        message.producer_epoch,
        request.api_version >= ADDS_GROUP_FROM,
        message.member_id,
        message.group_instance_id,
        message.generation_id,
        rows.offsets,
    )
    if rows.offsets:
        try:
            rows.stored(await parts.group_transactions.commit(commit))
        except LogbusError as error:
            rows.failed(code_in_version(error, request.api_key, request.api_version))
    return Response(topics=rows.answer(_Topic, _Topic.TxnOffsetCommitResponsePartition))
