"""Handle WriteTxnMarkers 1-2: append transaction markers to the partitions that this broker leads.

Transaction coordinators send the request; ``kafka-transactions.sh`` sends it to abort a hanging
transaction. All markers of one partition are appended together; the answer waits until they are
committed. A marker that the log already has is not appended again, and succeeds."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from broker_lite.errors import NO_ERROR, LogbusError, wire_code
from broker_lite.model import NO_TRANSACTION
from broker_lite.record.control import Marker
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import WriteTxnMarkersResponse as Response
from broker_lite.wire.tables import build, own_tag

_Result = Response.WritableTxnMarkerResult
_Topic = _Result.WritableTxnMarkerTopicResult
_Partition = _Topic.WritableTxnMarkerPartitionResult

PARTITIONS_PER_TURN = 200
"""Maximum number of appends started in one iteration of the event loop; all take about 5 ms."""
TIMEOUT_MS = 30_000
"""Milliseconds after which an append without confirmation by the ISR fails; the sender retries."""
BUMPS_EPOCH_SINCE = 2
"""The first transaction version (KIP-890) whose markers carry the transaction's epoch plus one."""


class _Requested(NamedTuple):
    """A requested marker for one partition. ``position`` is its index in the request."""

    position: int
    marker: Marker


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Append the transaction markers. Each partition of a marker has its own error code."""
    requested: dict[tuple[str, int], list[_Requested]] = {}
    codes: dict[tuple[int, str, int], int] = {}
    for index, row in enumerate(message.markers):
        marker, fenced = _marker(row, request.api_version), _fenced(parts, row)
        for topic in row.topics:
            for partition in topic.partition_indexes:
                if fenced:
                    codes[index, topic.name, partition] = fenced
                else:
                    requested.setdefault((topic.name, partition), []).append(
                        _Requested(index, marker)
                    )
    deadline_ms = request.deadline_ms(TIMEOUT_MS)
    appends = []
    for (topic_name, partition), rows in requested.items():
        append = _append(parts, topic_name, partition, rows, deadline_ms)
        appends.append(asyncio.ensure_future(append))
        if len(appends) % PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)
    for (at, rows), partition_codes in zip(requested.items(), await asyncio.gather(*appends)):
        codes.update(((row.position, *at), code) for row, code in zip(rows, partition_codes))
    return Response(markers=[_answer(i, row, codes) for i, row in enumerate(message.markers)])


def _fenced(parts: BrokerContext, row: Any) -> int:
    """Return an error code if the coordinator that sent the marker has been replaced, else 0.

    Markers from Kafka's tools name no partition of ``__transaction_state``, so they are never
    fenced."""
    _, state_partition = own_tag(row) or (NO_TRANSACTION, -1)
    try:
        if state_partition >= 0:
            parts.coordinator_epochs.check(state_partition, row.coordinator_epoch)
    except LogbusError as error:
        return wire_code(error)
    return NO_ERROR


def _marker(row: Any, version: int) -> Marker:
    number, _ = own_tag(row) or (NO_TRANSACTION, -1)
    raises_epoch = version >= 2 and row.transaction_version >= BUMPS_EPOCH_SINCE
    return Marker(
        row.producer_id,
        row.producer_epoch,
        row.coordinator_epoch,
        row.transaction_result,
        raises_epoch,
        number,
    )


async def _append(
    parts: BrokerContext, topic: str, partition: int, rows: list[_Requested], deadline_ms: int
) -> list[int]:
    """Append the markers to one partition. Return the error code of each marker."""
    try:
        replica = parts.replicas.find(topic, partition)
        replica.check_leader()
        errors = await parts.replicas.append_markers(
            replica, [row.marker for row in rows], deadline_ms
        )
    except LogbusError as error:
        return [wire_code(error)] * len(rows)
    return [wire_code(error) for error in errors]


def _answer(index: int, row: Any, codes: dict[tuple[int, str, int], int]) -> Any:
    topics = [
        build(
            _Topic,
            name=topic.name,
            partitions=[
                build(
                    _Partition,
                    partition_index=partition,
                    error_code=codes[index, topic.name, partition],
                )
                for partition in topic.partition_indexes
            ],
        )
        for topic in row.topics
    ]
    return build(_Result, producer_id=row.producer_id, topics=topics)
