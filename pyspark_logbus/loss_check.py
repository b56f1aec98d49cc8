"""Check a micro-batch for lost records, while it is planned and before Spark starts its tasks.

One ``LossCheck`` serves a whole run of a query, on the driver, on the thread that plans batches.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from broker_lite.errors import UnknownTopicOrPartitionError
from broker_lite.model import EARLIEST_TIMESTAMP, ListedOffset, TopicPartition
from pyspark_logbus.live_offsets import LiveOffsets
from pyspark_logbus.losses import (
    GONE,
    LATE,
    RECREATED,
    UNSUBSCRIBED,
    Loss,
    Losses,
    find_losses,
    unsubscribed,
    with_ranges,
)
from pyspark_logbus.offset_ranges import Live, OffsetRange, ranges_between, starts_in
from pyspark_logbus.offset_reader import OffsetReader
from pyspark_logbus.offsets import SourceOffset
from pyspark_logbus.query_options import ReadOptions


class LossCheck:
    """Finds the records that a query can no longer read, and passes them to ``losses``, which fails
    the query, or counts them if failOnDataLoss=false."""

    def __init__(
        self, options: ReadOptions, reader: OffsetReader, live: LiveOffsets, losses: Losses
    ) -> None:
        self._options = options
        self._reader = reader
        self._live = live
        self._losses = losses

    def cut_back(self, start: SourceOffset, live: Live) -> frozenset[TopicPartition]:
        """Return the partitions whose log end moved back before the query's position ``start``, at
        least ``grace_s`` ago. Raises DataLossError for these and all other losses unless
        failOnDataLoss=false."""
        return self._losses.judge(self._losses.confirmed(self._find(start, live)))

    def remaining(
        self, start: SourceOffset, end: SourceOffset, live: Live, *, is_repeated: bool
    ) -> list[OffsetRange]:
        """Return the ranges of the batch between two offsets, without lost records.

        ``is_repeated`` says that Spark repeats the batch after a restart: this run has not checked
        its offsets yet. Raises DataLossError unless failOnDataLoss=false.
        """
        ranges = ranges_between(start, end, self._options.new_partitions)
        if is_repeated:
            stored = SourceOffset(end.cluster_id, end.topics)
            self._losses.judge(with_ranges(self._find(stored, live), ranges))
        ranges = self._without_deleted(start, end, ranges, is_repeated=is_repeated)
        return [item for item in ranges if self._is_there(item, live)]

    def _find(self, start: SourceOffset, live: Live) -> list[Loss]:
        return find_losses(start, live, self._options.topics, self._live.seen)

    def _without_deleted(
        self,
        start: SourceOffset,
        end: SourceOffset,
        ranges: list[OffsetRange],
        *,
        is_repeated: bool,
    ) -> list[OffsetRange]:
        """Return the ranges of the batch, shortened by the records that were deleted before the
        query read them.

        Looks up the log starts of partitions that are new in this batch, or of all partitions of a
        repeated batch. If records were deleted, raises DataLossError unless failOnDataLoss=false.
        When Spark repeats a batch after a restart, it requests no progress report for the batch. So
        the next batch's report counts the losses.
        """
        begin = end.batch_start(start)
        fresh = {
            item.tp
            for item in ranges
            if starts_in(begin, item.topic, item.topic_id, item.partition) is None
        }
        by_tp = {item.tp: item for item in ranges if is_repeated or item.tp in fresh}
        if not by_tp:
            return ranges
        earliest = self._earliest(by_tp)
        losses = []
        for tp, item in by_tp.items():
            row = earliest.get(tp)
            if row is not None and row.offset > item.start:
                detail = (
                    f"Added partition {tp} starts from {row.offset} instead of 0"
                    if tp in fresh
                    else f"records before offset {row.offset} were deleted before they were read"
                )
                losses.append(Loss(LATE, *tp, item.start, row.offset, detail, item.topic_id))
            elif row is None and tp in fresh:
                detail = "the topic was deleted"
                losses.append(Loss(GONE, *tp, item.start, item.end, detail, item.topic_id))
        self._losses.judge(losses)
        clipped = []
        for item in ranges:
            tp = item.tp
            row = earliest.get(tp)
            if row is not None and row.offset > item.start:
                item = item._replace(start=row.offset, start_epoch=-1)
            if item.start < item.end and (row is not None or tp not in fresh):
                clipped.append(item)
        return clipped

    def _earliest(
        self, requested: Mapping[TopicPartition, OffsetRange]
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the log start offsets of the partitions ``requested``, except those of deleted
        topics.

        A broker that has just started may not list an existing topic yet. So this method repeats
        the lookup of a missing topic as long as ``LiveOffsets``, which polls brokers in the
        background, reports the topic, for at most ``request.timeout.ms``.
        """
        try:
            return self._reader.listed(requested, EARLIEST_TIMESTAMP)
        except UnknownTopicOrPartitionError as error:
            problem = error
        listed: dict[TopicPartition, ListedOffset] = {}
        deadline = time.monotonic() + self._options.request_timeout_ms / 1000
        for topic in sorted({tp.topic for tp in requested}):
            tps = [tp for tp in requested if tp.topic == topic]
            while True:
                try:
                    listed.update(self._reader.listed(tps, EARLIEST_TIMESTAMP))
                    break
                except UnknownTopicOrPartitionError as error:
                    problem = error
                now = self._live.require().topics.get(topic)
                if now is None or now.topic_id != requested[tps[0]].topic_id:
                    break
                if time.monotonic() > deadline:
                    raise problem
                time.sleep(0.005)
        return listed

    def _is_there(self, item: OffsetRange, live: Live) -> bool:
        topic = live.topics.get(item.topic)
        if topic is not None and topic.topic_id == item.topic_id:
            return True
        end = self._live.seen.get(item.topic_id, {}).get(item.partition, item.end)
        kind, reason = GONE, "the topic was deleted"
        topics = self._options.topics
        if not topics.reads(item.tp):
            kind, reason = UNSUBSCRIBED, unsubscribed(topics)
        elif topic is not None:
            kind, reason = RECREATED, "the topic was deleted and recreated"
        lost = item.topic, item.partition, item.start, end, reason, item.topic_id
        self._losses.judge([Loss(kind, *lost)])
        return False
