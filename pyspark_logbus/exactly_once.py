"""Exactly-once writing: the messages of tasks to the driver, and the driver's commit or abort.

Each micro-batch, or each ``df.write``, is one transaction that all its task attempts share. The
*sink* is the name of the writer: a stream's query id, or the ``transactionalId`` of a ``df.write``.
A broker, the sink's coordinator, gives each task attempt a producer id and epoch. When the tasks
have ended, the driver commits the batch: it names the attempts whose messages Spark passed on. The
coordinator stores the sink's last committed batch, so a replayed batch writes nothing.

Spark commits in a process of its own, so this module imports neither pyarrow nor the producer.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from broker_lite.errors import (
    InvalidConfigError,
    LogbusError,
    ProducerFencedError,
    SinkAheadOfCheckpointError,
    SinkRowsDifferError,
)
from pyspark_logbus.query_options import WriteOptions

log = logging.getLogger("pyspark_logbus")

NO_PRODUCER = -1
"""The producer id of an attempt that wrote no row."""
ABORT_ATTEMPT_MS = 1_000
"""Maximum time (ms) for which a failed task waits for the abort of its attempt. Spark kills the
process of a killed task after 2 s (spark.python.task.killTimeout)."""
REPLAY_MISMATCHES = (SinkAheadOfCheckpointError, SinkRowsDifferError)
"""Errors of a replayed batch that onReplayMismatch=skip ignores."""


class TaskIdentity(NamedTuple):
    """The identity of a task attempt: the sink, the run of the query, and Spark's numbers for the
    batch, the task and the attempt."""

    sink: str
    run: str
    batch: int
    task: int
    attempt: int


class BatchWrite(NamedTuple):
    """The identity of one ``df.write``: the name of its sink, a random id and a batch number.

    With the option ``transactionalId``, the sink's name is the option's value, and a write with a
    ``transactionVersion`` that was committed before writes nothing. Without the option, the sink's
    name is the random id ``run``: the write is atomic, but a repeat of the program writes again.
    """

    sink: str
    run: str
    batch: int

    @classmethod
    def plan(cls, options: WriteOptions) -> BatchWrite:
        run = str(uuid.uuid4())
        if options.transactional_id:
            return cls(options.transactional_id, run, options.transaction_version)
        return cls(run, run, 0)


class Attempt(WriterCommitMessage):
    """A task's message to the driver about its finished attempt.

    ``producer_id`` is NO_PRODUCER if the attempt wrote nothing: it had no rows, or the batch was
    committed before.
    """

    def __init__(self, identity: TaskIdentity, producer: tuple[int, int], rows: int) -> None:
        self.sink, self.run, self.batch = identity[:3]
        self.producer_id, self.epoch = producer
        self.rows = rows


def stream_identity(options: WriteOptions) -> TaskIdentity:
    """Return the identity of the streaming task that calls this function.

    Query id, run id and batch number come from the local properties that Spark sets for the task's
    job. Raises InvalidConfigError if this version of Spark does not set them.
    """
    context = _context()
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    run = context.getLocalProperty("spark.jobGroup.id")
    if query is None or batch is None or run is None:
        raise InvalidConfigError(
            "deliveryGuarantee=exactly_once: Spark does not give this task its query, run and "
            "batch (sql.streaming.queryId, spark.jobGroup.id, streaming.sql.batchId). In "
            "foreachBatch use df.write with transactionalId and transactionVersion"
        )
    prefix = f"{options.transactional_id}-" if options.transactional_id else ""
    number = context.partitionId(), context.taskAttemptId()
    return TaskIdentity(prefix + query, run, int(batch), *number)


def write_identity(write: BatchWrite) -> TaskIdentity:
    """Return the identity of this task attempt of a ``df.write``, with Spark's numbers for the task
    and the attempt."""
    context = _context()
    return TaskIdentity(*write, context.partitionId(), context.taskAttemptId())


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InvalidConfigError(
            "deliveryGuarantee=exactly_once: this code runs outside a task of Spark; write through "
            "df.write or df.writeStream"
        )
    return context


def commit(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch: int | None = None
) -> None:
    """Commit a batch, which consists of the task attempts in ``messages``. If no task had rows, the
    coordinator writes nothing, and only checks that no earlier commit of the batch had rows.

    ``batch`` is the number of the micro-batch that Spark commits, or None for a ``df.write``.
    Raises the coordinator's error, or InvalidConfigError if an attempt belongs to another batch.
    """
    attempts = [message for message in messages if isinstance(message, Attempt)]
    if not attempts:
        return  # No task ran: nothing to commit, and nothing names the stream's sink.
    first = attempts[0]
    others = {attempt.batch for attempt in attempts} - {batch}
    if batch is not None and others:
        raise InvalidConfigError(
            f"Spark commits batch {batch} with attempts of batch {min(others)}; "
            "deliveryGuarantee=exactly_once does not support this version of Spark"
        )
    winners = tuple(
        (attempt.producer_id, attempt.epoch)
        for attempt in attempts
        if attempt.producer_id != NO_PRODUCER
    )
    rows = sum(attempt.rows for attempt in attempts)
    try:
        _end(options, first, is_commit=True, winners=winners, rows=rows)
    except REPLAY_MISMATCHES as error:
        if not options.skips_replay_mismatch:
            raise
        log.warning("batch %d is skipped (onReplayMismatch=skip): %s", first.batch, error)


def abort(
    options: WriteOptions,
    messages: Sequence[WriterCommitMessage | None],
    write: BatchWrite | None = None,
) -> None:
    """Abort a batch that is not committed. If the abort fails, the coordinator aborts the batch
    itself after ``transaction.timeout.ms`` without a keep-alive.

    ``write`` identifies a ``df.write``; it is None for a stream. Only tasks know the name of a
    stream's sink, so the driver takes it from a finished attempt's message. Without one, this
    function does nothing, because ``abort_attempt`` has aborted the failed attempts. The
    coordinator aborts the attempt of a killed process after the time-out, or when the query runs
    again.
    """
    attempts = [message for message in messages if isinstance(message, Attempt)]
    batch = write or (attempts[0] if attempts else None)
    if batch is None:
        return
    try:
        _end(options, batch, is_commit=False)
    except ProducerFencedError:
        log.debug("no attempt of batch %d had joined", batch.batch)
    except LogbusError as error:
        log.warning(
            "batch %d could not be aborted; brokers abort it by timeout: %s", batch.batch, error
        )


def abort_attempt(options: WriteOptions, identity: TaskIdentity, producer: tuple[int, int]) -> None:
    """Abort this task's failed attempt, so that its open transaction does not hold back
    read_committed consumers.

    Spark sends the driver no message of a failed attempt, so no commit includes the attempt. If
    this abort fails, the coordinator ends the attempt together with its batch.
    """
    try:
        _end(options, identity, is_commit=False, winners=(producer,), timeout_ms=ABORT_ATTEMPT_MS)
    except LogbusError as error:
        log.debug("the attempt of task %d could not be aborted: %s", identity.task, error)


def _end(
    options: WriteOptions,
    attempt: Attempt | BatchWrite | TaskIdentity,
    *,
    is_commit: bool,
    winners: tuple[tuple[int, int], ...] = (),
    rows: int = 0,
    timeout_ms: int = 0,
) -> None:
    from broker_lite.client.transactions.batch_end import end_batch
    from broker_lite.wire.calls.sinks import EndBatchRequest

    request = EndBatchRequest(attempt.sink, attempt.run, attempt.batch, is_commit, rows, winners)
    timeout_ms = timeout_ms or options.transaction_timeout_ms
    security = options.given_security()
    end_batch(options.bootstrap_servers, options.client_id, request, timeout_ms, security=security)
