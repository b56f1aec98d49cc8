"""Limit a micro-batch: decide up to which offsets a trigger reads.

``Admission`` applies the limits of rows, and ``share_bytes`` divides a limit of bytes, as Spark's
Kafka source does. The module runs on the driver and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker_lite.model import OffsetAndEpoch, TopicPartition
from pyspark_logbus.offset_ranges import starts_in
from pyspark_logbus.offsets import SourceOffset, TopicOffsets


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """The limits of one trigger: maximum rows, minimum rows, and the longest time (ms) to wait for
    the minimum.

    A limit of 0 means no limit. ``new_partitions`` is the option newPartitionOffsets: where the
    query begins to read a partition that was added after its first start.
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
        ``cut_back`` the log end is confirmed to have moved back, so the query's position moves back
        to it.
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
        # If the last call planned a batch from the same offsets, the caller postponed that batch,
        # because its end under maxBytesPerTrigger was not known yet. The batch is now due at once.
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
    """Return the log ends ``target``, but no offset before the query's position ``start``, except
    in the partitions ``cut_back``, whose log end is confirmed to have moved back.

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
