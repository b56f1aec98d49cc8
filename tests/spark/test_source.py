"""Test the source in batch queries: columns, options, tasks, corrupt batches.

The behaviours are those of Spark's KafkaRelationSuite.
"""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F
from support.spark_queries import damage_second_of_three

import pyspark_logbus as logbus


def test_source_reads_columns_types_nulls_headers_and_timestamps(queries, bus):
    topic = queries.topic(0)
    with bus.producer() as producer:
        producer.send(topic, b"v0", key=b"k0", timestamp_ms=1_700_000_000_123, partition=0,
                      headers=[("a", b"1"), ("a", b"2"), ("n", None)])  # fmt: skip
        producer.send(topic, None, key=None, timestamp_ms=1_700_000_000_124, partition=0)
        producer.send(topic, b"", key=b"", timestamp_ms=0, partition=0)
    frame = queries.read(subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    ordered = frame.orderBy("offset").withColumn("ms", F.unix_millis("timestamp"))
    first, second, third = ordered.drop("timestamp").collect()
    headers = [("a", b"1"), ("a", b"2"), ("n", None)]
    assert first[:6] == (b"k0", b"v0", topic, 0, 0, 0)
    assert [(h.key, h.value) for h in first.headers] == headers
    assert first.ms == 1_700_000_000_123
    assert second[:7] == (None, None, topic, 0, 1, 0, None)
    assert third[:7] == (b"", b"", topic, 0, 2, 0, None)
    # Columns may be in any order. A schema with headers needs no option for them.
    chosen = queries.read("offset bigint, headers array<struct<key:string,value:binary>>",
                          subscribe=topic)  # fmt: skip
    assert [row.offset for row in chosen.orderBy("offset").collect()] == [0, 1, 2]
    # Spark plans once for each load(), so this second action reads the same ranges.
    assert frame.count() == 3
    queries.fill(topic, 2)
    assert frame.union(frame).count() == 6
    assert queries.read(subscribe=topic).count() == 5
    # Read without a schema, and with Kafka's name of the connection option.
    reader = queries.spark.read.format("logbus").option("subscribe", topic)
    kafka = reader.option("kafka.bootstrap.servers", bus.bootstrap_servers).load()
    assert kafka.where("value is null").count() == 1


def test_log_append_time_is_read_as_timestamp(queries):
    topic = queries.topic(2, **{"message.timestamp.type": "LogAppendTime"})
    rows = queries.read(subscribe=topic).selectExpr("timestampType", "timestamp > '2020-01-01' ok")
    assert [tuple(row) for row in rows.collect()] == [(1, True)] * 2


def test_tasks_read_every_row_once(queries):
    topic = queries.topic(40, 10, 0)
    for given, tasks in (
        ({}, 2),
        ({"minPartitions": "6"}, 6),
        ({"maxRecordsPerPartition": "7"}, 8),
        ({"maxPartitions": "1"}, 1),
    ):
        frame = queries.read(subscribe=topic, **given)
        found = frame.withColumn("task", F.spark_partition_id()).select(
            "task", "partition", "offset"
        )
        rows = found.collect()
        assert len({row.task for row in rows}) == tasks, given
        assert sorted((row.partition, row.offset) for row in rows) == [
            *((0, number) for number in range(40)),
            *((1, number) for number in range(10)),
        ]
    some = {topic: {"0": 5, "1": 2, "2": -2}}
    until = {topic: {"0": 9, "1": -1, "2": 0}}
    frame = queries.read(
        subscribe=topic, startingOffsets=json.dumps(some), endingOffsets=json.dumps(until)
    )
    assert frame.count() == 4 + 8
    nothing = queries.read(subscribePattern="no-such-topic-.*")
    assert nothing.count() == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "t", "assign": "{}"}, "[LOGBUS_INVALID_CONFIG]"),
        ({"subscribe": "t", "startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "h:1", "subscribe": "t"}, "two spellings of one option"),
        ({}, "One of the following options must be specified"),
        ({"subscribePattern": "[a-z&&[^bc]]+"}, "which Java reads diff"),
        ({"subscribe": "t", "pushFilters": "true"}, "logbus.read"),
        ({"subscribe": "t", "kafka.partitioner.class": "x.Y"}, "write a column 'partition'"),
    ],
)
def test_invalid_options_fail_when_load_is_called(queries, given, said):
    with pytest.raises(Exception) as raised:
        queries.read(**given)
    assert said in str(raised.value)


def test_create_table_is_refused_but_temporary_view_reads_topic(queries, bus):
    topic = queries.topic(3)
    given = (
        f"USING logbus OPTIONS (`bootstrap.servers` '{bus.bootstrap_servers}', subscribe '{topic}')"
    )
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW name USING logbus OPTIONS"):
        queries.spark.sql(f"CREATE TABLE not_kept {given}")
    queries.spark.sql(f"CREATE TEMPORARY VIEW rows_of_topic {given}")
    assert queries.spark.table("rows_of_topic").count() == 3
    queries.spark.catalog.dropTempView("rows_of_topic")


def test_each_query_of_a_sql_view_with_options_reads_the_newest_records(queries, bus):
    """Each query of a view over ``SELECT … FROM log_rows WITH (options)`` reads newer records.

    A query of a view created USING logbus OPTIONS reads only what the first query read.
    """
    topic = queries.topic(3)
    sql = queries.spark.sql
    given = {"bootstrap.servers": bus.bootstrap_servers, "subscribe": topic}
    options = ", ".join(f"`{name}` '{value}'" for name, value in given.items())
    named = ", ".join(f"`{name}` = '{value}'" for name, value in given.items())
    columns = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
    sql(f"CREATE TABLE log_rows ({columns} timestamp TIMESTAMP, timestampType INT) USING logbus")
    try:
        sql(f"CREATE TEMPORARY VIEW kept USING logbus OPTIONS ({options})")
        sql(f"CREATE TEMPORARY VIEW fresh AS SELECT * FROM log_rows WITH ({named})")
        count = lambda view: sql(f"SELECT count(*) FROM {view}").first()[0]  # noqa: E731
        assert (count("kept"), count("fresh")) == (3, 3)
        queries.fill(topic, 2)
        assert (count("kept"), count("fresh")) == (3, 5)
    finally:
        for view in ("kept", "fresh"):
            queries.spark.catalog.dropTempView(view)
        sql("DROP TABLE log_rows")


def test_logbus_read_returns_rows_between_two_times(queries, bus):
    topic = queries.topic(0, 0)
    minute_ms, start_ms = 60_000, 1_700_000_000_000
    # Send the record of minute 4 after the record of minute 5.
    with bus.producer() as producer:
        for minute in (0, 1, 2, 3, 5, 4, 6, 7, 8):
            for partition in (0, 1):
                stamp = start_ms + minute * minute_ms
                producer.send(topic, b"%d" % minute, partition=partition, timestamp_ms=stamp)
    bounds = {"since": start_ms + 2 * minute_ms, "until": start_ms + 5 * minute_ms}
    options = {"bootstrap.servers": bus.bootstrap_servers}
    frame = logbus.read(
        queries.spark, topic, **bounds, partitions=[1], columns=["value", "offset"], late="2m",
        options=options,
    )  # fmt: skip
    assert frame.columns == ["value", "offset"]
    rows = sorted((bytes(row.value), row.offset) for row in frame.collect())
    assert rows == [(b"2", 2), (b"3", 3), (b"4", 5)]
    assert frame.count() == 3
    both = logbus.read(queries.spark, topic, **bounds, late=None, options=options)
    assert both.count() == 6
    # A filter of one DataFrame must not affect another DataFrame, as pushed filters do in
    # Spark 4.3.0.
    assert (both.where("partition = 0").count(), both.count()) == (3, 6)
    union = both.where("partition = 0").union(both.where("partition = 1"))
    assert union.count() == 6


def test_error_of_a_batch_query_with_wrong_options_names_the_remedy(queries):
    topic = queries.topic(1)
    for given, said in (
        ({"subscribe": "nowhere"}, "create it with: logbus topic create nowhere"),
        ({"subscribe": topic, "startingOffsets": "latest"}, "can't be latest"),
        ({"subscribe": topic, "startingOffsets": '{"x":{"0":1}}'}, "specify all TopicPartitions"),
        ({"subscribe": topic, "schema": "value string"}, "'value' is binary, not string"),
        ({"subscribe": topic, "schema": "value binary, nosuch int"}, "'nosuch'"),
    ):
        with pytest.raises(Exception) as raised:
            queries.read(**given).count()
        assert said in str(raised.value)
        assert "[LOGBUS_" in str(raised.value)
        assert "Traceback" not in str(raised.value)


def test_corrupt_batch_is_reported_with_its_offset_or_skipped(queries, bus, cluster):
    topic = queries.topic(0, replicas=1)
    damaged = damage_second_of_three(bus, cluster, topic)
    with pytest.raises(Exception) as raised:
        queries.read(subscribe=topic).count()
    said = str(raised.value)
    assert "[LOGBUS_CORRUPT_MESSAGE]" in said
    assert "Traceback" not in said
    assert f"topic '{topic}' partition 0 offset {damaged.start}" in said
    assert queries.read(subscribe=topic, failOnDataLoss="false").count() == 30 - len(damaged)
