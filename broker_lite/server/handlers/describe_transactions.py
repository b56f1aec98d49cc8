"""Handle DescribeTransactions 0: return state, producer and partitions of transactional ids.

The id's transaction coordinator serves the request. As in Kafka, partitions are listed only while
the transaction is open, without those of deleted topics. A tagged field of logbus adds each id's
transaction version, with which an administrator finds the outcome of a hanging transaction."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import LogbusError, wire_code
from broker_lite.model import NO_EPOCH, NO_PRODUCER, NO_TIMESTAMP
from broker_lite.security.acls import ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.access import Access
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.transaction_admin import TAG_VERSIONS
from broker_lite.wire.tables import DescribeTransactionsResponse as Response
from broker_lite.wire.tables import build, set_own_tag

_State = Response.TransactionState
_Topic = _State.TopicData


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Describe the transactional ids. Each id has its own error in the answer."""
    rows = [
        _describe(parts, request.access, name) for name in dict.fromkeys(message.transactional_ids)
    ]
    response = Response(transaction_states=[row for row, _ in rows])
    set_own_tag(response, TAG_VERSIONS, bytes(version for _, version in rows))
    return response


def _describe(parts: BrokerContext, access: Access, name: str) -> tuple[Any, int]:
    """Return the description of a transactional id, and its transaction version (0 on error)."""
    try:
        access.check_transactional_id(name)
        view = parts.transactions.describe(name)
    except LogbusError as error:
        refusal = build(
            _State,
            error_code=wire_code(error),
            transactional_id=name,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=NO_TIMESTAMP,
            producer_id=NO_PRODUCER,
            producer_epoch=NO_EPOCH,
            topics=[],
        )
        return refusal, 0
    record = view.record
    names = parts.registry.snapshot.topics_by_id
    topics: dict[str, list[int]] = {}
    for key in sorted(record.partitions):
        if key.topic_id in names:
            topics.setdefault(names[key.topic_id].name, []).append(key.partition)
    visible = access.visible(ResourceKind.TOPIC, topics)
    found = build(
        _State,
        transactional_id=name,
        transaction_state=view.state.label,
        transaction_timeout_ms=record.timeout_ms,
        transaction_start_time_ms=record.start_ms if record.is_open else NO_TIMESTAMP,
        producer_id=record.producer_id,
        producer_epoch=record.epoch,
        topics=[build(_Topic, topic=topic, partitions=topics[topic]) for topic in visible],
    )
    return found, record.version
