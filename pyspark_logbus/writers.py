"""The writers of ``df.write`` and ``df.writeStream``: they check columns and topic on the driver,
and write in tasks.

Spark uses two driver processes for a stream's sink. One plans every micro-batch and pickles a
writer for the tasks; the other creates a new writer to commit the batch. So a stream's writer looks
up its topic when Spark pickles it, and a commit imports neither pyarrow nor the producer. A task
ends only after brokers have acknowledged all its rows. By default a repeated task writes its rows
again (at least once). With ``deliveryGuarantee=exactly_once`` each batch is a transaction.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from broker_lite.errors import InvalidConfigError, NoBrokersError
from pyspark_logbus import exactly_once
from pyspark_logbus.connection_security import QuerySecurity
from pyspark_logbus.error_line import error_line, pickled_error_line
from pyspark_logbus.exactly_once import BatchWrite, TaskIdentity
from pyspark_logbus.query_options import WriteOptions
from pyspark_logbus.schema import SinkColumns, sink_columns
from pyspark_logbus.worker_process import modules_are_no_garbage

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_logbus")

CHECKED_S = 30.0
"""Seconds for which ``_check_topic`` caches that a topic exists. Spark plans a sink for every
micro-batch, and a lookup for each would be slow."""

_checked: dict[tuple[str, str, QuerySecurity], float] = {}
"""Time (monotonic clock, seconds) of the last check of a topic, by brokers, topic and security
settings."""


class RowsWritten(WriterCommitMessage):
    """A task's message to the driver: the number of rows that it wrote, by topic."""

    def __init__(self, rows: dict[str, int]) -> None:
        self.rows = rows


class _SinkTask:
    """The base class of the writers for batch queries and for streams. It has the method ``write``,
    which Spark calls in tasks."""

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    @error_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # Import here, so that only executors load pyarrow and the producing client.
        from pyspark_logbus.partition_writer import write_attempt, write_batches

        modules_are_no_garbage()
        if self._options.is_exactly_once:
            return write_attempt(iterator, self._options, self._columns, self._identity())
        return RowsWritten(write_batches(iterator, self._options, self._columns))

    @abstractmethod
    def _identity(self) -> TaskIdentity:
        """Return the identity of the task attempt that calls this method: sink, query run, and
        Spark's numbers for batch, task and attempt."""


class LogbusWriter(_SinkTask, DataSourceArrowWriter):
    """The writer of ``df.write.format("logbus").mode("append")``."""

    @classmethod
    def plan(cls, options: WriteOptions, schema: StructType, *, overwrite: bool) -> LogbusWriter:
        """Check options, columns and topic, and return the writer.

        Raises InvalidConfigError, InvalidSchemaError, NoBrokersError, and
        UnknownTopicOrPartitionError if the topic that the option ``topic`` names does not exist.
        """
        if overwrite:
            raise InvalidConfigError(
                'a log cannot be overwritten: use .mode("append"), or delete the topic and create '
                "it again (logbus topic delete, logbus topic create)"
            )
        columns = _columns(options, schema)
        _check_topic(options)
        return cls(options.for_tasks(), columns)

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        super().__init__(options, columns)
        self._write = BatchWrite.plan(options)

    def _identity(self) -> TaskIdentity:
        return exactly_once.write_identity(self._write)

    @error_line()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit an exactly-once batch. An at-least-once batch needs no commit, because the brokers
        have acknowledged the rows."""
        modules_are_no_garbage()
        if self._options.is_exactly_once:
            exactly_once.commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.is_exactly_once:
            exactly_once.abort(self._options, messages, self._write)
        else:
            log.warning("a batch write failed: rows that its tasks have written stay in the log")


class LogbusStreamWriter(_SinkTask, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream.format("logbus")``."""

    @classmethod
    def plan(cls, options: WriteOptions, schema: StructType) -> LogbusStreamWriter:
        """Check the columns, and return the writer. Raises InvalidSchemaError."""
        return cls(options, _columns(options, schema))

    def __getstate__(self) -> dict[str, Any]:
        # Check the topic here: Spark pickles a writer for the tasks, so the check runs on the
        # driver before a task writes a row, and never in the process that commits.
        with pickled_error_line():
            _check_topic(self._options)
            options = self._options.for_tasks()
        return {"_options": options, "_columns": self._columns}

    def _identity(self) -> TaskIdentity:
        return exactly_once.stream_identity(self._options)

    @error_line()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit an exactly-once batch. An at-least-once batch needs no commit, because the brokers
        have acknowledged the rows."""
        modules_are_no_garbage()
        if self._options.is_exactly_once:
            exactly_once.commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self._options.is_exactly_once:
            exactly_once.abort(self._options, messages)
            return
        log.warning(
            "micro-batch %d failed: rows that its tasks have written stay in the log, and a "
            "repeated batch writes them again (at least once)",
            batchId,
        )


def _columns(options: WriteOptions, schema: StructType) -> SinkColumns:
    return sink_columns(schema, topic_option=options.topic, use_timestamp=options.use_timestamp)


def _check_topic(options: WriteOptions) -> None:
    """Check that a broker answers and that the topic in the option ``topic`` exists.

    Raises NoBrokersError and UnknownTopicOrPartitionError. After a successful check, brokers that
    do not answer are no error: the tasks then wait for them.
    """
    modules_are_no_garbage()
    key = (options.bootstrap_servers, options.topic, options.security)
    now = time.monotonic()
    if now - _checked.get(key, float("-inf")) < CHECKED_S or (
        not options.topic and key in _checked
    ):
        return
    # Import here: only the planning process runs this part, and the committing process must not
    # load the client.
    from pyspark_logbus.first_contact import first_admin

    servers, security = options.bootstrap_servers, options.given_security()
    names = (options.topic,) if options.topic else ()
    try:
        with first_admin(servers, security, options.client_id, options.request_timeout_ms) as admin:
            topic = admin.cluster(names).topics.get(options.topic)
            if options.topic and (topic is None or topic.error is not None):
                raise admin.missing_topic(options.topic)
    except NoBrokersError:
        if key not in _checked:
            raise
        return
    _checked[key] = now
