"""The reader of a stream: Spark calls it in one process to plan, and in executors to read.

Spark plans with one instance, in a runner process that lives as long as the query. It creates other
instances only to pickle them for executors. So ``__init__`` opens no connection, and the first
planning call creates the planner. That call also raises the errors about wrong options, because
Spark hides an error that ``DataSource.streamReader`` raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker_lite.errors import LogbusError
from pyspark_logbus.connection_security import task_token
from pyspark_logbus.error_line import error_line, pickled_error_line
from pyspark_logbus.read_task import ReadPlan, ReadTask
from pyspark_logbus.worker_process import modules_are_no_garbage

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_logbus.stream_planner import StreamPlanner

NO_LIMIT = (1 << 63) - 1


class LogbusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream. If Spark repeats a batch, it gets the same rows again, because the
    records of a range of offsets never change.

    ``problem`` is an error in the options, which the first planning call raises.
    """

    def __init__(self, plan: ReadPlan | None, problem: LogbusError | None = None) -> None:
        self._plan = plan
        self._problem = problem
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Leave the planner out: Spark pickles readers only to send them to tasks, which never
        # plan.
        with pickled_error_line():
            plan = self._plan.for_tasks() if self._plan is not None else None
        return {"_plan": plan, "_problem": None, "_planner": None}

    def _planning(self) -> StreamPlanner:
        if self._problem is not None:
            raise self._problem
        if self._planner is None:
            # Executors unpickle this class, too, and must not import modules that only planning
            # needs.
            from pyspark_logbus.stream_planner import StreamPlanner

            assert self._plan is not None
            self._planner = StreamPlanner(self._plan.options)
        return self._planner

    @error_line()
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit of 2^63 - 1 rows for the triggers that read without a limit.

        Spark's own default would be the limit "all available". logbus takes that limit to mean
        Trigger.Once, so the other triggers need a different one.
        """
        self._planning()
        return ReadMaxRows(NO_LIMIT)

    @error_line()
    def prepareForTriggerAvailableNow(self) -> None:
        self._planning().prepare_for_available_now()

    @error_line()
    def initialOffset(self) -> dict[str, Any]:
        return self._planning().initial_offset()

    @error_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        unlimited = isinstance(limit, ReadAllAvailable)
        return self._planning().latest_offset(start, unlimited=unlimited)

    @error_line()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planning().report()

    @error_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = self._planning().ranges(start, end)
        assert self._plan is not None
        token = task_token(self._plan.options.security)
        return [ReadTask(ranges, token) for ranges in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Import here, so that only executors load pyarrow and the fetching client: planning imports
        # this module, too.
        from pyspark_logbus.partition_reader import read_ranges

        assert self._plan is not None
        modules_are_no_garbage()
        with error_line():
            plan = self._plan.with_token(getattr(partition, "token", None))
            yield from read_ranges(getattr(partition, "ranges", ()), plan)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because Spark calls this method one batch late and never for the last batch.
        The next planning call publishes the progress instead."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.stop()
            self._planner = None
