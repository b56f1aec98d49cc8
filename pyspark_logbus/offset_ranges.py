"""Compute the offset ranges of a batch, from the source offsets of its start and its end.

``split_ranges`` splits ranges as Spark's Kafka source does. ``join_ranges`` gives a task several
ranges. The module runs on the driver and does no I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from broker_lite.model import Endpoint, OffsetAndEpoch, TopicPartition
from pyspark_logbus.offsets import SourceOffset, TopicOffsets


class OffsetRange(NamedTuple):
    """A range of offsets of one partition, from ``start`` to ``end`` (exclusive), with the
    partition's leader.

    ``start_epoch`` is the partition's leader epoch at the time when ``start`` was the log's end, or
    -1 if it is unknown. If the record before ``start`` has a later epoch, the log was truncated and
    written again, so records were lost. ``end_epoch`` is the leader epoch when ``end`` was the
    log's end. ``stored_bytes`` estimates the size of the range in the log; -1 means unknown.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    leader_epoch: int = -1
    leader: Endpoint | None = None
    start_epoch: int = -1
    end_epoch: int = -1
    stored_bytes: int = -1

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """The current log ends of a topic with their leader epochs. An end is -1 if the leader has not
    answered yet.

    An end is the last stable offset under ``read_committed``, else the high watermark.
    ``transactions`` has, for each partition with transactions, the first offset that may belong to
    a transaction.
    """

    topic_id: str
    ends: Mapping[int, OffsetAndEpoch]
    transactions: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Live:
    """The current log ends of all topics of a source. ``version`` increases with every change of an
    end or topic."""

    cluster_id: str
    topics: Mapping[str, LiveTopic] = field(default_factory=dict)
    version: int = 0

    def offset(self) -> SourceOffset:
        """Return the log ends of all partitions as a source offset. An unknown log end is -1."""
        topics = {name: TopicOffsets(t.topic_id, t.ends) for name, t in self.topics.items()}
        return SourceOffset(self.cluster_id, topics)

    def is_complete(self) -> bool:
        """Return whether the log end of every partition is known: each leader has answered."""
        return all(end.offset >= 0 for topic in self.topics.values() for end in topic.ends.values())


def existing_topics(start: SourceOffset, live: Live) -> SourceOffset:
    """Return ``start`` without deleted or recreated topics; the object ``start`` itself if it has
    none."""
    topics = {
        name: topic
        for name, topic in start.topics.items()
        if (now := live.topics.get(name)) is not None and now.topic_id == topic.topic_id
    }
    return start if len(topics) == len(start.topics) else replace(start, topics=topics)


def starts_in(start: SourceOffset, topic: str, topic_id: str, number: int) -> int | None:
    """Return the offset that ``start`` has for partition ``number`` of a topic. Return None if
    ``start`` lacks the partition, or has the topic with another id."""
    at = _start_of(start, topic, topic_id, number)
    return None if at is None else at.offset


def _start_of(start: SourceOffset, topic: str, topic_id: str, number: int) -> OffsetAndEpoch | None:
    known = start.topics.get(topic)
    return known.partitions.get(number) if known and known.topic_id == topic_id else None


def ranges_between(
    start: SourceOffset, end: SourceOffset, new_partitions: str = "earliest"
) -> list[OffsetRange]:
    """Return the non-empty ranges of a batch, ordered by topic and partition.

    If ``end`` has ``begin``, the start of a query's first batch, it replaces ``start``. A partition
    that is new in ``end`` starts at offset 0. With ``newPartitionOffsets=latest`` it starts at its
    own end, so its range is empty.
    """
    start = end.batch_start(start)
    ranges = []
    for name in sorted(end.topics):
        topic = end.topics[name]
        for number in sorted(topic.partitions):
            to = topic.partitions[number]
            at = _start_of(start, name, topic.topic_id, number)
            if at is None:
                at = OffsetAndEpoch(to.offset if new_partitions == "latest" else 0)
            if at.offset < to.offset:
                ranges.append(
                    OffsetRange(
                        name,
                        number,
                        at.offset,
                        to.offset,
                        topic.topic_id,
                        to.leader_epoch,
                        start_epoch=at.leader_epoch,
                        end_epoch=to.leader_epoch,
                    )
                )
    return ranges


def has_transactions(
    start: SourceOffset, end: SourceOffset, live: Live, new_partitions: str = "earliest"
) -> bool:
    """Return whether the offsets of a batch may include transaction markers or aborted records,
    which are not rows."""
    known = {name: topic.transactions for name, topic in live.topics.items() if topic.transactions}
    return bool(known) and any(
        item.end > known.get(item.topic, {}).get(item.partition, item.end)
        for item in ranges_between(start, end, new_partitions)
    )


def split_ranges(
    ranges: Iterable[OffsetRange], partitions_min: int = 0, rows_max: int = 0
) -> list[OffsetRange]:
    """Split ranges so that each has at most ``rows_max`` rows and that there are at least about
    ``partitions_min`` ranges. Small ranges stay whole. A limit of 0 means no limit."""
    whole = [item for item in ranges if item.size > 0]
    if rows_max:
        whole = [part for item in whole for part in _divide(item, -(-item.size // rows_max))]
    if partitions_min <= len(whole):
        return whole
    total = sum(item.size for item in whole)
    if not total:
        return whole
    small = [_parts(item.size, total, partitions_min) == 1 for item in whole]
    large_total = sum(item.size for item, is_small in zip(whole, small) if not is_small)
    large_parts = max(partitions_min - sum(small), 1)
    return [
        part
        for item, is_small in zip(whole, small)
        for part in _divide(item, 1 if is_small else _parts(item.size, large_total, large_parts))
    ]


def _parts(size: int, total: int, part_count: int) -> int:
    """Return into how many parts to split a range of ``size`` of the ``total`` rows: ``part_count *
    size / total``, at least 1. Halves are rounded up, as in Spark's Scala code."""
    return max((2 * size * part_count + total) // (2 * total), 1)


def _divide(item: OffsetRange, parts: int) -> list[OffsetRange]:
    divided, at, remaining = [], item.start, item.size
    for part in range(parts):
        size = remaining // (parts - part)
        remaining -= size
        if size:
            epoch = item.start_epoch if at == item.start else -1
            stored = item.stored_bytes * size // item.size if item.stored_bytes >= 0 else -1
            divided.append(
                item._replace(start=at, end=at + size, start_epoch=epoch, stored_bytes=stored)
            )
        at += size
    return divided


TASKS_MIN = 8
"""Number of ranges up to which each range is a task of its own. The number is fixed, because Spark
does not tell a source how many tasks it can run in parallel."""
TASK_BYTES = 4 << 20
"""Stored bytes that ``join_small_ranges`` puts into one task. To read them takes several times as
long as to start a Python task, so the start of a task costs little."""
RANGE_BYTES = 24 << 10
"""The fixed cost of reading one range, as the number of bytes that take equally long to read."""


def join_ranges(
    ranges: Sequence[OffsetRange], partitions_max: int
) -> list[tuple[OffsetRange, ...]]:
    """Join ranges to at most ``partitions_max`` tasks of similar cost. With ``partitions_max`` 0,
    each range is a task.

    The ranges are assigned in order of falling cost, each to the task with the lowest cost so far.
    A task reads its ranges in the order of ``ranges``. The cost of a range is its stored bytes plus
    ``RANGE_BYTES``, or its rows if the bytes are unknown.
    """
    if not partitions_max or len(ranges) <= partitions_max:
        return [(item,) for item in ranges]
    costs = [_cost(item) for item in ranges]
    tasks: list[list[int]] = [[] for _ in range(partitions_max)]
    loads = [(0, number) for number in range(partitions_max)]
    for index in sorted(range(len(ranges)), key=lambda i: (-costs[i], i)):
        load, number = heapq.heappop(loads)
        tasks[number].append(index)
        heapq.heappush(loads, (load + costs[index], number))
    return [tuple(ranges[i] for i in sorted(task)) for task in sorted(tasks, key=min) if task]


def join_small_ranges(ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
    """Join ranges with less than ``TASK_BYTES`` stored bytes to tasks of about that size.

    A larger range is a task of its own. With at most ``TASKS_MIN`` ranges, every range is a task of
    its own.
    """
    if len(ranges) <= TASKS_MIN:
        return [(item,) for item in ranges]
    small = [item for item in ranges if 0 <= item.stored_bytes < TASK_BYTES]
    tasks = [(item,) for item in ranges if not 0 <= item.stored_bytes < TASK_BYTES]
    cost = sum(_cost(item) for item in small)
    return tasks + join_ranges(small, max(TASKS_MIN - len(tasks), -(-cost // TASK_BYTES), 1))


def _cost(item: OffsetRange) -> int:
    return item.size if item.stored_bytes < 0 else item.stored_bytes + RANGE_BYTES


def with_stored_bytes(
    ranges: Iterable[OffsetRange], reach: Mapping[TopicPartition, tuple[int, int]]
) -> list[OffsetRange]:
    """Return the ranges with an estimate of their stored bytes.

    ``reach`` has, for each partition, an offset and the number of stored bytes from the range's
    start to that offset, about ``TASK_BYTES``. The estimate assumes the same bytes for each record.
    """
    sized = []
    for item in ranges:
        end, size = reach.get(item.tp, (item.start, 0))
        if end > item.start:
            item = item._replace(stored_bytes=size * item.size // (end - item.start))
        sized.append(item)
    return sized
