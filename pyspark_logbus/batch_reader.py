"""The batch source as Spark sees it: offsets are resolved once, when the plan is made.

Spark calls ``partitions()`` once for each ``load()`` and keeps the answer in the provider that all
scans of the DataFrame share. Every later action reads the same ranges, so ``latest`` is the end at
the first action. Spark's Kafka source plans again at each action. Pickled to executors, which call
``read``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_logbus.error_line import error_line
from pyspark_logbus.read_task import ReadPlan, ReadTask
from pyspark_logbus.worker_process import modules_are_no_garbage

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_logbus.query_options import ReadOptions


class LogbusReader(DataSourceReader):
    """Reads the records between two sets of offsets."""

    def __init__(self, options: ReadOptions | None, plan: ReadPlan) -> None:
        self._options = options
        self._plan = plan

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": None, "_plan": self._plan}

    @error_line()
    def partitions(self) -> Sequence[InputPartition]:
        # Executors unpickle this class, too, and must not import modules that only planning needs.
        from pyspark_logbus.batch_planner import plan_batch

        assert self._options is not None
        modules_are_no_garbage()
        return [ReadTask(ranges) for ranges in plan_batch(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_logbus.partition_reader import read_ranges

        modules_are_no_garbage()
        # Spark creates a partition without ranges if there is nothing to read.
        with error_line():
            yield from read_ranges(getattr(partition, "ranges", ()), self._plan)
