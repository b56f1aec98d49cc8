"""Test the exactly-once sink: readers see each row of a batch once, or none of its rows."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from support.patience import until
from support.spark_queries import records

from broker_lite.client.administration.transactions import open_in_logs

EXACTLY_ONCE = {"deliveryGuarantee": "exactly_once"}
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
LONG = 100_000
"""Characters of a long value. Spark's workers buffer 64 KB, so a long value reaches the sink before
the task ends, if it is in a batch of its own (``BATCH_ROWS`` 1) and another batch follows.
"""


def visible(bus, topic):
    """Return the values of all records that read_committed returns, sorted."""
    return sorted(record.value.decode() for record in records(bus, topic))


def holders(bus, topic):
    """Return the open transactions in the logs of a topic, which hold back read_committed
    readers."""
    tps = bus.admin.cluster((topic,)).partitions_of(topic)
    return bus.admin.run(open_in_logs, tps)


def copy(queries, source, target, checkpoint, frame=None, **options):
    """Copy all records of a topic to another topic with a query; return the ended query."""
    read = queries.stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    query = queries.start(
        (frame or (lambda rows: rows))(read.select("value")),
        checkpoint=checkpoint,
        trigger={"availableNow": True},
        topic=target,
        **EXACTLY_ONCE,
        **options,
    )
    query.awaitTermination()
    return query


def forget_last_commit(checkpoint):
    """Remove the last batch from Spark's commit log; return the batch's number.

    The checkpoint then looks as if the driver had died before it wrote this entry.
    """
    commits = Path(checkpoint, "commits")
    last = max((path for path in commits.iterdir() if path.name.isdigit()),
               key=lambda path: int(path.name))  # fmt: skip
    for path in (last, commits / f".{last.name}.crc"):
        path.unlink(missing_ok=True)
    return int(last.name)


@pytest.fixture
def copied(queries, bus):
    """Return a topic with ten records, their copy, and the checkpoint of the copying query."""
    source, target = queries.topic(5, 5), queries.topic(0, 0)
    checkpoint = queries.checkpoint()
    copy(queries, source, target, checkpoint)
    assert visible(bus, target) == queries.values(source)
    return source, target, checkpoint


def test_rows_of_each_batch_are_visible_once_even_after_a_restart_of_the_query(
    queries, bus, copied
):
    source, target, checkpoint = copied
    queries.fill(source, 3, 3, word="more")
    copy(queries, source, target, checkpoint)
    found = visible(bus, target)
    assert len(found) == 16 and found == queries.values(source)


def test_restart_without_the_last_spark_commit_log_entry_repeats_no_row(queries, bus, copied):
    source, target, checkpoint = copied
    forget_last_commit(checkpoint)
    queries.fill(source, 2, 2, word="more")
    query = copy(queries, source, target, checkpoint)
    assert query.exception() is None
    assert visible(bus, target) == queries.values(source)


def test_rows_of_a_failed_batch_are_invisible_and_its_repetition_writes_each_row_once(
    queries, bus, tmp_path
):
    source, target = queries.topic(5, 5), queries.topic(0, 0)
    checkpoint = queries.checkpoint()
    fails = tmp_path / "fails"
    fails.touch()

    def failing(rows):
        def look(batches):
            for batch in batches:
                yield batch
                # By now the rows of this batch are in the sink's producer or on the brokers.
                if fails.exists():
                    raise ValueError("planted")

        return rows.mapInArrow(look, rows.schema)

    with pytest.raises(StreamingQueryException, match="planted"):
        copy(queries, source, target, checkpoint, failing)
    assert visible(bus, target) == []
    # The failed attempts must abort themselves: without a finished attempt, the driver does not
    # know the sink.
    until(lambda: holders(bus, target) == [])
    fails.unlink()
    copy(queries, source, target, checkpoint, failing)
    assert visible(bus, target) == queries.values(source)


def test_stopped_query_leaves_no_open_transaction(queries, bus, tmp_path):
    """The worker processes of the stopped query live on with the Spark session, and must not keep
    the query's transaction open."""
    source, target = queries.topic(5, 5), queries.topic(0, 0)
    checkpoint = queries.checkpoint()
    waits = tmp_path / "waits"
    waits.touch()

    def waiting(rows):
        def look(batches):
            for number, batch in enumerate(batches):
                yield batch
                while number and waits.exists():
                    time.sleep(0.01)

        long = rows.selectExpr(f"repeat(string(value), {LONG}) AS value")
        return long.mapInArrow(look, long.schema)

    read = queries.stream(subscribe=source, startingOffsets="earliest")
    queries.spark.conf.set(BATCH_ROWS, 1)
    query = queries.start(
        waiting(read.select("value")),
        checkpoint=checkpoint,
        topic=target,
        **EXACTLY_ONCE,
        **{"transaction.timeout.ms": "3000"},
    )
    queries.spark.conf.unset(BATCH_ROWS)
    until(lambda: holders(bus, target))
    query.stop()
    with bus.producer() as producer:
        for partition in (0, 1):
            producer.send(target, "later", partition=partition)
    until(lambda: visible(bus, target), lambda found: found == ["later", "later"])
    waits.unlink()
    copy(queries, source, target, checkpoint, waiting)
    rows = [value * LONG for value in queries.values(source)]
    assert visible(bus, target) == sorted([*rows, "later", "later"])


def test_repeated_batch_with_other_rows_fails_unless_on_replay_mismatch_is_skip(
    queries, bus, copied
):
    source, target, checkpoint = copied
    before = visible(bus, target)
    other = shutil.copytree(checkpoint, f"{checkpoint}-other")

    forget_last_commit(checkpoint)
    with pytest.raises(StreamingQueryException, match="SINK_ROWS_DIFFER"):
        copy(queries, source, target, checkpoint, doubled)
    assert visible(bus, target) == before
    forget_last_commit(other)
    copy(queries, source, target, str(other), doubled, onReplayMismatch="skip")
    assert visible(bus, target) == before


def doubled(rows):
    """Duplicate each row, so that the repeated batch has more rows than the committed batch."""
    return rows.selectExpr("explode(array(value, value)) as value")


def test_query_from_an_older_copy_of_its_checkpoint_is_refused(queries, bus, copied):
    source, target, checkpoint = copied
    before = visible(bus, target)
    for _ in range(2):
        last = forget_last_commit(checkpoint)
    offsets = Path(checkpoint, "offsets")
    for path in offsets.iterdir():
        name = path.name.strip(".").removesuffix(".crc")
        if name.isdigit() and int(name) > last:
            path.unlink()
    with pytest.raises(StreamingQueryException, match="SINK_AHEAD_OF_CHECKPOINT"):
        copy(queries, source, target, checkpoint)
    assert visible(bus, target) == before


def test_batch_write_is_visible_as_a_whole_or_not_at_all(queries, bus, tmp_path):
    target = queries.topic(0, 0)

    def look(batches):
        for batch in batches:
            yield batch
            if 7 in batch.column("id").to_pylist():
                raise ValueError("planted")

    rows = queries.spark.range(0, 100, 1, 2).mapInArrow(look, "id long")
    with pytest.raises(PySparkException, match="planted"):
        queries.write(rows.selectExpr("cast(id as string) value"), topic=target, **EXACTLY_ONCE)
    assert visible(bus, target) == []
    good = queries.spark.range(100).selectExpr("cast(id as string) value")
    queries.write(good, topic=target, **EXACTLY_ONCE)
    assert visible(bus, target) == sorted(map(str, range(100)))


def test_batch_write_that_is_repeated_with_the_same_version_writes_nothing(queries, bus):
    target = queries.topic(0)
    sink = f"job-{target}"
    rows = queries.spark.range(10).selectExpr("cast(id as string) value")

    def write(version, frame=rows, **more):
        options = {"transactionalId": sink, "transactionVersion": str(version)}
        queries.write(frame, topic=target, **EXACTLY_ONCE, **options, **more)

    write(3)
    write(3)
    assert len(visible(bus, target)) == 10
    with pytest.raises(PySparkException, match="SINK_AHEAD_OF_CHECKPOINT"):
        write(2)
    with pytest.raises(PySparkException, match="SINK_ROWS_DIFFER"):
        write(3, rows.limit(4))
    write(2, onReplayMismatch="skip")
    assert len(visible(bus, target)) == 10
    write(4)
    assert len(visible(bus, target)) == 20


@pytest.mark.parametrize("is_idempotent", [True, False], ids=["with a version", "without"])
def test_foreach_batch_write_with_a_transaction_version_is_atomic_and_idempotent(
    queries, bus, is_idempotent
):
    source, target = queries.topic(3, 3), queries.topic(0, 0)
    checkpoint = queries.checkpoint()

    def write(frame, batch):
        options = {"transactionalId": f"each-{target}", "transactionVersion": str(batch)}
        queries.write(
            frame.select("value"),
            topic=target,
            **EXACTLY_ONCE,
            **(options if is_idempotent else {}),
        )

    def run():
        read = queries.stream(subscribe=source, startingOffsets="earliest")
        trigger = {"availableNow": True}
        query = queries.start(read, checkpoint=checkpoint, trigger=trigger, each=write)
        query.awaitTermination()
        assert query.exception() is None

    run()
    once = queries.values(source)
    assert visible(bus, target) == once
    forget_last_commit(checkpoint)
    run()
    assert visible(bus, target) == (once if is_idempotent else sorted(once + once))


def test_stateful_query_keeps_its_state_if_a_committed_batch_is_repeated(queries, bus):
    """The sink skips the repeated rows, but must still read them all: otherwise Spark loses the
    query's state."""
    source, target = queries.topic(2, 2), queries.topic(0, 0)
    checkpoint = queries.checkpoint()

    def distinct(rows):
        return rows.dropDuplicates(["value"])

    copy(queries, source, target, checkpoint, distinct)
    assert visible(bus, target) == ["0", "1"]
    forget_last_commit(checkpoint)
    queries.fill(source, 3, 4)
    copy(queries, source, target, checkpoint, distinct)
    assert visible(bus, target) == ["0", "1", "2", "3"]
