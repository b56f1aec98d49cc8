"""Streaming queries: every row once, restarts, triggers, progress. One query shows several things,
since each costs seconds. KafkaMicroBatchSourceSuite's behaviours that need Spark itself."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F
from spark_queries import damage_second_of_three, offsets, until

from pyspark_logbus.progress_listener import LagListener


def numbers(*counts):
    return sorted(str(number) for count in counts for number in range(count))


def test_from_topic_to_topic_over_a_restart(queries, bus):
    """Limits, no endless batches, checkpoint against options, progress, lag, output rows."""
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
    # Published at the next planning call, not a batch late.
    until(lambda: queries.committed(f"g-{source}") == {f"{source}-0": 13, f"{source}-1": 7})
    first = [p for p in query.recentProgress if p.numInputRows]
    # Three at least; which depends on whose end is known first.
    rows = [p.numInputRows for p in first]
    assert sum(rows) == 20
    assert max(rows) <= 10
    assert sum(p.sink.numOutputRows for p in first) == 20
    # Nothing new is no batch, however often Spark asks.
    batches = query.lastProgress.batchId
    until(lambda: lags and lags[-1].records_behind == 0)
    assert query.lastProgress.batchId == batches
    assert [lag.group for lag in lags] == [f"g-{source}"] * len(lags)
    query.stop()
    # Spark ends the planner with SIGTERM; even so the group's lease is given back.
    until(lambda: not any(row.metadata for row in bus.admin.committed(f"g-{source}").values()))
    queries.spark.streams.removeListener(listener)
    queries.fill(source, 0, 5, word="late-")
    # startingOffsets is not looked at again; the checkpoint's text is read back.
    again = queries.stream(**{**given, "startingOffsets": "latest"}).select("value")
    queries.start(again, checkpoint=checkpoint, topic=target)
    wanted = sorted(numbers(13, 7) + [f"late-{n}" for n in range(5)])
    until(lambda: queries.values(target) == wanted)


def test_available_now_and_once(queries, bus):
    """The target is fixed, batches are limited, the last batch is published as well."""
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


def test_the_first_batch_is_repeated_with_the_same_rows_though_latest_moved(queries):
    source = queries.topic(100)
    checkpoint, seen = queries.checkpoint(), []

    def fail(frame, batch):
        seen.append(frame.count())
        if seen[-1]:
            raise RuntimeError("before it is committed")

    given = {"subscribe": source, "startingOffsets": "latest", "minOffsetsPerTrigger": "1"}
    query = queries.start(queries.stream(**given), checkpoint=checkpoint, each=fail)
    until(lambda: seen == [0] or query.exception())
    queries.fill(source, 20, word="new-")
    with pytest.raises(Exception, match="before it is committed"):
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


def test_two_sources_foreach_batch_and_event_time(queries):
    """A union of a busy and an idle source; df.write within foreachBatch; windows by timestamp."""
    busy, idle, target = queries.topic(6), queries.topic(2), queries.topic(0)
    windows = []

    def each(frame, batch):
        queries.write(frame.select("value"), topic=target)
        found = frame.groupBy(F.window("timestamp", "1 hour")).count().collect()
        windows.append(sum(row["count"] for row in found))

    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
    one = queries.stream(subscribe=busy, **given)
    group = f"g-{idle}"
    two = queries.stream(assign=json.dumps({idle: [0]}), **given, **{"group.id": group})
    query = queries.start(
        one.union(two).withWatermark("timestamp", "1 hour"),
        each=each,
        trigger={"processingTime": "50 milliseconds"},
    )
    until(lambda: sum(windows) == 8)
    queries.fill(busy, 3, word="more-")
    until(lambda: sum(windows) == 11)
    until(lambda: queries.committed(group) == {f"{idle}-0": 2})
    wanted = sorted(numbers(6, 2) + [f"more-{n}" for n in range(3)])
    assert queries.values(target) == wanted
    # A source that has nothing stays where it is: its offset's text is unchanged.
    assert len(offsets(query, 1)) == 1


def test_complete_mode_is_taken_as_append_and_update_is_refused(queries):
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
    with pytest.raises(Exception, match="does not support Update mode"):
        queries.start(counts, mode="update", topic=target).awaitTermination(60)


def test_a_recreated_topic_ends_the_query_with_its_lost_ranges(queries, bus):
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
    assert f"topic {source} was deleted and made again" in said
    assert "failOnDataLoss=false" in said
    lax = queries.stream(**given, failOnDataLoss="false")
    queries.start(lax, checkpoint=checkpoint, each=each)
    until(lambda: len(seen) == 60)
    assert sorted(seen) == sorted([*range(10), *range(50)])


def test_a_pattern_finds_topics_and_partitions_while_it_runs(queries, bus):
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


def test_a_killed_broker_delays_and_loses_nothing(queries, bus, cluster):
    source, target = queries.topic(5, 5, 5), queries.topic(0, 0, 0)
    frame = queries.stream(subscribe=source, startingOffsets="earliest").select("value")
    query = queries.start(frame, topic=target)
    until(lambda: len(set(queries.values(target))) == 5)
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
    wanted = {*numbers(5), *(f"n{number}" for number in range(300))}
    until(lambda: set(queries.values(target)) == wanted)
    assert query.isActive, query.exception()


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
def test_what_is_wrong_ends_the_query_with_the_cure(queries, given, sink, said):
    source = queries.topic(1)
    frame = queries.stream(**{"subscribe": source, "startingOffsets": "earliest", **given})
    with pytest.raises(Exception) as raised:
        queries.start(frame.select("value"), **sink).awaitTermination(60)
    assert said in str(raised.value)
    assert "[LOGBUS_" in str(raised.value)
    assert "PicklingError" not in str(raised.value)


def test_what_tasks_skipped_reaches_the_listener(queries, bus, cluster):
    """Only a task meets a damaged batch, and Spark lets it tell nobody: the rows are missed."""
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


def test_a_checkpoint_of_a_later_version_is_a_clear_error(queries, tmp_path):
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
