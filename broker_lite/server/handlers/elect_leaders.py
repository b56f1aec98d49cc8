"""Handle ElectLeaders 0-2: elect preferred leaders, or leaders outside the ISR (*unclean*).

The controller serves the request. Version 0 elects only preferred leaders and has no error for the
whole request, so such an error is repeated for each partition. If a request selects all partitions,
the answer lists only those that needed an election."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from broker_lite.errors import NO_ERROR, InvalidRequestError, LogbusError, wire_code
from broker_lite.model import TopicPartition
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.replicas import ELECTION_PREFERRED, ELECTION_UNCLEAN
from broker_lite.wire.tables import ElectLeadersResponse as Response
from broker_lite.wire.tables import build, error_fields

_Topic = Response.ReplicaElectionResult
_Partition = _Topic.PartitionResult

ERROR_FROM = 1
"""The first version of ElectLeaders whose answer has an error for the whole request."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Elect leaders of the requested partitions. Each partition has its own error in the answer."""
    requested: list[TopicPartition] | None = None
    if message.topic_partitions is not None:
        requested = [
            TopicPartition(row.topic, partition)
            for row in message.topic_partitions
            for partition in row.partitions
        ]
    try:
        outcomes = await _elect(parts, request, message, requested)
    except LogbusError as error:
        if request.api_version >= ERROR_FROM:
            return Response(error_code=wire_code(error), replica_election_results=[])
        outcomes = dict.fromkeys(requested or (), error)
    return Response(error_code=NO_ERROR, replica_election_results=_rows(outcomes))


async def _elect(
    parts: BrokerContext,
    request: RequestContext,
    message: Any,
    requested: Collection[TopicPartition] | None,
) -> Mapping[TopicPartition, LogbusError | None]:
    kind = message.election_type if request.api_version >= ERROR_FROM else ELECTION_PREFERRED
    if kind not in (ELECTION_PREFERRED, ELECTION_UNCLEAN):
        raise InvalidRequestError(f"election type {kind}: give 0 (preferred) or 1 (unclean)")
    work = parts.registry.administration.elect_leaders(requested, unclean=kind == ELECTION_UNCLEAN)
    return await within(message.timeout_ms, work)


def _rows(outcomes: Mapping[TopicPartition, LogbusError | None]) -> list[Any]:
    topics: dict[str, list[Any]] = {}
    for tp, error in outcomes.items():
        row = build(
            _Partition,
            partition_id=tp.partition,
            **error_fields(error),
        )
        topics.setdefault(tp.topic, []).append(row)
    return [build(_Topic, topic=name, partition_result=rows) for name, rows in topics.items()]
