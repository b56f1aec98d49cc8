"""The sink as Spark sees it, batch and streaming: proxies that check on the driver, write in tasks.

Spark keeps two processes for a streaming sink: one plans every micro-batch and pickles a writer
for the tasks, the other commits with a writer that it makes anew. So a streaming writer looks up
its topic when it is pickled, and committing imports neither pyarrow nor the producer. A task's rows
are all acknowledged before it ends. By default a repeated task writes them again (at least once);
``exactly_once`` makes each batch a transaction.
"""

from __future__ import annotations

import logging
import pickle
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

from broker_lite.errors import InvalidConfigError, LogbusError
from pyspark_logbus import exactly_once
from pyspark_logbus.error_line import error_line
from pyspark_logbus.exactly_once import BatchWrite, TaskIdentity
from pyspark_logbus.query_options import WriteOptions
from pyspark_logbus.schema import SinkColumns, sink_columns
from pyspark_logbus.worker_process import modules_are_no_garbage

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_logbus")

CHECKED_S = 30.0
"""A topic that was there is not asked for again for so long: micro-batches are planned often."""

_checked: dict[tuple[str, str], float] = {}


class RowsWritten(WriterCommitMessage):
    """What a task wrote: rows by topic."""

    def __init__(self, rows: dict[str, int]) -> None:
        self.rows = rows


class SinkRefusedError(pickle.PickleError):
    """What is wrong with a sink, said while it is pickled: Spark's pickler hands on errors of this
    family as they are, and hides any other behind a PicklingError of its own."""


class _SinkTask:
    """The part of both writers that tasks use. Picklable."""

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    @error_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # pyarrow and the producing client belong to executors only.
        from pyspark_logbus.partition_writer import write_attempt, write_batches

        modules_are_no_garbage()
        if self._options.is_exactly_once:
            return write_attempt(iterator, self._options, self._columns, self._identity())
        return RowsWritten(write_batches(iterator, self._options, self._columns))

    @abstractmethod
    def _identity(self) -> TaskIdentity:
        """Return the identity of the task that this runs in."""


class LogbusWriter(_SinkTask, DataSourceArrowWriter):
    """``df.write.format("logbus").mode("append")``."""

    @classmethod
    def plan(cls, options: WriteOptions, schema: StructType, *, overwrite: bool) -> LogbusWriter:
        """Check the request; raises InvalidConfigError, InvalidSchemaError, and
        UnknownTopicOrPartitionError for the option's topic."""
        if overwrite:
            raise InvalidConfigError(
                'a log cannot be overwritten: use .mode("append"), or delete the topic and create '
                "it again (logbus topic delete, logbus topic create)"
            )
        columns = _columns(options, schema)
        _check_topic(options)
        return cls(options, columns)

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        super().__init__(options, columns)
        self._write = BatchWrite.plan(options)

    def _identity(self) -> TaskIdentity:
        return exactly_once.write_identity(self._write)

    @error_line()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """At least once: nothing, since every task's rows were acknowledged before it ended."""
        modules_are_no_garbage()
        if self._options.is_exactly_once:
            exactly_once.commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.is_exactly_once:
            exactly_once.abort(self._options, messages, self._write)
        else:
            log.warning("a batch write failed: rows that tasks had written stay in the log")


class LogbusStreamWriter(_SinkTask, DataSourceStreamArrowWriter):
    """``df.writeStream.format("logbus")``."""

    @classmethod
    def plan(cls, options: WriteOptions, schema: StructType) -> LogbusStreamWriter:
        """Check the request; raises InvalidSchemaError."""
        return cls(options, _columns(options, schema))

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles a writer to send it to the tasks: so this is on the driver, before a row
        # moves, and never in the process that commits.
        try:
            with error_line():
                _check_topic(self._options)
        except LogbusError as error:
            raise SinkRefusedError(str(error)) from None
        return {"_options": self._options, "_columns": self._columns}

    def _identity(self) -> TaskIdentity:
        return exactly_once.stream_identity(self._options)

    @error_line()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """At least once: nothing, since every task's rows were acknowledged before it ended."""
        modules_are_no_garbage()
        if self._options.is_exactly_once:
            exactly_once.commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self._options.is_exactly_once:
            exactly_once.abort(self._options, messages)
            return
        log.warning(
            "micro-batch %d failed: rows that its tasks had written stay in the log, and are "
            "written again when it is repeated (at least once)",
            batchId,
        )


def _columns(options: WriteOptions, schema: StructType) -> SinkColumns:
    return sink_columns(schema, topic_option=options.topic, use_timestamp=options.use_timestamp)


def _check_topic(options: WriteOptions) -> None:
    """Brokers must answer, once, and the option's topic exist, before a row moves; raises
    NoBrokersError, UnknownTopicOrPartitionError."""
    modules_are_no_garbage()
    key = (options.bootstrap_servers, options.topic)
    now = time.monotonic()
    if now - _checked.get(key, float("-inf")) < CHECKED_S or (
        not options.topic and key in _checked
    ):
        return
    # Only the planning process comes here, once: the committing one must not import the client.
    from broker_lite.client.administration.admin import Admin
    from broker_lite.client.operations.cluster import unknown_topic
    from broker_lite.client.operations.requests import FIRST_CONTACT_MS
    from pyspark_logbus.first_contact import told

    servers, timeout_ms = options.bootstrap_servers, options.request_timeout_ms
    names = (options.topic,) if options.topic else ()
    with (
        Admin(servers, client_id=options.client_id, timeout_ms=timeout_ms) as admin,
        told(servers, min(timeout_ms, FIRST_CONTACT_MS) / 1000),
    ):
        topics = admin.cluster(names).topics
    topic = topics.get(options.topic)
    if options.topic and (topic is None or topic.error is not None):
        raise (topic.error if topic and topic.error else unknown_topic(options.topic))
    _checked[key] = now
