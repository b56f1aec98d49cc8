"""The reader of a batch query. It looks up the query's offsets once, at the first action.

Spark calls ``partitions()`` once for each ``load()``, and all actions of the DataFrame read the
ranges of that call. So ``latest`` means the log's end at the first action. Spark's Kafka source, in
contrast, looks up the offsets again at each action. Spark pickles the reader for executors, which
call ``read``.
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
    """Spark's reader of a batch query: it plans the tasks on the driver, and reads the records of a
    task in an executor."""

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
        # If ``partitions()`` is empty, Spark passes an InputPartition of its own, which has no
        # ranges: return no rows.
        with error_line():
            yield from read_ranges(getattr(partition, "ranges", ()), self._plan)
