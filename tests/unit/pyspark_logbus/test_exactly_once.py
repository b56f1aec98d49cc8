"""Tests of the identity of exactly-once task attempts, and of the driver's check of their
messages."""

from __future__ import annotations

import pytest
from pyspark import TaskContext

from broker_lite.errors import InvalidConfigError
from pyspark_logbus import exactly_once, options
from pyspark_logbus.exactly_once import NO_PRODUCER, Attempt, TaskIdentity
from pyspark_logbus.query_options import WriteOptions

PROPERTIES = {
    "sql.streaming.queryId": "query",
    "streaming.sql.batchId": "7",
    "spark.jobGroup.id": "run",
}
"""The local properties that Spark sets for the tasks of a micro-batch."""


def write_options(**given: str) -> WriteOptions:
    found = {"topic": "t", "deliveryGuarantee": "exactly_once", **given}
    return options.write_options(options.parse(found), "127.0.0.1:1", streaming=True)


def in_task(monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]) -> None:
    """Make this process a task of Spark: partition 3, task attempt 44."""
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext()  # This also makes the new context the current one.
    context._partitionId, context._taskAttemptId = 3, 44
    context._localProperties = properties


@pytest.mark.parametrize(("prefix", "sink"), [({}, "query"), ({"transactionalId": "x"}, "x-query")])
def test_identity_of_a_streaming_task_has_sparks_query_run_batch_task_and_attempt(
    prefix: dict[str, str], sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_task(monkeypatch, PROPERTIES)
    found = exactly_once.stream_identity(write_options(**prefix))
    assert found == TaskIdentity(sink, "run", 7, 3, 44)


@pytest.mark.parametrize("missing", PROPERTIES)
def test_streaming_task_without_sparks_query_run_or_batch_is_refused(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_task(monkeypatch, {name: value for name, value in PROPERTIES.items() if name != missing})
    with pytest.raises(InvalidConfigError, match=rf"{missing}.*use df\.write with transactionalId"):
        exactly_once.stream_identity(write_options())


def test_exactly_once_writer_outside_of_a_spark_task_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="runs outside a task of Spark"):
        exactly_once.stream_identity(write_options())


def test_commit_of_a_batch_with_an_attempt_of_another_batch_is_refused() -> None:
    """The driver must not commit rows of one micro-batch under the number of another. No broker
    runs, so a request would fail with another error."""
    attempts = [
        Attempt(TaskIdentity("query", "run", batch, task, task), (NO_PRODUCER, -1), 1)
        for task, batch in enumerate((8, 7))
    ]
    with pytest.raises(InvalidConfigError, match="commits batch 8 with attempts of batch 7"):
        exactly_once.commit(write_options(), attempts, 8)
