"""Operations (generators that yield requests) that look up log offsets by time or by number of
bytes, and the times of records. See ``requests`` for their retries."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from broker_lite.client.operations.bounds import check_offsets, check_times
from broker_lite.client.operations.cluster import Cluster, group_by_topic
from broker_lite.client.operations.requests import (
    PerPartition,
    per_partition,
    raise_first,
    with_missing,
)
from broker_lite.client.transport.steps import CallExchange, Exchange, Operation
from broker_lite.errors import (
    CorruptMessageError,
    InvalidConfigError,
    LogbusError,
    OffsetOutOfRangeError,
    UnsupportedVersionError,
    error_for,
)
from broker_lite.model import EARLIEST_TIMESTAMP, ListedOffset, LogBounds, TopicPartition
from broker_lite.wire.calls import offsets

ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
ANY_TOPIC: Mapping[str, str] = MappingProxyType({})


def isolation_code(level: str) -> int:
    """Return an isolation level's number. Raises InvalidConfigError for an unknown level."""
    if level not in ISOLATION_LEVELS:
        raise InvalidConfigError(
            f"isolation.level={level!r}: give one of {', '.join(ISOLATION_LEVELS)}"
        )
    return ISOLATION_LEVELS[level]


def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    deadline_ms: float,
    *,
    isolation_level: int,
) -> Operation[PerPartition[ListedOffset]]:
    """Return each partition's offset of the first record at or after a timestamp (ms since 1970).

    -1 stands for the log's end, -2 for its start, -3 for the record with the newest timestamp. See
    ``Admin.list_offsets``."""
    check_times(timestamps)

    def make(group: list[TopicPartition]) -> Exchange[Any]:
        topics = tuple(
            offsets.ListOffsetsTopic(
                name,
                tuple(
                    offsets.ListOffsetsPartition(
                        tp.partition, cluster.view.leader_epoch(tp), timestamps[tp]
                    )
                    for tp in rows
                ),
            )
            for name, rows in group_by_topic(group).items()
        )
        return CallExchange(offsets.ListOffsetsRequest(topics, isolation_level=isolation_level))

    def read(
        answer: offsets.ListOffsetsResponse, group: list[TopicPartition]
    ) -> PerPartition[ListedOffset]:
        offsets_by_tp: PerPartition[ListedOffset] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                offsets_by_tp[tp] = (
                    error_for(row.error_code)
                    if row.error_code
                    else ListedOffset(row.offset, row.timestamp, row.leader_epoch)
                )
        return with_missing(offsets_by_tp, group)

    return per_partition(cluster, timestamps, make, read, deadline_ms)


def offsets_for_bytes(
    cluster: Cluster,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    deadline_ms: float,
    topic_ids: Mapping[str, str] = ANY_TOPIC,
) -> Operation[PerPartition[tuple[int, int]]]:
    """Return where an offset range with about a given number of stored bytes ends.

    ``ranges`` has (start offset, number of bytes) for each partition; the result has (end offset,
    bytes of the range). The end is a batch boundary. ``topic_ids`` has the ids that topics must
    have; a topic without an entry may have any."""
    check_offsets({tp: start for tp, (start, _) in ranges.items()})
    answers = yield from _offsets_for_bytes(cluster, ranges, deadline_ms, topic_ids)
    return {
        tp: row if isinstance(row, LogbusError) else (row.end_offset, row.size_bytes)
        for tp, row in answers.items()
    }


def offset_after_corrupt(
    cluster: Cluster, tp: TopicPartition, offset: int, topic_id: str, deadline_ms: float
) -> Operation[int]:
    """Return the offset of the batch after the corrupt batch at ``offset``.

    The leader finds it in its offset index. Raises CorruptMessageError if no batch follows."""
    ranges = {tp: (offset, 1)}
    ends = yield from offsets_for_bytes(cluster, ranges, deadline_ms, {tp.topic: topic_id})
    next_offset = raise_first(ends)[tp][0]
    if next_offset <= offset:
        raise CorruptMessageError(
            f"topic {tp.topic!r} partition {tp.partition} offset {offset}: the batch is corrupt, "
            "and no batch follows it"
        )
    return next_offset


def log_bounds(
    cluster: Cluster,
    topic_ids: Mapping[TopicPartition, str],
    max_bytes: int,
    deadline_ms: float,
    *,
    isolation_level: int,
) -> Operation[PerPartition[LogBounds]]:
    """Return each log's start and end offset, and the offset at which its first ``max_bytes`` bytes
    end.

    Each leader receives one request. A leader with an older logbus, which cannot return these
    bounds, gives its partitions UnsupportedVersionError."""
    answers = yield from _offsets_for_bytes(
        cluster,
        dict.fromkeys(topic_ids, (EARLIEST_TIMESTAMP, max_bytes)),
        deadline_ms,
        {tp.topic: topic_id for tp, topic_id in topic_ids.items()},
        isolation_level,
    )
    return {tp: _bounds(tp, row) for tp, row in answers.items()}


def _bounds(tp: TopicPartition, row: offsets.BytesAnswer | LogbusError) -> LogBounds | LogbusError:
    if isinstance(row, OffsetOutOfRangeError):
        # The request asks for offset -2 (EARLIEST_TIMESTAMP), which stands for the start of the
        # log. Only a broker too old to know this answers "out of range", so report the old version.
        return UnsupportedVersionError(
            f"the leader of {tp} cannot return the bounds of a log in one request; "
            "upgrade the brokers"
        )
    if isinstance(row, LogbusError):
        return row
    return LogBounds(row.start_offset, row.latest_offset, row.end_offset, row.size_bytes)


def _offsets_for_bytes(
    cluster: Cluster,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    deadline_ms: float,
    topic_ids: Mapping[str, str],
    isolation_level: int | None = None,
) -> Operation[PerPartition[offsets.BytesAnswer]]:
    def topic_id(name: str) -> str:
        return topic_ids.get(name) or cluster.view.topic_id(name)

    def make(group: list[TopicPartition]) -> Exchange[Any]:
        return CallExchange(
            offsets.OffsetsForBytesRequest(
                tuple(
                    offsets.BytesPartition(topic_id(tp.topic), tp.partition, *ranges[tp])
                    for tp in group
                ),
                isolation_level,
            )
        )

    def read(
        answer: offsets.OffsetsForBytesResponse, group: list[TopicPartition]
    ) -> PerPartition[offsets.BytesAnswer]:
        answers: PerPartition[offsets.BytesAnswer] = {}
        for tp, row in zip(group, answer.answers):
            answers[tp] = error_for(row.error_code) if row.error_code else row
        return with_missing(answers, group)

    return per_partition(cluster, ranges, make, read, deadline_ms)


def record_times(
    cluster: Cluster, after: Mapping[TopicPartition, int], deadline_ms: float
) -> Operation[PerPartition[ListedOffset]]:
    """Return each partition's offset and time (ms since 1970) of the first record from the given
    offset on.

    The offset is -1 if there is no such record yet."""
    times = yield from record_times_of_many(
        cluster, {tp: (offset,) for tp, offset in after.items()}, deadline_ms
    )
    return {tp: rows if isinstance(rows, LogbusError) else rows[0] for tp, rows in times.items()}


def record_times_of_many(
    cluster: Cluster, after: Mapping[TopicPartition, Sequence[int]], deadline_ms: float
) -> Operation[PerPartition[tuple[ListedOffset, ...]]]:
    """Return the results of ``record_times`` for several offsets of each partition, in their order.

    If the lookup of one offset fails, the result of the whole partition is the error."""
    for tp, offsets_asked in after.items():
        for offset in offsets_asked:
            check_offsets({tp: offset})

    def make(group: list[TopicPartition]) -> Exchange[Any]:
        return CallExchange(
            offsets.RecordTimesRequest(
                tuple(
                    offsets.TimePartition(cluster.view.topic_id(tp.topic), tp.partition, offset)
                    for tp in group
                    for offset in after[tp]
                )
            )
        )

    def read(
        answer: offsets.RecordTimesResponse, group: list[TopicPartition]
    ) -> PerPartition[tuple[ListedOffset, ...]]:
        times: PerPartition[tuple[ListedOffset, ...]] = {}
        rows = iter(answer.answers)
        for tp in group:
            own = list(itertools.islice(rows, len(after[tp])))
            if len(own) < len(after[tp]):
                break
            failed = next((row for row in own if row.error_code), None)
            times[tp] = (
                error_for(failed.error_code)
                if failed is not None
                else tuple(ListedOffset(row.offset, row.timestamp) for row in own)
            )
        return with_missing(times, group)

    return per_partition(cluster, after, make, read, deadline_ms)
