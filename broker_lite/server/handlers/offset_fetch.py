"""Handle OffsetFetch 1-8: read committed offsets of groups from ZooKeeper, on any broker.

Version 8 names several groups. As in Kafka, a requested partition without an offset has offset -1.
With ``require_stable``, a partition for which an open transaction has a pending offset gets
UNSTABLE_OFFSET_COMMIT. A logbus client asks for topic ids and commit times with a tagged field; for
an offset of a deleted topic of the same name, the answer has the deleted topic's id and offset
-1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    LogbusError,
    TopicAuthorizationError,
    UnstableOffsetCommitError,
    wire_code,
)
from broker_lite.metadata.loader import gather
from broker_lite.model import NO_OFFSET, CommittedOffset, TopicPartition
from broker_lite.security.acls import ResourceKind
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.access import Access
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls import groups as own
from broker_lite.wire.tables import OffsetFetchResponse as Response
from broker_lite.wire.tables import build, own_tag

_Group = Response.OffsetFetchResponseGroup
_OldTopic = Response.OffsetFetchResponseTopic
_Topic = _Group.OffsetFetchResponseTopics

BATCHED_FROM = 8
"""The first version of OffsetFetch whose requests name several groups."""
GROUPS_AT_ONCE = 30
"""Maximum number of groups of one request that are read from ZooKeeper at the same time."""
NONE = CommittedOffset(NO_OFFSET)
"""The answer for a partition without a committed offset."""

FoundRow = tuple[CommittedOffset, int]
"""A partition's committed offset and error code."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Read the offsets of each group. Each group has its own error in the answer, and one row even
    if the request repeats it."""
    is_stable = message.require_stable
    if request.api_version >= BATCHED_FROM:
        is_own = own_tag(message)
        requested = {row.group_id: row.topics for row in message.groups}
        read = [
            _read(
                parts,
                request.access,
                group,
                topics,
                is_stable=is_stable,
                with_former=is_own,
            )
            for group, topics in requested.items()
        ]
        found = await gather(read, GROUPS_AT_ONCE)
        rows = [
            (group, code, offsets) for group, (code, offsets) in zip(requested, found, strict=True)
        ]
        if is_own:
            return own.OffsetFetchResponse(0, tuple(_own_group(*row) for row in rows))
        kind = _Topic.OffsetFetchResponsePartitions
        return Response(
            groups=[
                build(
                    _Group,
                    group_id=group,
                    topics=_rows(_Topic, kind, offsets, NO_ERROR),
                    error_code=code,
                )
                for group, code, offsets in rows
            ]
        )
    code, offsets = await _read(
        parts, request.access, message.group_id, message.topics, is_stable=is_stable
    )
    topics = _rows(_OldTopic, _OldTopic.OffsetFetchResponsePartition, offsets, code)
    return Response(topics=topics, error_code=code)


async def _read(
    parts: BrokerContext,
    access: Access,
    group: str,
    topics: Any,
    *,
    is_stable: bool,
    with_former: bool = False,
) -> tuple[int, Mapping[TopicPartition, FoundRow]]:
    """Return the group's error code, and the offsets of the requested partitions.

    ``topics`` None means all topics that the client may describe. With ``is_stable``, partitions
    with pending offsets get an error. With ``with_former``, an offset that belongs to a deleted
    topic of the same name is returned as -1 with the deleted topic's id."""
    requested = None
    if topics is not None:
        requested = [TopicPartition(t.name, index) for t in topics for index in t.partition_indexes]
    code = NO_ERROR
    offset_rows: dict[TopicPartition, FoundRow] = {}
    try:
        access.check_group(group)
        if is_stable:
            offsets, unstable = await parts.registry.groups.fetch_stable(
                group, requested, with_former=with_former
            )
            offset_rows = dict.fromkeys(unstable, (NONE, UnstableOffsetCommitError.code))
        else:
            offsets = await parts.registry.groups.fetch(group, requested, with_former=with_former)
        offset_rows |= {key: (offset, NO_ERROR) for key, offset in offsets.items()}
    except LogbusError as error:
        code = wire_code(error)
    names = dict.fromkeys(key.topic for key in (offset_rows if requested is None else requested))
    if code == NO_ERROR:
        visible = frozenset(access.visible(ResourceKind.TOPIC, names))
        if requested is None:
            return code, {key: row for key, row in offset_rows.items() if key.topic in visible}
        denied = TopicAuthorizationError.code
        offset_rows |= {key: (NONE, denied) for key in requested if key.topic not in visible}
    if requested is not None:
        offset_rows = {key: offset_rows.get(key, (NONE, NO_ERROR)) for key in requested}
    return code, offset_rows


def _rows(
    topic_kind: Any, kind: Any, offsets: Mapping[TopicPartition, FoundRow], code: int
) -> list[Any]:
    topics: dict[str, list[Any]] = {}
    for key, (committed, error_code) in offsets.items():
        row = build(
            kind,
            partition_index=key.partition,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            error_code=code or error_code,
        )
        topics.setdefault(key.topic, []).append(row)
    return [build(topic_kind, name=name, partitions=rows) for name, rows in topics.items()]


def _own_group(
    group: str, code: int, offsets: Mapping[TopicPartition, FoundRow]
) -> own.FetchedOffsetsGroup:
    topics: dict[str, list[own.FetchedOffset]] = {}
    for key, (committed, error_code) in offsets.items():
        topics.setdefault(key.topic, []).append(
            own.FetchedOffset(
                key.partition,
                committed.offset,
                committed.leader_epoch,
                committed.metadata,
                error_code,
                committed.topic_id,
                committed.commit_ms,
            )
        )
    rows = [own.FetchedOffsetsTopic(name, tuple(each)) for name, each in topics.items()]
    return own.FetchedOffsetsGroup(group, tuple(rows), code)
