"""Handle TxnOffsetCommit 0-5: store a group's offsets as pending until their transaction ends.

From version 3 on, the request names the group member and its generation (KIP-447). From version 5
on, the broker adds the group to the transaction. Producers that use older versions add it with
AddOffsetsToTxn. A logbus client sends each topic's id in a tagged field, as in OffsetCommit.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    InvalidTxnStateError,
    LogbusError,
    TransactionAbortableError,
    wire_code,
)
from broker_lite.model import NULL_TOPIC_ID, CommittedOffset, TopicPartition
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.coordinators.group_transactions import GroupCommit
from broker_lite.server.handlers.offset_commit import checked_offset
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import TxnOffsetCommitResponse as Response
from broker_lite.wire.tables import build, own_tag

_Topic = Response.TxnOffsetCommitResponseTopic
_Partition = _Topic.TxnOffsetCommitResponsePartition

ABORTABLE_FROM = 4
"""First version whose clients know TRANSACTION_ABORTABLE."""
ADDS_GROUP_FROM = 5
"""First version in which the broker adds the group to the transaction."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Store the offset of each partition as pending. The offsets of other partitions are stored
    even if some partitions are refused.
    """
    refused: dict[tuple[TopicPartition, str], int] = {}
    codes: dict[TopicPartition, int] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    access = request.access
    for topic in message.topics:
        topic_id = own_tag(topic) or NULL_TOPIC_ID
        for row in topic.partitions:
            key = TopicPartition(topic.name, row.partition_index)
            try:
                access.check_transactional_id(message.transactional_id)
                access.check_group(message.group_id)
                access.check_topic(topic.name)
                offsets[key] = checked_offset(parts, key, row, topic_id)
            except LogbusError as error:
                refused[key, topic_id] = wire_code(error)
    commit = GroupCommit(
        message.group_id,
        message.transactional_id,
        message.producer_id,
        message.producer_epoch,
        request.api_version >= ADDS_GROUP_FROM,
        message.member_id,
        message.group_instance_id,
        message.generation_id,
        offsets,
    )
    if offsets:
        try:
            results = await parts.group_transactions.commit(commit)
        except LogbusError as error:
            codes = dict.fromkeys(offsets, _code(error, request.api_version))
        else:
            for key, failure in results.items():
                codes[key] = NO_ERROR if failure is None else wire_code(failure)

    def answer(topic: Any, row: Any) -> Any:
        key = TopicPartition(topic.name, row.partition_index)
        code = refused.get((key, own_tag(topic) or NULL_TOPIC_ID)) or codes[key]
        return build(_Partition, partition_index=row.partition_index, error_code=code)

    return Response(
        topics=[
            build(
                _Topic, name=topic.name, partitions=[answer(topic, row) for row in topic.partitions]
            )
            for topic in message.topics
        ]
    )


def _code(error: LogbusError, version: int) -> int:
    """Return the error's code. Replace a code that clients of this API version do not know."""
    if isinstance(error, TransactionAbortableError) and version < ABORTABLE_FROM:
        return InvalidTxnStateError.code
    return wire_code(error)
