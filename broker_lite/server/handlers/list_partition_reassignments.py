"""Handle ListPartitionReassignments 0: list the partitions that are being reassigned.

Any broker answers from its metadata snapshot. ``replicas`` has both the old and the new
replicas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker_lite.errors import NO_ERROR
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import PartitionView
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import ListPartitionReassignmentsResponse as Response
from broker_lite.wire.tables import build

_Topic = Response.OngoingTopicReassignment
_Partition = _Topic.OngoingPartitionReassignment


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Answer from the metadata snapshot, without a read of ZooKeeper."""
    snapshot = parts.registry.snapshot
    if message.topics is None:
        requested: Iterable[tuple[str, Iterable[int] | None]] = [(t, None) for t in snapshot.topics]
    else:
        requested = [(row.name, row.partition_indexes) for row in message.topics]
    topics = []
    for name, partitions in requested:
        rows = [_row(view) for view in _reassigning(snapshot, name, partitions)]
        if rows:
            topics.append(build(_Topic, name=name, partitions=rows))
    return Response(error_code=NO_ERROR, error_message=None, topics=topics)


def _reassigning(
    snapshot: MetadataSnapshot, name: str, partitions: Iterable[int] | None
) -> list[PartitionView]:
    topic = snapshot.topics.get(name)
    if topic is None:
        return []
    views = topic.partitions if partitions is None else map(topic.partition, partitions)
    return [view for view in views if view is not None and view.is_reassigning]


def _row(view: PartitionView) -> Any:
    return build(
        _Partition,
        partition_index=view.partition,
        replicas=list(view.replicas),
        adding_replicas=list(view.adding),
        removing_replicas=list(view.removing),
    )
