"""Handle AddPartitionsToTxn 0-5: add partitions to transactions, or verify that the transactions
include them.

Producers of transaction version 1 send versions 0-3 for one transaction: all partitions are added,
or none. Partition leaders send versions 4 and 5 for several transactions. Their answer has
the number of the transaction, counted for its transactional id. It also has the partition of
``__transaction_state`` and its leader epoch, which show the leaders whether the answering
coordinator has been replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    ClusterAuthorizationError,
    ConcurrentTransactionsError,
    InvalidTopicError,
    LogbusError,
    OperationNotAttemptedError,
    UnknownTopicOrPartitionError,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import TRANSACTION_STATE, UNNUMBERED, PartitionKey, TopicPartition
from broker_lite.security.acls import Operation
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.transactions.events import Add
from broker_lite.wire.calls.transactions import AddedPartition, AddedTopic
from broker_lite.wire.calls.verification import VerifiedPartitions, VerifiedTransaction
from broker_lite.wire.error_codes import code_in_version
from broker_lite.wire.tables import AddPartitionsToTxnResponse as Response
from broker_lite.wire.tables import build, own_tag

_Topic = Response.AddPartitionsToTxnTopicResult
_Partition = _Topic.AddPartitionsToTxnPartitionResult
BATCHED_FROM = 4
"""The first version of AddPartitionsToTxn that partition leaders send, for several transactions."""

Resolved = Mapping[TopicPartition, PartitionKey | LogbusError]
"""For each requested partition its topic id and partition number, or the error that refuses it."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Add the partitions for a producer; add or only verify them for a partition leader."""
    if request.api_version < BATCHED_FROM:
        return await _add_for_client(parts, request, message)
    request.access.check_cluster(Operation.CLUSTER_ACTION)
    if not request.may_be_broker:
        raise ClusterAuthorizationError(
            f"AddPartitionsToTxn from version {BATCHED_FROM} on is for brokers; send version 3"
        )
    rows = await asyncio.gather(
        *(_answer_broker(parts, request, row) for row in message.transactions)
    )
    return VerifiedPartitions(NO_ERROR, tuple(rows))


async def _add_for_client(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    resolved = _resolve(parts.registry.snapshot, message.v3_and_below_topics)
    for name in resolved:
        try:
            request.access.check_topic(name.topic)
        except LogbusError as error:
            resolved[name] = error
    failed = {name: key for name, key in resolved.items() if isinstance(key, LogbusError)}
    errors: dict[TopicPartition, LogbusError] = {}
    if failed:
        other = OperationNotAttemptedError(
            "the partition was not added, because another partition of the request was refused; "
            "send the request without that partition"
        )
        errors = {name: failed.get(name, other) for name in resolved}
    else:
        try:
            request.access.check_transactional_id(message.v3_and_below_transactional_id)
            result = await parts.transactions.ask(
                message.v3_and_below_transactional_id,
                Add(
                    UNNUMBERED,
                    message.v3_and_below_producer_id,
                    message.v3_and_below_producer_epoch,
                    _keys(resolved),
                    version=1,
                    connection=request.session.number,
                ),
            )
            if result.error is not None:
                raise result.error
        except LogbusError as error:
            errors = dict.fromkeys(resolved, error)
    topics: dict[str, list[Any]] = {}
    for name in resolved:
        code = code_in_version(errors.get(name), request.api_key, request.api_version)
        row = build(_Partition, partition_index=name.partition, partition_error_code=code)
        topics.setdefault(name.topic, []).append(row)
    return Response(
        results_by_topic_v3_and_below=[
            build(_Topic, name=topic, results_by_partition=rows) for topic, rows in topics.items()
        ]
    )


async def _answer_broker(
    parts: BrokerContext, request: RequestContext, row: Any
) -> VerifiedTransaction:
    """Add the partitions of one transaction for a partition leader, or only verify them.

    Each partition has its own error code in the answer."""
    resolved = _resolve(parts.registry.snapshot, row.topics)
    for name, key in resolved.items():
        if isinstance(key, UnknownTopicOrPartitionError):
            # The broker that sends this request leads the partition, so this broker's metadata will
            # have it soon. Refuse the partition until then: without the topic id, the coordinator
            # could not send markers to it.
            resolved[name] = ConcurrentTransactionsError(
                f"{name} is not in this broker's metadata yet; try again"
            )
    place: tuple[int, int, int] | tuple[()] = ()
    error: LogbusError | None = None
    missing: frozenset[PartitionKey] = frozenset()
    keys = _keys(resolved)
    try:
        if keys:
            result = await parts.transactions.ask(
                row.transactional_id,
                Add(
                    UNNUMBERED,
                    row.producer_id,
                    row.producer_epoch,
                    keys,
                    verify_only=row.verify_only,
                ),
            )
            error, missing = result.error, result.missing
            place = (result.transaction, *parts.transactions.place_of(row.transactional_id))
    except LogbusError as raised:
        error = raised
    topics: dict[str, list[AddedPartition]] = {}
    for name, key in resolved.items():
        own = key if isinstance(key, LogbusError) else error
        if missing and isinstance(key, PartitionKey) and key not in missing:
            own = None
        codes = topics.setdefault(name.topic, [])
        code = code_in_version(own, request.api_key, request.api_version)
        codes.append(AddedPartition(name.partition, code))
    rows = tuple(AddedTopic(topic, tuple(codes)) for topic, codes in topics.items())
    return VerifiedTransaction(row.transactional_id, rows, *place)


def _resolve(
    snapshot: MetadataSnapshot, topics: Iterable[Any]
) -> dict[TopicPartition, PartitionKey | LogbusError]:
    """Return for each requested partition its topic id and partition number, or the error that
    refuses it."""
    resolved: dict[TopicPartition, PartitionKey | LogbusError] = {}
    for topic in topics:
        view = snapshot.topics.get(topic.name)
        topic_id = own_tag(topic)
        is_other = view is not None and topic_id is not None and topic_id != view.topic_id
        for number in topic.partitions:
            name = TopicPartition(topic.name, number)
            if topic.name == TRANSACTION_STATE:
                resolved[name] = InvalidTopicError(
                    f"topic {topic.name!r} is internal; use another topic"
                )
            elif view is None or not 0 <= number < len(view.partitions) or is_other:
                resolved[name] = UnknownTopicOrPartitionError(
                    f"{name} does not exist; create the topic, or send to another topic"
                )
            else:
                resolved[name] = PartitionKey(view.topic_id, number)
    return resolved


def _keys(resolved: Resolved) -> frozenset[PartitionKey]:
    return frozenset(key for key in resolved.values() if isinstance(key, PartitionKey))
