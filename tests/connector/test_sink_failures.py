"""Test the exactly-once sink when tasks, drivers or brokers die at a chosen point.

A ``Run`` takes Spark's place for one run of a query: it calls ``write_attempt`` as tasks do, and
``exactly_once.commit`` as the driver does. tests/spark/test_exactly_once.py runs Spark itself.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.patience import until
from support.plain_connection import PlainConnection
from support.spark_queries import records

from broker_lite.bus import Bus
from broker_lite.client.administration import transactions
from broker_lite.client.operations.group_requests import find_coordinator
from broker_lite.errors import (
    InvalidProducerEpochError,
    LogbusError,
    ProducerFencedError,
    SinkAheadOfCheckpointError,
    SinkRowsDifferError,
)
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.wire.api import encode_call
from broker_lite.wire.calls.groups import KEY_TYPE_TRANSACTION
from broker_lite.wire.calls.sinks import EndBatchRequest
from pyspark_logbus import exactly_once, options
from pyspark_logbus.exactly_once import NO_PRODUCER, Attempt, TaskIdentity
from pyspark_logbus.partition_writer import sink_for, write_attempt
from pyspark_logbus.schema import SinkColumns

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("sink-failures"),
]

COLUMNS = SinkColumns(value=0)
ATTEMPTS = itertools.count(1)
TIMEOUT_MS = 30_000

EXECUTOR = """
import base64, pickle, sys
from pyspark_logbus.partition_writer import write_attempt
import pyarrow as pa

given, columns, identity, values = pickle.loads(base64.b64decode(sys.argv[1]))
attempt = write_attempt([pa.record_batch({"value": values})], given, columns, identity)
print(base64.b64encode(pickle.dumps(attempt)).decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Start three brokers with a ZooKeeper of their own, because a test stops ZooKeeper."""
    config = {"zookeeper.session.timeout.ms": "2000"}
    return make_module_cluster(3, own_zookeeper=True, config=config)


class Run:
    """One run of a Spark query that writes to a topic with the exactly-once sink."""

    def __init__(self, bus: Bus, topic: str, sink: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self.bus, self.topic, self.sink = bus, topic, sink
        self.name = uuid.uuid4().hex
        given = {
            "topic": topic,
            "deliveryGuarantee": "exactly_once",
            "transaction.timeout.ms": str(timeout_ms),
        }
        self.options = options.write_options(options.parse(given), bus.bootstrap_servers)

    def again(self) -> Run:
        """Return a ``Run`` for the next run of the same query."""
        return Run(self.bus, self.topic, self.sink, self.options.transaction_timeout_ms)

    def identity(self, batch: int, task: int) -> TaskIdentity:
        return TaskIdentity(self.sink, self.name, batch, task, next(ATTEMPTS))

    def write(self, batch: int, *values: str, task: int = 0) -> Attempt:
        """Run a task attempt that writes these values; return its commit message.

        Each attempt has its own producer, as in a separate executor.
        """
        return self.stream(batch, [list(values)], task)

    def stream(self, batch: int, chunks: Iterable[list[str]], task: int = 0) -> Attempt:
        """Run a task attempt that flushes each chunk of values before it takes the next chunk.

        Return its commit message.
        """
        identity = self.identity(batch, task)
        given = dataclasses.replace(self.options, client_id=f"executor-{identity.attempt}")

        def flushed() -> Iterator[pa.RecordBatch]:
            for chunk in chunks:
                yield pa.record_batch({"value": pa.array(chunk, pa.string())})
                sink_for(given, self.sink).producer.flush()

        return write_attempt(flushed(), given, COLUMNS, identity)

    def commit(self, batch: int, *attempts: Attempt | None) -> None:
        exactly_once.commit(self.options, attempts, batch)

    def send_commit(self, batch: int, attempt: Attempt) -> None:
        """Send the commit of a batch to the coordinator; close the connection before the
        response."""
        winners = ((attempt.producer_id, attempt.epoch),)
        request = EndBatchRequest(self.sink, self.name, batch, True, attempt.rows, winners)
        with PlainConnection(self.coordinator()) as connection:
            connection.send(encode_call(request, 1, "driver"))

    def visible(self) -> list[str]:
        return sorted(record.value.decode() for record in records(self.bus, self.topic))

    def coordinator(self) -> str:
        """Return the address, host:port, of the transaction coordinator that serves the sink."""

        def find(view, deadline_ms):  # type: ignore[no-untyped-def]
            return find_coordinator(view, self.sink, deadline_ms, KEY_TYPE_TRANSACTION)

        found = self.bus.admin.run(find)
        return f"{found.host}:{found.port}"


@pytest.fixture
def make(bus: Bus) -> Callable[..., Run]:
    """Return a function that creates the first run of a new query."""

    def make(partitions: int = 2, *, replicas: int = 3, timeout_ms: int = TIMEOUT_MS) -> Run:
        name = f"sink-{next(ATTEMPTS)}"
        bus.create_topic(name, partitions=partitions, replication_factor=replicas)
        return Run(bus, name, f"query-{name}", timeout_ms)

    return make


@pytest.fixture(autouse=True)
def restarted(cluster: LocalCluster) -> Iterator[None]:
    """After a test, start the brokers that the test left stopped."""
    yield
    for each in cluster.brokers:
        if not each.is_running:
            each.start()


def broker_at(cluster: LocalCluster, address: str) -> LocalBroker:
    return next(each for each in cluster.brokers if each.endpoint == address)


def leader(cluster: LocalCluster, run: Run) -> LocalBroker:
    """Return the leader of the first partition of the topic to which the sink writes."""
    found = run.bus.cluster().partition(TopicPartition(run.topic, 0))
    assert found is not None
    return next(each for each in cluster.brokers if each.id == found.leader)


# In the next tests, task attempts fail.


def test_task_attempt_that_spark_does_not_commit_is_aborted(make: Callable[..., Run]) -> None:
    """Spark leaves uncommitted attempts after speculative execution and after it repeats a
    stage."""
    run = make()
    run.write(0, "lost", "lost too")
    winner = run.write(0, "a", "b")
    run.commit(0, winner, run.write(0, "c", task=1), None)
    assert run.visible() == ["a", "b", "c"]


def test_zombie_task_is_refused_after_its_batch_was_committed(make: Callable[..., Run]) -> None:
    run = make()

    def chunks() -> Iterator[list[str]]:
        yield ["zombie"]
        run.commit(0, run.write(0, "winner"))
        yield ["zombie again"]

    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        run.stream(0, chunks())
    run.commit(1, run.write(1, "next"))
    assert run.visible() == ["next", "winner"]


def test_rows_that_an_executor_wrote_before_it_was_killed_are_committed(
    make: Callable[..., Run], tmp_path: Path
) -> None:
    run = make()
    task = (run.options, COLUMNS, run.identity(0, 0), ["a", "b", "c"])
    command = [sys.executable, "-c", EXECUTOR, base64.b64encode(pickle.dumps(task)).decode()]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=tmp_path) as executor:
        assert executor.stdout is not None
        attempt = pickle.loads(base64.b64decode(executor.stdout.readline()))
        executor.kill()
    assert run.visible() == []
    run.commit(0, attempt)
    assert run.visible() == ["a", "b", "c"]


def test_slow_task_without_rows_does_not_cause_a_transaction_timeout(
    make: Callable[..., Run],
) -> None:
    """The slow task runs for longer than transaction.timeout.ms after the task with rows
    has finished."""
    run = make(timeout_ms=2000)
    done = run.write(0, "a")

    def nothing() -> Iterator[list[str]]:
        ends = time.monotonic() + 3
        until(time.monotonic, lambda now: now > ends)
        yield from ()

    idle = run.stream(0, nothing(), task=1)
    assert (idle.producer_id, idle.rows) == (NO_PRODUCER, 0)
    run.commit(0, done, idle)
    assert run.visible() == ["a"]


def test_batch_can_be_committed_after_a_failed_task_attempt_aborted_itself(
    make: Callable[..., Run],
) -> None:
    """Spark's driver gets no message about a failed attempt, so the attempt must abort itself."""
    run = make(1)

    def chunks() -> Iterator[list[str]]:
        yield ["lost"]
        raise ValueError("planted")

    other = run.write(0, "b", task=1)
    with pytest.raises(ValueError, match="planted"):
        run.stream(0, chunks())
    tps = (TopicPartition(run.topic, 0),)

    def holders() -> set[int]:
        held = run.bus.admin.run(transactions.open_in_logs, tps)
        return {row.producer_id for row in held}

    until(holders, lambda found: found == {other.producer_id})
    run.commit(0, other, run.write(0, "a"))
    assert run.visible() == ["a", "b"] and holders() == set()


def test_empty_batch_is_committed_even_as_the_first_batch_after_a_query_start(
    make: Callable[..., Run],
) -> None:
    run = make()
    run.commit(0, run.stream(0, iter(())))
    run.commit(1, run.write(1, "a"), run.stream(1, iter(()), task=1))
    replay = run.again()
    replay.commit(2, replay.stream(2, iter(())))
    replay.commit(3, replay.write(3, "b"))
    assert run.visible() == ["a", "b"]


# In the next tests, drivers fail.


def test_rows_of_a_driver_killed_before_its_commit_stay_invisible(
    make: Callable[..., Run],
) -> None:
    run = make()
    late = run.write(0, "a", "b")
    replay = run.again()
    attempt = replay.write(0, "a", "b")
    assert run.visible() == []
    replay.commit(0, attempt)
    with pytest.raises(ProducerFencedError, match="another run"):
        run.commit(0, late)
    assert run.visible() == ["a", "b"]


def test_next_driver_repeats_no_batch_that_a_killed_driver_committed(
    make: Callable[..., Run],
) -> None:
    run = make()
    run.commit(0, run.write(0, "a", "b"))
    replay = run.again()
    rest = iter([["a"], ["b"]])
    attempt = replay.stream(0, rest)
    assert list(rest) == [], "stateful operators commit when their rows are consumed"
    assert (attempt.producer_id, attempt.rows) == (NO_PRODUCER, 2)
    replay.commit(0, attempt)
    with pytest.raises(SinkRowsDifferError, match="onReplayMismatch"):
        replay.commit(0, replay.write(0, "other"))
    replay.commit(1, replay.write(1, "c"))
    assert run.visible() == ["a", "b", "c"]


def test_second_driver_of_a_checkpoint_fences_the_first(make: Callable[..., Run]) -> None:
    first = make()
    first.commit(0, first.write(0, "a"))
    second = first.again()
    # Both runs write batch 1. The second run began later, so the first must not commit.
    late = first.write(1, "of the first")
    winner = second.write(1, "of the second")
    with pytest.raises(ProducerFencedError, match="another run"):
        first.commit(1, late)
    with pytest.raises(ProducerFencedError, match="another run"):
        first.write(1, "of the first")
    second.commit(1, winner)
    assert first.visible() == ["a", "of the second"]


def test_commit_of_a_batch_can_be_repeated_if_its_response_was_lost(
    make: Callable[..., Run],
) -> None:
    run = make()
    attempt = run.write(0, "a", "b")
    run.send_commit(0, attempt)
    until(run.visible)
    run.commit(0, attempt)
    assert run.visible() == ["a", "b"]


def test_abort_does_not_undo_a_commit_whose_response_was_lost(
    make: Callable[..., Run],
) -> None:
    """Spark aborts a batch whose commit fails in the driver. The next run repeats the batch."""
    run = make()
    attempt = run.write(0, "a", "b")
    run.send_commit(0, attempt)
    until(run.visible)
    exactly_once.abort(run.options, [attempt])
    assert run.visible() == ["a", "b"]
    replay = run.again()
    replay.commit(0, replay.write(0, "a", "b"))
    replay.commit(1, replay.write(1, "c"))
    assert run.visible() == ["a", "b", "c"]


def test_second_batch_write_with_the_same_transactional_id_fences_the_first(
    make: Callable[..., Run],
) -> None:
    """Two jobs with the same option transactionalId run at the same time."""
    first = make()
    second = first.again()
    late, winner = first.write(7, "of the first"), second.write(8, "of the second")
    with pytest.raises(ProducerFencedError, match="another run"):
        first.commit(7, late)
    second.commit(8, winner)
    assert first.visible() == ["of the second"]
    third = first.again()
    with pytest.raises(SinkAheadOfCheckpointError, match="onReplayMismatch"):
        third.write(7, "again")


def test_repeated_batch_without_rows_is_refused_if_the_committed_batch_has_rows(
    make: Callable[..., Run],
) -> None:
    """Regression: the driver sent no commit for a repeated batch without rows, so the coordinator
    did not compare this batch with the committed batch."""
    run = make()
    run.commit(0, run.write(0, "a", "b"))
    replay = run.again()
    with pytest.raises(SinkRowsDifferError, match="2 rows, and its replay has 0"):
        replay.commit(0, replay.stream(0, iter(())))
    replay.options = dataclasses.replace(replay.options, skips_replay_mismatch=True)
    replay.commit(0, replay.stream(0, iter(())))
    assert run.visible() == ["a", "b"]


def test_option_on_replay_mismatch_skip_skips_a_repeated_batch_with_other_rows(
    make: Callable[..., Run],
) -> None:
    run = make()
    run.commit(0, run.write(0, "a", "b"))
    run.commit(1, run.write(1, "c"))
    replay = run.again()
    replay.options = dataclasses.replace(replay.options, skips_replay_mismatch=True)
    for batch in (0, 1):
        replay.commit(batch, replay.write(batch, "other", "rows", "here"))
    replay.commit(2, replay.write(2, "d"))
    assert run.visible() == ["a", "b", "c", "d"]


def test_sink_commit_fails_after_the_transaction_of_the_batch_timed_out(
    make: Callable[..., Run],
) -> None:
    run = make(timeout_ms=1000)
    late = run.write(0, "a")
    # After the timeout the broker aborts the batch, which then hides no later records.
    with run.bus.producer() as producer:
        producer.send(run.topic, "later", partition=0).result()
        producer.send(run.topic, "later", partition=1).result()
    until(run.visible, lambda found: found == ["later", "later"])
    with pytest.raises(ProducerFencedError, match=r"transaction\.timeout\.ms"):
        run.commit(0, late)
    replay = run.again()
    replay.commit(0, replay.write(0, "a"))
    assert run.visible() == ["a", "later", "later"]


# The next test looks at open attempts as an administrator does.


def test_open_task_attempts_of_a_sink_are_listed_as_transactions_of_the_sink(
    make: Callable[..., Run],
) -> None:
    """If the last stable offset does not advance, an administrator must find the sink as the
    reason."""
    run = make()
    attempts = [run.write(0, "a", "b", task=task) for task in (0, 1)]
    tps = [TopicPartition(run.topic, partition) for partition in (0, 1)]
    admin = run.bus.admin
    rows = admin.run(transactions.open_in_logs, tps)
    known = admin.run(transactions.owners, rows)
    assert set(known) == {attempt.producer_id for attempt in attempts}
    assert {row.transactional_id for row in known.values()} == {run.sink}
    assert [row for row in rows if transactions.is_hanging(row, known)] == []

    def describe() -> transactions.TransactionDescription:
        return admin.run(transactions.describe_transaction, run.sink)

    found = describe()
    assert (found.state, found.timeout_ms) == ("Ongoing", TIMEOUT_MS)
    assert set(found.partitions) == set(tps) >= {row.tp for row in rows}
    run.commit(0, *attempts)
    assert describe().state == "Empty"


@pytest.mark.parametrize(("partitions", "joined"), [(3, 3), (33, 1)])
def test_task_attempt_joins_its_batch_with_all_partitions_of_a_small_topic(
    make: Callable[..., Run], partitions: int, joined: int
) -> None:
    """In a larger topic, the attempt's transaction has only the written partition."""
    run = make(partitions)
    attempt = run.write(0, "a")
    found = run.bus.admin.run(transactions.describe_transaction, run.sink)
    assert len(found.partitions) == joined
    run.commit(0, attempt)
    assert run.visible() == ["a"]


# In the next tests, brokers or ZooKeeper fail.


def test_micro_batch_is_committed_although_the_transaction_coordinator_has_died(
    cluster: LocalCluster, make: Callable[..., Run]
) -> None:
    run = make()
    first = run.write(0, "a")
    dead = broker_at(cluster, run.coordinator())
    dead.kill()
    second = run.write(0, "b", task=1)
    run.commit(0, first, second)
    dead.start()
    assert run.visible() == ["a", "b"]


def test_batch_whose_commit_timed_out_is_written_once_after_the_query_restarts(
    cluster: LocalCluster, make: Callable[..., Run]
) -> None:
    """The coordinator may still carry out the first commit after the driver has given up."""
    run = make(timeout_ms=3000)
    attempt = run.write(0, "a", "b")
    silent = broker_at(cluster, run.coordinator())
    silent.pause()
    try:
        hasty = dataclasses.replace(run.options, transaction_timeout_ms=200)
        with pytest.raises(LogbusError) as caught:
            exactly_once.commit(hasty, [attempt], 0)
        assert caught.value.retriable
    finally:
        silent.resume()
    replay = run.again()
    replay.commit(0, replay.write(0, "a", "b"))
    replay.commit(1, replay.write(1, "c"))
    assert run.visible() == ["a", "b", "c"]


def test_next_coordinator_writes_the_markers_of_a_committed_batch(
    cluster: LocalCluster, make: Callable[..., Run]
) -> None:
    run = make(1, replicas=1)
    while leader(cluster, run) is broker_at(cluster, run.coordinator()):
        run = make(1, replicas=1)
    coordinator, output = broker_at(cluster, run.coordinator()), leader(cluster, run)
    attempt = run.write(0, "a", "b", "c")
    output.kill()
    run.commit(0, attempt)  # The output topic's only replica is down, so no marker is written yet.
    coordinator.kill()
    output.start()
    found = until(run.visible)
    coordinator.start()
    assert found == ["a", "b", "c"]


def test_sink_commits_a_batch_although_a_partition_leader_died_during_the_write(
    cluster: LocalCluster, make: Callable[..., Run]
) -> None:
    run = make()
    dead = leader(cluster, run)

    def chunks() -> Iterator[list[str]]:
        yield ["a", "b"]
        dead.kill()
        yield ["c", "d"]

    attempt = run.stream(0, chunks())
    run.commit(0, attempt)
    dead.start()
    assert run.visible() == ["a", "b", "c", "d"]


def test_batch_is_written_once_although_all_brokers_die_during_its_writes_and_its_commit(
    cluster: LocalCluster, make: Callable[..., Run]
) -> None:
    run = make(timeout_ms=300_000)

    def kill_all() -> None:
        for broker in cluster.brokers:
            broker.kill()
        for broker in cluster.brokers:
            broker.start(wait=False)
        for broker in cluster.brokers:
            broker.wait_ready()

    def chunks() -> Iterator[list[str]]:
        yield ["a", "b"]
        kill_all()
        yield ["c"]

    attempt = run.stream(0, chunks())
    run.send_commit(0, attempt)
    kill_all()
    run.commit(0, attempt)
    replay = run.again()
    replay.commit(0, replay.write(0, "a", "b", "c"))
    assert run.visible() == ["a", "b", "c"]


def test_sink_commits_batches_while_zookeeper_is_down(
    cluster: LocalCluster, make: Callable[..., Run]
) -> None:
    run = make()
    run.commit(0, run.write(0, "a"))
    server = cluster.zookeeper_server
    assert server is not None
    server.kill()
    try:
        for batch, value in enumerate("bcd", 1):
            run.commit(batch, run.write(batch, value))
        assert run.visible() == ["a", "b", "c", "d"]
    finally:
        server.start()
