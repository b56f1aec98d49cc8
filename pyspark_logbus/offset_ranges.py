"""Compute the offset ranges that tasks read, from a query's position and the log ends.

``find_losses`` finds records that a query can no longer read. ``Admission`` decides up to which
offsets a trigger reads. ``split_ranges`` and ``join_ranges`` divide the ranges among tasks. The
rules are those of Spark's Kafka source. The module runs on the driver and does no I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from broker_lite.errors import DataLossError
from broker_lite.model import Endpoint, OffsetAndEpoch, TopicPartition
from pyspark_logbus.offsets import SourceOffset, TopicOffsets
from pyspark_logbus.query_options import Topics


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


GONE, RECREATED, REGRESSED, LATE = "gone", "recreated", "regressed", "late"
UNSUBSCRIBED = "unsubscribed"
"""The kinds of a loss:

- GONE: the topic or partition was deleted;
- RECREATED: the topic was deleted and created again;
- REGRESSED: the partition's log end moved back;
- LATE: records were deleted before the query read them;
- UNSUBSCRIBED: the query's options no longer name the topic.
"""


class Loss(NamedTuple):
    """A range of records of one partition that a query cannot read.

    The range is ``first`` to ``end`` (exclusive); an ``end`` of -1 is unknown. ``detail`` is the
    reason, for error messages. ``topic_id`` is the id of the topic that had the records.
    """

    kind: str
    topic: str
    partition: int
    first: int
    end: int
    detail: str
    topic_id: str = ""

    @property
    def rows(self) -> int:
        """Return the number of lost records, 0 if the range's end is unknown."""
        return max(0, self.end - self.first) if self.end >= 0 else 0

    def __str__(self) -> str:
        end = "?" if self.end < 0 else str(self.end)
        return f"{self.topic}-{self.partition} [{self.first}, {end}): {self.detail}"


CURE = (
    "Some data may have been lost because they are not available any more: either the topic was "
    "deleted, or records aged out before they were read. To continue without them, set "
    "failOnDataLoss=false"
)
"""The remedy in an error about lost records. Its first words are those of Spark's Kafka source."""

RESUBSCRIBE = (
    "To continue would drop these partitions from the checkpoint. Subscribe to them again, or set "
    "failOnDataLoss=false to drop them"
)
"""The remedy in an error about partitions that the options no longer name."""


def data_loss(losses: Collection[Loss]) -> DataLossError:
    """Return an error that names every lost range."""
    are_there = all(loss.kind == UNSUBSCRIBED for loss in losses)
    return DataLossError(f"{'; '.join(map(str, losses))}. {RESUBSCRIBE if are_there else CURE}")


def find_losses(
    start: SourceOffset, live: Live, topics: Topics, seen: Mapping[str, Mapping[int, int]]
) -> list[Loss]:
    """Return what was lost after the position ``start``: deleted topics and partitions, log ends
    that moved back, and topics that the options (``topics``) no longer name.

    A topic with another topic id counts as deleted. ``seen`` has the last known log end of each
    partition, by topic id and number; a deleted partition's range of lost records ends at it.
    """
    losses = []
    for name in sorted(start.topics):
        before, now = start.topics[name], live.topics.get(name)
        for number in sorted(before.partitions):
            at = before.partitions[number]
            detail = kind = ""
            if not topics.reads(TopicPartition(name, number)):
                kind, detail = UNSUBSCRIBED, unsubscribed(topics)
            elif now is None:
                kind, detail = GONE, f"topic {name} ({before.topic_id}) was deleted"
            elif now.topic_id != before.topic_id:
                kind = RECREATED
                detail = (
                    f"topic {name} was deleted and recreated (id {before.topic_id}, now "
                    f"{now.topic_id})"
                )
            elif number not in now.ends:
                kind, detail = GONE, f"partition {number} does not exist any more"
            elif 0 <= now.ends[number].offset < at.offset:
                losses.append(_regression(name, before.topic_id, number, at, now.ends[number]))
            if kind:
                end = seen.get(before.topic_id, {}).get(number, -1)
                losses.append(Loss(kind, name, number, at.offset, end, detail, before.topic_id))
    return losses


def unsubscribed(topics: Topics) -> str:
    """Return, as text for error messages, why a query does not read a partition that its checkpoint
    has and that still exists."""
    return f"the query no longer subscribes to it, but to {topics.describe()}"


def _regression(
    name: str, topic_id: str, number: int, at: OffsetAndEpoch, now: OffsetAndEpoch
) -> Loss:
    return Loss(
        REGRESSED,
        name,
        number,
        now.offset,
        at.offset,
        f"partition {name}-{number}'s offset was changed from {at.offset} to {now.offset} "
        f"(leader epoch {at.leader_epoch}, now {now.leader_epoch})",
        topic_id,
    )


def with_ranges(losses: Iterable[Loss], ranges: Iterable[OffsetRange]) -> list[Loss]:
    """Extend losses to cover the ranges that the batch would have read from the same partitions.

    Only losses of deleted topics, recreated topics and topics that the options no longer name are
    extended.
    """
    of = {(item.topic, item.partition): item for item in ranges}
    extended = []
    for loss in losses:
        item = of.get((loss.topic, loss.partition))
        if item is not None and loss.kind in (GONE, RECREATED, UNSUBSCRIBED):
            loss = loss._replace(first=item.start, end=max(loss.end, item.end))
        extended.append(loss)
    return extended


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


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """The limits of one trigger: maximum rows, minimum rows, and the longest wait for the minimum
    in milliseconds.

    A limit of 0 means no limit. ``new_partitions`` is the option newPartitionOffsets: where a
    partition that appears after the query's first start begins.
    """

    rows_max: int = 0
    rows_min: int = 0
    delay_max_ms: int = 0
    new_partitions: str = "earliest"


class Admission:
    """Decides up to which offsets each trigger of a query reads. Between triggers it remembers only
    the time and the start offset of the last batch."""

    def __init__(self, limits: RangeLimits) -> None:
        self.limits = limits
        self._last_ms: int | None = None
        self._last_start: SourceOffset | None = None

    def next_end(
        self,
        now_ms: int,
        start: SourceOffset,
        target: SourceOffset,
        *,
        unlimited: bool = False,
        cut_back: frozenset[TopicPartition] = frozenset(),
    ) -> SourceOffset:
        """Return the end of the next batch; ``start`` itself if there is nothing to read.

        ``target`` has the log ends. ``unlimited`` ignores the limits. In the partitions
        ``cut_back`` the log end has certainly moved back, so the query's position moves back to it.
        """
        settled = settle(start, target, cut_back)
        if same_place(start, settled):
            return start
        limits = self.limits
        if unlimited:
            self._last_ms = now_ms
            return settled
        sizes = _sizes(start, settled)
        is_due = self._last_ms is None or now_ms - self._last_ms >= limits.delay_max_ms
        # If the last call planned a batch from the same offsets, the caller postponed it, because
        # its byte limit was not known yet. This batch is then due at once.
        if self._last_start is not None:
            is_due = is_due or same_place(start, self._last_start)
        if limits.rows_min and not is_due and sum(sizes.values()) < limits.rows_min:
            return start
        self._last_ms, self._last_start = now_ms, start
        if not limits.rows_max:
            return settled
        ends = limit_rows(start, settled, sizes, limits.rows_max, limits.new_partitions)
        return _with_ends(settled, ends)


def settle(
    start: SourceOffset,
    target: SourceOffset,
    cut_back: frozenset[TopicPartition] = frozenset(),
) -> SourceOffset:
    """Return the log ends ``target``, but no end before the query's position ``start``. The
    partitions ``cut_back`` are excepted: their log end has certainly moved back.

    An unchanged end keeps the leader epoch that it has in ``start``. So the offset's JSON, which
    Spark compares, changes only for new records and for new or deleted topics.
    """
    topics: dict[str, TopicOffsets] = {}
    for name, topic in target.topics.items():
        before = start.topics.get(name)
        known = before.partitions if before and before.topic_id == topic.topic_id else {}
        ends = {}
        for number, now in topic.partitions.items():
            at = known.get(number)
            if at is None:
                if now.offset >= 0:
                    ends[number] = now
            elif now.offset > at.offset or (
                0 <= now.offset < at.offset and TopicPartition(name, number) in cut_back
            ):
                ends[number] = now
            else:
                ends[number] = at
        topics[name] = TopicOffsets(topic.topic_id, ends)
    return SourceOffset(target.cluster_id, topics)


def same_place(one: SourceOffset, other: SourceOffset) -> bool:
    """Return whether two source offsets have the same cluster id, topic ids, offsets and leader
    epochs."""
    return one.cluster_id == other.cluster_id and one.topics == other.topics


def _sizes(start: SourceOffset, end: SourceOffset) -> dict[TopicPartition, int]:
    sizes = {}
    for name, topic in end.topics.items():
        for number, to in topic.partitions.items():
            begin = starts_in(start, name, topic.topic_id, number) or 0
            if to.offset > begin:
                sizes[TopicPartition(name, number)] = to.offset - begin
    return sizes


def limit_rows(
    start: SourceOffset,
    end: SourceOffset,
    sizes: Mapping[TopicPartition, int],
    rows_max: int,
    new_partitions: str = "earliest",
) -> dict[TopicPartition, int]:
    """Return each partition's end offset for a batch of at most about ``rows_max`` rows.

    Each partition with rows gets a share in proportion to its number of rows (``sizes``), and at
    least one row.
    """
    total = sum(sizes.values())
    ends = {}
    for partition, to in end.partitions().items():
        size = sizes.get(partition, 0)
        topic = end.topics[partition.topic]
        begin = starts_in(start, partition.topic, topic.topic_id, partition.partition)
        if size == 0 or (begin is None and new_partitions == "latest"):
            ends[partition] = to.offset
            continue
        share = max(1, rows_max * size // total)
        ends[partition] = min(to.offset, (begin or 0) + share)
    return ends


def share_bytes(
    bytes_max: int, reach: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int] | None:
    """Return each partition's share of ``bytes_max``, in proportion to its unread bytes. Return
    None if all unread bytes together are within ``bytes_max``.

    ``reach`` has, for each partition, the end offset and the number of bytes that the batch would
    read from this partition if it alone could use all of ``bytes_max``.
    """
    total = sum(size for _, size in reach.values())
    if total <= bytes_max:
        return None
    return {tp: max(1, bytes_max * size // total) for tp, (_, size) in reach.items()}


def cap(end: SourceOffset, ends: Mapping[TopicPartition, int]) -> SourceOffset:
    """Return ``end`` with each partition's offset limited to the partition's offset in ``ends``."""
    capped = {tp: min(at.offset, ends.get(tp, at.offset)) for tp, at in end.partitions().items()}
    return _with_ends(end, capped)


def _with_ends(end: SourceOffset, ends: Mapping[TopicPartition, int]) -> SourceOffset:
    topics = {}
    for name, topic in end.topics.items():
        topics[name] = TopicOffsets(
            topic.topic_id,
            {
                number: OffsetAndEpoch(ends[TopicPartition(name, number)], at.leader_epoch)
                for number, at in topic.partitions.items()
            },
        )
    return SourceOffset(end.cluster_id, topics)


def ranges_between(
    start: SourceOffset, end: SourceOffset, new_partitions: str = "earliest"
) -> list[OffsetRange]:
    """Return the non-empty ranges of a batch, ordered by topic and partition.

    If ``end`` has ``begin``, the start of a query's first batch, it replaces ``start``. A partition
    that is new in ``end`` starts at offset 0. With ``newPartitionOffsets=latest`` it starts at its
    own end, so its range is empty.
    """
    if end.begin is not None:
        start = SourceOffset(end.cluster_id, end.begin)
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
    """Return into how many parts to split one range: ``part_count * size / total``, at least 1.
    Halves are rounded up, as in Spark's Scala code."""
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
"""The fixed cost of reading one range, in bytes: to read that many takes equally long."""


def join_ranges(
    ranges: Sequence[OffsetRange], partitions_max: int
) -> list[tuple[OffsetRange, ...]]:
    """Join ranges to at most ``partitions_max`` tasks of similar cost. With ``partitions_max`` 0,
    each range is a task.

    The ranges are assigned in order of falling cost, each to the task with the lowest cost so far.
    A task reads its ranges in the order of ``ranges``. The cost of a range is its stored bytes, or
    its rows if the bytes are unknown.
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
