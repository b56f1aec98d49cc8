"""Test streaming queries: each row once, restarts, triggers, progress.

Each test checks several behaviours, because a query takes seconds. The behaviours are those of
Spark's KafkaMicroBatchSourceSuite that need Spark itself.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support.patience import until
from support.spark_planning import fill
from support.spark_processes import connections, python_workers
from support.spark_queries import damage_second_of_three, offsets

from broker_lite.cli.main import run as command_line
from pyspark_logbus.progress_listener import LagListener

TIME = 1_700_000_000_000


def numbers(*counts):
    return sorted(str(number) for count in counts for number in range(count))


def assert_seen_on_the_command_line(bus, capsys, group, topic):
    """Check what logbus commands show of a running query that has read 13 and 7 records of two
    partitions.

    A command must refuse to move the offsets of the query's group.
    """

    def rows(*arguments, code=0):
        asked = [*arguments, "-b", bus.bootstrap_servers, "-o", "json"]
        assert command_line(asked) == code
        said = capsys.readouterr()
        return said.err if code else json.loads(said.out)

    read = {"group": group, "topic": topic}
    lag = rows("lag", "-g", group, "--crit", "0", "--crit-s", "0")
    assert lag == [{**read, "partitions": 2, "lag": 0, "lag_s": 0}]
    found = [{**row, "committed_at": None} for row in rows("groups", "describe", group)]
    (owner,) = {row["owner"] for row in found}
    assert owner, "the query's run"
    assert found == [
        {**read, "partition": index, "committed": end, "end": end, "lag": 0, "lag_s": 0,
         "committed_at": None, "owner": owner}
        for index, end in enumerate((13, 7))
    ]  # fmt: skip
    seek = ("groups", "seek", group, topic, "--to", "earliest", "--yes")
    assert "GROUP_LEASE_HELD" in rows(*seek, code=1)


def test_stream_copies_a_topic_across_a_restart(queries, bus, capsys):
    """The test checks limits, idle triggers, the checkpoint's precedence over options, progress,
    lag and output rows.
    """
    source, target = queries.topic(13, 7), queries.topic(0, 0)
    checkpoint = queries.checkpoint()
    lags = []
    listener = LagListener(lags.append)
    queries.spark.streams.addListener(listener)
    given = {"subscribe": source, "startingOffsets": "earliest", "group.id": f"g-{source}",
             "includeHeaders": "true", "maxOffsetsPerTrigger": "10"}  # fmt: skip
    frame = queries.stream(**given).select("value", "headers")
    query = queries.start(frame, checkpoint=checkpoint, topic=target)
    until(lambda: len(queries.values(target)) == 20)
    # The source publishes a batch's offsets at the next planning call, not after the next batch.
    until(lambda: queries.committed(f"g-{source}") == {f"{source}-0": 13, f"{source}-1": 7})
    first = [p for p in query.recentProgress if p.numInputRows]
    # The number of batches depends on which end offset the source learns first.
    rows = [p.numInputRows for p in first]
    assert sum(rows) == 20
    assert max(rows) <= 10
    assert sum(p.sink.numOutputRows for p in first) == 20
    # Without new records Spark runs no batch, however often it asks for the latest offset.
    batches = query.lastProgress.batchId
    until(lambda: lags and lags[-1].records_behind == 0)
    assert query.lastProgress.batchId == batches
    assert_seen_on_the_command_line(bus, capsys, f"g-{source}", source)
    assert [lag.group for lag in lags] == [f"g-{source}"] * len(lags)
    query.stop()
    # Spark stops the planner by SIGTERM. The planner must still release the group's lease.
    until(lambda: not any(row.metadata for row in bus.admin.committed(f"g-{source}").values()))
    queries.spark.streams.removeListener(listener)
    queries.fill(source, 0, 5, word="late-")
    # The query resumes from the checkpoint and ignores startingOffsets.
    again = queries.stream(**{**given, "startingOffsets": "latest"}).select("value")
    queries.start(again, checkpoint=checkpoint, topic=target)
    wanted = sorted(numbers(13, 7) + [f"late-{n}" for n in range(5)])
    until(lambda: queries.values(target) == wanted)


def test_triggers_available_now_and_once_read_the_backlog(queries, bus):
    """Row limits apply to the trigger availableNow but not to once. The query also
    commits the offsets of its last batch to its group.
    """
    source, target = queries.topic(15), queries.topic(0)
    checkpoint = queries.checkpoint()
    given = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5",
             "group.id": f"now-{source}"}  # fmt: skip
    query = queries.start(
        queries.stream(**given).select("value"), checkpoint=checkpoint, topic=target,
        trigger={"availableNow": True},
    )  # fmt: skip
    query.awaitTermination(60)
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [5, 5, 5]
    until(lambda: queries.committed(f"now-{source}") == {f"{source}-0": 15})
    queries.fill(source, 12, word="more-")
    once = queries.start(
        queries.stream(**given).select("value"), checkpoint=checkpoint, topic=target,
        trigger={"once": True},
    )  # fmt: skip
    once.awaitTermination(60)
    assert [p.numInputRows for p in once.recentProgress if p.numInputRows] == [12]
    assert len(queries.values(target)) == 27


def test_repeated_first_batch_has_the_same_rows_although_records_were_added(queries):
    source = queries.topic(100)
    checkpoint, seen = queries.checkpoint(), []

    def fail(frame, batch):
        seen.append(frame.count())
        if seen[-1]:
            raise RuntimeError("the batch is already committed")

    given = {"subscribe": source, "startingOffsets": "latest", "minOffsetsPerTrigger": "1"}
    query = queries.start(queries.stream(**given), checkpoint=checkpoint, each=fail)
    until(lambda: seen == [0] or query.exception())
    queries.fill(source, 20, word="new-")
    with pytest.raises(Exception, match="the batch is already committed"):
        query.awaitTermination(60)
    queries.fill(source, 5, word="later-")
    values = []

    def keep(frame, batch):
        values.extend(bytes(row.value).decode() for row in frame.collect())

    queries.start(queries.stream(**given), checkpoint=checkpoint, each=keep)
    until(lambda: len(values) >= 25)
    assert sorted(values) == sorted(
        [f"new-{n}" for n in range(20)] + [f"later-{n}" for n in range(5)]
    )


def test_query_with_several_sources_continues_after_a_restart(queries, bus):
    """The sources differ in topic selection, start offsets, row limits and minimum rows.

    The test adds partitions while the query runs. The query groups rows by event-time windows.
    """
    fixed, waits, grows = queries.topic(0, 0, 0), queries.topic(0), queries.topic(0, 0)
    idle = queries.topic(2)
    for topic, counts in ((fixed, (6, 6, 6)), (waits, (6,)), (grows, (4, 4))):
        fill(bus, topic, *counts, start_ms=TIME)
    group, checkpoint, batches = f"g-{fixed}", queries.checkpoint(), {}
    sources = (
        {"assign": json.dumps({fixed: [0, 1, 2]}), "group.id": group, "maxOffsetsPerTrigger": "4",
         "startingOffsets": json.dumps({fixed: {"0": -2, "1": -1, "2": 4}})},
        {"subscribe": waits, "startingTimestamp": str(TIME + 3), "failOnDataLoss": "false",
         "minOffsetsPerTrigger": "15"},
        {"subscribePattern": f"{grows}.*", "metadata.max.age.ms": "200",
         "startingOffsetsByTimestamp": json.dumps({grows: {"0": TIME + 1, "1": TIME + 9}}),
         "startingOffsetsByTimestampStrategy": "latest",
         "minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1s"},
        {"subscribe": idle, "startingOffsets": "latest"},
    )  # fmt: skip

    def each(frame, batch):
        hour = F.window("timestamp", "1 hour").start.cast("long").alias("hour")
        rows = frame.select("topic", "partition", "offset", hour).collect()
        assert all(row.hour % 3600 == 0 for row in rows)
        batches[batch] = [tuple(row[:3]) for row in rows]

    def start():
        union = functools.reduce(DataFrame.union, (queries.stream(**given) for given in sources))
        union = union.withWatermark("timestamp", "1 hour")
        trigger = {"processingTime": "50 milliseconds"}
        return queries.start(union, checkpoint=checkpoint, each=each, trigger=trigger)

    def counts(topic):
        """Return the row counts of a topic's non-empty batches."""
        found = [sum(row[0] == topic for row in batches[batch]) for batch in sorted(batches)]
        return [count for count in found if count]

    def reach(**wanted):
        names = {"fixed": fixed, "waits": waits, "grows": grows, "idle": idle}
        until(lambda: {n: sum(counts(names[n])) for n in wanted} == wanted or query.exception())
        assert query.isActive, query.exception()

    query = start()
    reach(fixed=8, waits=3, grows=3)
    assert max(counts(fixed)) <= 4
    fill(bus, waits, 5)
    fill(bus, fixed, 1, 1, 1)
    fill(bus, grows, 0, 2)
    reach(fixed=11, grows=5)
    assert counts(waits) == [3]
    fill(bus, waits, 10)
    bus.admin.create_partitions(grows, 4)
    fill(bus, grows, 0, 0, 2, 2)
    reach(waits=18, grows=9)
    assert counts(waits) == [3, 15]
    until(lambda: queries.committed(group) == {f"{fixed}-{n}": 7 for n in range(3)})
    # The offset of a source without new records must stay the same text.
    [unmoved] = offsets(query, 3)
    until(lambda: query.status["message"].startswith("Waiting for"))
    query.stop()
    for topic, more in ((fixed, (2,)), (waits, (3,)), (grows, (0, 0, 1))):
        fill(bus, topic, *more)
    query = start()
    # After a restart, minOffsetsPerTrigger must not delay the first batch.
    reach(fixed=13, waits=21, grows=10)
    assert offsets(query, 3) in ([], [unmoved])
    fill(bus, idle, 2)
    reach(idle=2)
    rows = [row for found in batches.values() for row in found]
    assert len(rows) == len(set(rows)) == 46


def test_rows_of_output_mode_complete_are_appended_to_the_topic(queries):
    source, target = queries.topic(10), queries.topic(0)
    counts = (
        queries.stream(subscribe=source, startingOffsets="earliest")
        .groupBy((F.col("offset") % 2).cast("string").alias("key"))
        .agg(F.count("*").cast("string").alias("value"))
    )
    query = queries.start(counts, mode="complete", topic=target, trigger={"availableNow": True})
    query.awaitTermination(60)
    assert query.exception() is None
    assert queries.values(target) == ["5", "5"]
    # Spark refuses the output mode Update for Python sinks. foreachBatch is the alternative.
    changed = queries.topic(0)
    query = queries.start(
        counts, mode="update", each=lambda frame, batch: queries.write(frame, topic=changed),
        trigger={"availableNow": True},
    )  # fmt: skip
    query.awaitTermination(60)
    assert queries.values(changed) == ["5", "5"]


def test_converted_kafka_checkpoint_keeps_state_and_batch_numbers(queries, bus, capfd):
    """``logbus checkpoint`` converts the checkpoint. The query then runs its unfinished
    batch with the same rows again."""
    topic = queries.topic(6, 0)
    old, new = queries.checkpoint(), queries.checkpoint()
    seen = {}

    def each(batch, number):
        seen[number] = sorted((row["v"], row["count"]) for row in batch.collect())

    def run(checkpoint):
        frame = queries.stream(
            subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="4"
        )
        counts = (
            frame.select(F.expr("cast(cast(value AS string) AS int) % 2 AS v")).groupBy("v").count()
        )
        trigger = {"availableNow": True}
        query = queries.start(
            counts, checkpoint=checkpoint, mode="update", each=each, trigger=trigger
        )
        query.awaitTermination()

    run(old)
    first = dict(seen)
    assert first == {0: [(0, 2), (1, 2)], 1: [(0, 3), (1, 3)]}
    for file in Path(old, "offsets").glob("[0-9]*"):
        *above, end = file.read_text().splitlines()
        ends = {topic: json.loads(end)["topics"][topic]["offsets"]}
        file.write_text("\n".join([*above, json.dumps(ends, separators=(",", ":"))]))
        (file.parent / f".{file.name}.crc").unlink()
    for name in ("1", ".1.crc"):
        Path(old, "commits", name).unlink()
    with pytest.raises(StreamingQueryException, match="logbus checkpoint OLD NEW"):
        run(old)
    command = [sys.executable, "-P", "-m", "broker_lite", "checkpoint", old, new]
    subprocess.run([*command, "-b", bus.bootstrap_servers], check=True, timeout=60)
    first_offset = json.loads(capfd.readouterr().out)["offsets"][0]
    assert first_offset == {"source": 0, "topic": topic, "partition": 0, "kafka": 6, "logbus": 6}
    queries.fill(topic, 3)
    run(new)
    assert seen == first | {2: [(0, 5), (1, 4)]}


def test_spark_refuses_operations_that_a_python_data_source_cannot_offer(queries):
    """The README quotes the messages of Spark that the test expects."""
    source, target = queries.topic(1), queries.topic(0)
    frame = queries.stream(subscribe=source).select("value")
    for given, said in (
        ({"mode": "update"}, "does not support Update mode"),
        ({"trigger": {"continuous": "1 second"}},
         "Data source logbus does not support continuous processing"),
        ({"trigger": {"realTime": "5 minutes"}, "mode": "update"}, "STREAMING_REAL_TIME_MODE"),
        ({"asyncProgressTrackingEnabled": "true"},
         "Sink logbus does not support async progress tracking"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=said):
            queries.start(frame, topic=target, **given).awaitTermination(60)


def test_query_fails_with_a_data_loss_error_if_its_topic_was_recreated(queries, bus):
    source = queries.topic(10)
    checkpoint, seen = queries.checkpoint(), []
    given = {"subscribe": source, "startingOffsets": "earliest"}

    def each(frame, batch):
        seen.extend(row.offset for row in frame.collect())

    queries.start(
        queries.stream(**given), checkpoint=checkpoint, each=each, trigger={"availableNow": True}
    ).awaitTermination(60)
    bus.delete_topic(source)
    queries.topic(50, name=source)
    query = queries.start(queries.stream(**given), checkpoint=checkpoint, each=each)
    with pytest.raises(Exception) as raised:
        query.awaitTermination(60)
    said = str(raised.value)
    assert "[LOGBUS_DATA_LOSS]" in said
    assert f"topic {source} was deleted and recreated" in said
    assert "failOnDataLoss=false" in said
    lax = queries.stream(**given, failOnDataLoss="false")
    queries.start(lax, checkpoint=checkpoint, each=each)
    until(lambda: len(seen) == 60)
    assert sorted(seen) == sorted([*range(10), *range(50)])


def test_pattern_stream_finds_new_topics_and_partitions(queries, bus):
    word = queries.topic(2)
    pattern = f"{word}.*"
    seen = []

    def each(frame, batch):
        seen.extend((row.topic, row.partition, row.offset) for row in frame.collect())

    frame = queries.stream(
        subscribePattern=pattern, startingOffsets="latest", failOnDataLoss="false",
        **{"metadata.max.age.ms": "200"},
    )  # fmt: skip
    query = queries.start(frame, each=each)
    until(lambda: query.lastProgress)
    queries.topic(3, name=f"{word}-second")
    bus.admin.create_partitions(word, 2)
    queries.fill(word, 1, 2)
    until(lambda: len(seen) == 6)
    bus.delete_topic(f"{word}-second")
    queries.topic(4, name=f"{word}-third")
    until(lambda: len(seen) == 10)
    queries.fill(word, 1)
    until(lambda: len(seen) == 11)
    assert len(set(seen)) == 11
    assert query.isActive


HELD_BY_A_WORKER = 3
"""Maximum connections of a Python worker process to one broker, however many tasks it has run.

One connection is of the process's pool, for reads and the sink's metadata requests. Two are of the
sink's producer, whose batches must not delay its other requests.
"""


def assert_few_connections(workers, cluster, most):
    for broker in cluster.brokers:
        held = [connections(worker, broker.port) for worker in workers]
        assert max(held) <= most, held


def test_no_row_is_lost_when_python_workers_and_a_broker_are_killed(queries, bus, cluster):
    source, target = queries.topic(5, 5, 5), queries.topic(0, 0, 0)
    given = {"subscribe": source, "startingOffsets": "earliest", "group.id": f"g-{source}"}
    query = queries.start(queries.stream(**given).select("value"), topic=target)
    until(lambda: queries.committed(f"g-{source}") == {f"{source}-{n}": 5 for n in range(3)})
    # Kill the workers now, because Spark itself ends them only after an idle minute.
    until(lambda: query.status["message"].startswith("Waiting for data"))
    before = python_workers(queries.spark)
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    # Wait until Spark's daemon has reaped the dead workers: a task on a dead worker fails.
    until(lambda: not set(before) & set(python_workers(queries.spark)))
    queries.fill(source, 1, word="w")
    until(lambda: "w0" in queries.values(target) or query.exception())
    assert query.isActive, query.exception()
    workers = python_workers(queries.spark)
    # Each of the two tasks has at most two workers: one that reads and one that writes.
    assert 1 <= len(workers) <= 4
    assert_few_connections(workers, cluster, HELD_BY_A_WORKER)
    broker = cluster.brokers[0]
    with bus.producer() as producer:
        sent = []
        for number in range(300):
            if number == 100:
                broker.kill()
            if number == 200:
                broker.start()
            sent.append(producer.send(source, f"n{number}".encode(), partition=number % 3))
        for future in sent:
            future.result(60)
    wanted = {*numbers(5), "w0", *(f"n{number}" for number in range(300))}
    until(lambda: set(queries.values(target)) == wanted)
    assert query.isActive, query.exception()
    # Many batches and a change of leaders may add at most one connection to each worker.
    assert_few_connections(python_workers(queries.spark), cluster, HELD_BY_A_WORKER + 1)


@pytest.mark.parametrize(
    ("given", "sink", "said"),
    [
        ({"endingOffsets": "latest"}, {}, "ending offset not valid in streaming queries"),
        ({"subscribe": "nowhere"}, {}, "logbus topic create nowhere"),
        ({"schema": "value string"}, {}, "'value' is binary, not string"),
        ({}, {"topic": "nowhere"}, "logbus topic create nowhere"),
        ({}, {}, "topic option required when no 'topic' attribute is present"),
    ],
)
def test_error_of_a_failed_query_says_how_to_fix_the_cause(queries, given, sink, said):
    source = queries.topic(1)
    frame = queries.stream(**{"subscribe": source, "startingOffsets": "earliest", **given})
    with pytest.raises(Exception) as raised:
        queries.start(frame.select("value"), **sink).awaitTermination(60)
    assert said in str(raised.value)
    assert "[LOGBUS_" in str(raised.value)
    assert "PicklingError" not in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_query_listener_reports_the_number_of_skipped_rows_of_a_corrupt_batch(
    queries, bus, cluster
):
    """A task cannot report to Spark how many rows of a corrupt batch it skipped.

    The listener therefore compares the offsets of a batch with its row count, and reports missing
    rows.
    """
    source, seen, lags = queries.topic(0, replicas=1), [], []
    damaged = damage_second_of_three(bus, cluster, source)
    listener = LagListener(lags.append)
    queries.spark.streams.addListener(listener)
    given = {"subscribe": source, "startingOffsets": "earliest", "failOnDataLoss": "false"}

    def each(frame, batch):
        seen.extend(row.offset for row in frame.collect())

    queries.start(queries.stream(**given), each=each)
    until(lambda: len(seen) == 30 - len(damaged))
    until(lambda: [lag.missing_rows for lag in lags if lag.rows] == [len(damaged)])
    queries.fill(source, 4)
    until(lambda: [lag.missing_rows for lag in lags if lag.rows] == [len(damaged), 0])
    queries.spark.streams.removeListener(listener)
    assert seen == [offset for offset in range(34) if offset not in damaged]
    assert {lag.lost_records for lag in lags} == {0}


def test_checkpoint_of_a_later_version_is_refused(queries, tmp_path):
    source = queries.topic(3)
    checkpoint, seen = queries.checkpoint(), []
    frame = queries.stream(subscribe=source, startingOffsets="earliest")
    each = lambda frame, batch: seen.append(frame.count())  # noqa: E731
    queries.start(frame, checkpoint=checkpoint, each=each, trigger={"availableNow": True}
                  ).awaitTermination(60)  # fmt: skip
    for log in (f"{checkpoint}/offsets/0",):
        lines = open(log).read().splitlines()  # noqa: SIM115
        document = json.loads(lines[-1])
        lines[-1] = json.dumps({**document, "version": 9})
        open(log, "w").write("\n".join(lines))  # noqa: SIM115
    crc = tmp_path.joinpath(checkpoint, "offsets", ".0.crc")
    crc.unlink(missing_ok=True)
    query = queries.start(frame, checkpoint=checkpoint, each=each)
    with pytest.raises(Exception, match="offset of version 9"):
        query.awaitTermination(60)
