"""Compute the offset ranges of a batch query. Spark's planning process on the driver calls this
module once for each ``load()``."""

from __future__ import annotations

from broker_lite.errors import InvalidConfigError
from broker_lite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from pyspark_logbus import offsets
from pyspark_logbus.admission import cap
from pyspark_logbus.losses import REGRESSED, Loss, Losses
from pyspark_logbus.offset_ranges import ranges_between
from pyspark_logbus.offset_reader import OffsetReader
from pyspark_logbus.offsets import SourceOffset
from pyspark_logbus.query_options import ReadOptions
from pyspark_logbus.range_tasks import Task, make_tasks

NAMED_MAX = 5
"""Maximum number of partitions that one error message names."""


def plan_batch(options: ReadOptions) -> list[Task]:
    """Return the tasks of a batch query.

    Raises DataLossError, unless failOnDataLoss=false, if the options give an end offset beyond a
    log's end. Raises InvalidConfigError if a partition's start is after its end.
    """
    reader = OffsetReader(options)
    try:
        start, end = reader.bounds()
        if isinstance(options.ending, offsets.PerPartition):
            end = _existing(options, reader, end)
        _check_order(options, reader, start, end)
        return make_tasks(ranges_between(start, end), options, reader, reader.view)
    finally:
        reader.close()


def _existing(options: ReadOptions, reader: OffsetReader, end: SourceOffset) -> SourceOffset:
    """Return the end offsets of the batch, limited to the end offsets of the logs.

    Raises DataLossError for an end beyond the log's end. With failOnDataLoss=false it logs a
    warning and uses the log's end.
    """
    latest = reader.listed(end.partitions(), LATEST_TIMESTAMP)
    losses = [
        Loss(REGRESSED, tp.topic, tp.partition, latest[tp].offset, at.offset,
             f"{options.ending_option} names {at.offset}, the log ends at {latest[tp].offset}")
        for tp, at in end.partitions().items()
        if at.offset > latest[tp].offset
    ]  # fmt: skip
    Losses(options).judge(losses)
    return cap(end, {tp: row.offset for tp, row in latest.items()})


def _check_order(
    options: ReadOptions, reader: OffsetReader, start: SourceOffset, end: SourceOffset
) -> None:
    """Raise InvalidConfigError if a partition's start is after its end.

    There is no error if the log start is after the end: retention then deleted all records up to
    the end, and the start moved forward. The partition's range is then empty.
    """
    first, last = options.starting, options.ending
    if (
        isinstance(first, offsets.GlobalTime)
        and isinstance(last, offsets.GlobalTime)
        and first.timestamp_ms > last.timestamp_ms
    ):
        swapped = sorted(start.partitions())
    else:
        swapped = _swapped(options, reader, start, end)
    if swapped:
        ends = end.partitions()
        named = ", ".join(
            f"{tp} starts at offset {start.partitions()[tp].offset} and ends at offset "
            f"{ends[tp].offset}"
            for tp in swapped[:NAMED_MAX]
        )
        more = len(swapped) - NAMED_MAX
        raise InvalidConfigError(
            f"{options.starting_option} is after {options.ending_option}: {named}"
            + (f", and {more} more partitions" if more > 0 else "")
            + "; give a start before the end"
        )


def _swapped(
    options: ReadOptions, reader: OffsetReader, start: SourceOffset, end: SourceOffset
) -> list[TopicPartition]:
    if isinstance(options.ending, offsets.SymbolicOffset):
        return []
    begins, ends = start.partitions(), end.partitions()
    reversed_tps = [at for at in sorted(begins) if ends[at].offset < begins[at].offset]
    earliest = reader.listed(reversed_tps, EARLIEST_TIMESTAMP)
    return [at for at in reversed_tps if earliest[at].offset <= ends[at].offset]
