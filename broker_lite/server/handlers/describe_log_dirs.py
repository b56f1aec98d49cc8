"""Handle DescribeLogDirs 1-4: return the sizes of this broker's replicas and of its file system.

A broker has one data directory, so it has no future replicas, which move between directories, and
``offset_lag`` is always 0. A failed directory has KAFKA_STORAGE_ERROR. Without permission, no
directory is listed, from version 3 on with CLUSTER_AUTHORIZATION_FAILED. A tagged field of logbus
asks for this broker's state too."""

from __future__ import annotations

from typing import Any

from broker_lite import __version__
from broker_lite.errors import NO_ERROR, ClusterAuthorizationError, StorageError
from broker_lite.security.acls import CLUSTER_NAME, Operation, ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.log_dirs import TAG_STATE, BrokerState, encode_state
from broker_lite.wire.tables import DescribeLogDirsResponse as Response
from broker_lite.wire.tables import build, own_tag, set_own_tag

_Result = Response.DescribeLogDirsResult
_Topic = _Result.DescribeLogDirsTopic
_Partition = _Topic.DescribeLogDirsPartition


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Return the sizes of the requested partitions on this broker; with ``topics`` null, of all."""
    requested = None
    if not request.access.may(Operation.DESCRIBE, ResourceKind.CLUSTER, CLUSTER_NAME):
        return Response(error_code=ClusterAuthorizationError.code, results=[])
    if message.topics is not None:
        requested = {(row.topic, index) for row in message.topics for index in row.partitions}
    topics: dict[str, list[Any]] = {}
    # The web console often asks for the state of the broker only, with an empty list of topics. Do
    # not compute the sizes of all replicas for such a request.
    for replica in parts.replicas.replicas if requested is None or requested else ():
        if requested is None or (replica.topic, replica.partition) in requested:
            row = build(
                _Partition,
                partition_index=replica.partition,
                partition_size=replica.log.reader.size_bytes,
                offset_lag=0,
                is_future_key=False,
            )
            topics.setdefault(replica.topic, []).append(row)
    total, usable = parts.logs.data.space()
    result = build(
        _Result,
        error_code=StorageError.code if parts.logs.data.failed else NO_ERROR,
        log_dir=parts.logs.data.path,
        topics=[build(_Topic, name=name, partitions=rows) for name, rows in topics.items()],
        total_bytes=total,
        usable_bytes=usable,
    )
    answer = Response(results=[result])
    if own_tag(message):
        age_ms = int(parts.registry.metadata_age_s * 1000)
        unreadable = tuple(parts.registry.unreadable_znodes)
        state = BrokerState(__version__, age_ms, parts.logs.data.is_full, unreadable)
        set_own_tag(answer, TAG_STATE, encode_state(state))
    return answer
