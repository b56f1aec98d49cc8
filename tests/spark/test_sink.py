"""Test the sink in batch writes: routing, nulls, headers, and errors before any row is written.

The behaviours are those of Spark's KafkaSinkSuite.
"""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from support.java_partitions import partition_for
from support.spark_queries import records

HEADERS = "array<struct<key:string,value:binary>>"


def test_sink_writes_rows_to_the_topic_and_partition_of_their_columns(queries, bus):
    one, two = queries.topic(0, 0, 0), queries.topic(0, 0, 0)
    frame = queries.spark.range(60).select(
        F.when(F.col("id") % 2 == 0, one).otherwise(two).alias("topic"),
        F.concat(F.lit("v"), "id").alias("value"),
        F.concat(F.lit("k"), "id").cast("binary").alias("KEY"),
        F.when(F.col("id") % 3 == 0, 2).cast("int").alias("partition"),
        F.lit(1.5).alias("ignored"),
    )
    queries.write(frame.coalesce(1))
    found = records(bus, one, two)
    assert len(found) == 60
    for record in found:
        number = int(record.value[1:])
        assert record.topic == (one if number % 2 == 0 else two)
        assert record.key == f"k{number}".encode()
        wanted = 2 if number % 3 == 0 else partition_for(record.key, 3)
        assert record.partition == wanted
    for topic in (one, two):
        for partition in range(3):
            numbers = [int(r.value[1:]) for r in found if r[:2] == (topic, partition)]
            assert numbers == sorted(numbers)
    # The option ``topic`` takes precedence over the column ``topic``.
    three = queries.topic(0)
    queries.write(frame.drop("partition"), topic=three)
    assert len(records(bus, three)) == 60


def test_worker_of_sparks_daemon_is_recognised_as_forked(queries):
    """pyspark_logbus calls ``gc.freeze`` only in workers of Spark's daemon: they collect garbage
    after every task."""

    def look(batches):
        import pyarrow as pa

        from pyspark_logbus.worker_process import is_forked_by_daemon

        for batch in batches:
            found = [is_forked_by_daemon()] * batch.num_rows
            yield pa.RecordBatch.from_pydict({"forked": found})

    frame = queries.spark.range(1).mapInArrow(look, "forked boolean")
    assert [row.forked for row in frame.collect()] == [True]


def test_sink_writes_nulls_headers_and_timestamps(queries, bus):
    topic = queries.topic(0)
    frame = queries.spark.createDataFrame(
        [
            ("v", None, [("a", b"1"), ("a", b"2"), ("n", None)], 1_700_000_000_123_456),
            (None, b"k", [], 0),
            ("", b"", None, None),
        ],
        f"value string, key binary, headers {HEADERS}, us long",
    )
    frame = frame.withColumn("timestamp", F.timestamp_micros("us")).coalesce(1)
    queries.write(frame, topic=topic, useTimestampColumn="true")
    first, second, third = records(bus, topic)
    assert (first.value, first.key) == (b"v", None)
    assert first.headers == [("a", b"1"), ("a", b"2"), ("n", None)]
    assert first.timestamp_ms == 1_700_000_000_123
    # A record with a null value is a tombstone.
    assert (second.value, second.key, second.headers) == (None, b"k", [])
    assert second.timestamp_ms == 0
    assert (third.value, third.key, third.headers) == (b"", b"", [])
    assert third.timestamp_ms > 1_700_000_000_123
    # Both null and empty headers read back as null.
    read = queries.read(f"headers {HEADERS}", subscribe=topic).collect()
    assert [row.headers is None for row in read] == [False, True, True]
    # Without the option useTimestampColumn, the sink ignores the column ``timestamp``.
    other = queries.topic(0)
    queries.write(frame, topic=other)
    assert all(r.timestamp_ms > 1_700_000_000_123 for r in records(bus, other))


def test_many_rows_are_written_with_a_small_producer_buffer(queries, bus):
    topic = queries.topic(0, 0)
    frame = queries.spark.range(10_000).selectExpr("concat(repeat('x', 100), id) value")
    # logbus raises this buffer.memory to its minimum of 65536, so that a query with options of
    # Kafka's sink starts.
    queries.write(frame, **{"topic": topic, "kafka.buffer.memory": "32768", "batch.size": "16384",
                            "compression.type": "lz4"})  # fmt: skip
    back = queries.read("value binary, partition int, offset bigint", subscribe=topic)
    assert back.selectExpr("count(distinct value) n").first().n == 10_000
    assert back.selectExpr("count(distinct partition, offset) n").first().n == 10_000


def test_invalid_rows_fail_before_any_row_is_written(queries, bus):
    topic = queries.topic(0)
    make = queries.spark.createDataFrame
    good = make([("a",)], "value string")
    for frame, given, said in (
        (make([(b"a", topic), (b"b", None)], "value binary, topic string").coalesce(1), {},
         "null topic present in the data"),
        (good, {}, "topic option required when no 'topic' attribute is present"),
        (good, {"topic": "nowhere"}, "logbus topic create nowhere"),
        (make([("a", "nowhere")], "value string, topic string"), {}, "logbus topic create nowhere"),
        (make([(1,)], "value int"), {"topic": topic}, "value must be a(n) string or binary"),
        (make([("a", 1)], "value string, topic int"), {}, "topic must be a(n) string"),
        (make([("a", 1)], "value string, key int"), {"topic": topic}, "key must be a(n) string"),
        (make([("a", 1)], "value string, partition long"), {"topic": topic},
         "partition must be a(n) int"),
        (make([("a", 0), ("b", 9)], "value string, partition int").coalesce(1), {"topic": topic},
         "partition 9 of topic"),
        (make([("k",)], "key string"), {"topic": topic}, "Required attribute 'value' not found"),
        (make([("x" * (9 << 20),)], "value string"), {"topic": topic}, "MESSAGE_TOO_LARGE"),
        (good, {"topic": topic, "kafka.key.serializer": "x"}, "not supported"),
        (good, {"topic": topic, "kafka.partitioner.class": "x.Y"}, "write a column 'partition'"),
        (good, {"topic": topic, "kafka.partitioner.ignore.keys": "true"}, "column 'partition'"),
    ):  # fmt: skip
        with pytest.raises(Exception) as raised:
            queries.write(frame, **given)
        assert said in str(raised.value), said
        assert "[LOGBUS_" in str(raised.value), said
        assert "PicklingError" not in str(raised.value), said
    assert records(bus, topic) == []


def test_error_for_a_missing_topic_is_not_a_pickling_error(queries):
    """Regression: the user got a PicklingError, whose message contained the real error."""
    with pytest.raises(AnalysisException) as raised:
        queries.write(queries.spark.range(1).selectExpr("string(id) value"), topic="nowhere")
    said = str(raised.value)
    assert said.splitlines()[0] == (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: "
        "broker_lite.errors.UnknownTopicOrPartitionError: [LOGBUS_UNKNOWN_TOPIC_OR_PARTITION] "
        "topic 'nowhere' does not exist; create it with: logbus topic create nowhere"
    )


def test_sink_accepts_append_and_refuses_other_save_modes(queries):
    topic = queries.topic(0)
    frame = queries.spark.range(3).selectExpr("string(id) value")

    def save(mode):
        writer = frame.write.format("logbus").option("topic", topic)
        writer = writer.option("bootstrap.servers", queries.bus.bootstrap_servers)
        (writer.mode(mode) if mode else writer).save()

    with pytest.raises(Exception) as raised:
        save("overwrite")
    assert "[LOGBUS_INVALID_CONFIG] a log cannot be overwritten" in str(raised.value)
    # Spark itself refuses these modes: Python sources can only append and overwrite.
    for mode in (None, "ignore"):
        with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            save(mode)
    save("append")
    save("append")
    assert queries.values(topic) == ["0", "0", "1", "1", "2", "2"]
    # A plan with an unresolved star once failed in Kafka's sink (SPARK-20496).
    other = queries.topic(0)
    queries.write(
        queries.spark.range(2).select(F.to_json(F.struct("*")).alias("value")), topic=other
    )
    assert queries.values(other) == ['{"id":0}', '{"id":1}']
