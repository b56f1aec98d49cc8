"""Make the tasks of a batch query or a micro-batch from offset ranges, and give each task the
leaders' addresses.

Spark spends some ten milliseconds on each task, so one task reads several small ranges. The brokers
report how many stored bytes a range has. The planners call this module on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker_lite.client.operations.cluster import ClusterView
from broker_lite.errors import LogbusError
from pyspark_logbus import offset_ranges as plan
from pyspark_logbus.offset_ranges import OffsetRange
from pyspark_logbus.offset_reader import OffsetReader
from pyspark_logbus.query_options import ReadOptions

log = logging.getLogger("pyspark_logbus")

Task = tuple[OffsetRange, ...]
"""The ranges that one task reads, in order."""


def make_tasks(
    ranges: Sequence[OffsetRange], options: ReadOptions, reader: OffsetReader, view: ClusterView
) -> list[Task]:
    """Return the tasks of a batch, at most ``maxPartitions`` (``options.partitions_max``). If the
    query has no option about the number of tasks, small ranges share a task."""
    has_least = bool(options.partitions_min or options.partition_rows_max)
    if len(ranges) > (options.partitions_max or plan.TASKS_MIN) and (
        options.partitions_max or not has_least
    ):
        ranges = _with_sizes(ranges, reader)
    parts = plan.split_ranges(ranges, options.partitions_min, options.partition_rows_max)
    located = [_located(item, view) for item in parts]
    if options.partitions_max or has_least:
        return plan.join_ranges(located, options.partitions_max)
    return plan.join_small_ranges(located)


def _with_sizes(ranges: Sequence[OffsetRange], reader: OffsetReader) -> Sequence[OffsetRange]:
    """Return the ranges with the number of their stored bytes, or unchanged if no broker reports
    it."""
    if reader.reach:
        return plan.with_stored_bytes(ranges, reader.reach)
    sizes_to_read = {item.tp: (item.start, plan.TASK_BYTES) for item in ranges}
    topic_ids = {item.topic: item.topic_id for item in ranges}
    try:
        reach = reader.admin.offsets_for_bytes(sizes_to_read, topic_ids)
    except LogbusError as error:
        log.info("no broker reports the bytes of %d ranges: %s", len(ranges), error)
        return ranges
    return plan.with_stored_bytes(ranges, reach)


def _located(item: OffsetRange, view: ClusterView) -> OffsetRange:
    """Return the range with its leader's address and epoch, so that the task needs no lookup."""
    tp = item.tp
    return item._replace(leader=view.leader(tp), leader_epoch=view.leader_epoch(tp))
