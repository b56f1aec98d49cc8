"""A Spark program that uses Spark's own Kafka connector on logbus.

Run ``python job.py HOST:PORT,… PREFIX FOLDER JAR…``. The topics ``PREFIX-rows``,
``PREFIX-columns`` and ``PREFIX-copy`` must exist with two partitions each. The program prints one
JSON line for each step.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_logbus import spark_conf

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ROWS = 100
HEADERS = "array<struct<key: string, value: binary>>"
KAFKA, LOGBUS = "kafka", "logbus"


class Job:
    def __init__(self, servers: str, prefix: str, folder: str, jars: list[str]) -> None:
        builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(jars))
        builder = builder.config("spark.driver.host", "127.0.0.1").config(map=spark_conf())
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", "2")
        self.spark = builder.config("spark.ui.enabled", "false").getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        self.servers, self.prefix, self.folder = servers, prefix, folder

    def read(self, kind: str, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format(kind).option("kafka.bootstrap.servers", self.servers)
        reader = reader.option("subscribe", f"{self.prefix}-{topic}")
        return reader.option("includeHeaders", "true").options(**options).load()

    def write(self, kind: str, frame: DataFrame, topic: str, codec: str) -> None:
        writer = frame.write.format(kind).mode("append").option("topic", f"{self.prefix}-{topic}")
        writer = writer.option("kafka.bootstrap.servers", self.servers)
        writer.option("kafka.compression.type", codec).save()

    def rows(self) -> DataFrame:
        """Return keys, values and headers, some of them null, for partitions 0 and 1."""
        return self.spark.range(ROWS).selectExpr(
            "if(id % 10 = 0, null, cast(concat('k', id) AS binary)) AS key",
            "if(id % 10 = 1, null, cast(concat('row ', id) AS binary)) AS value",
            "if(id % 2 = 0, null, array(named_struct('key', 'h', 'value', cast('x' AS binary)), "
            "named_struct('key', 'n', 'value', cast(null AS binary)))) AS headers",
            "cast(id % 2 AS int) AS partition",
        )

    def copy(self) -> int:
        """Copy a topic with a streaming query that resumes where its last run ended.

        Return the number of copied rows.
        """
        source = self.spark.readStream.format(KAFKA).option("subscribe", f"{self.prefix}-rows")
        source = source.option("kafka.bootstrap.servers", self.servers)
        source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "150")
        sink = source.load().select("key", "value", "partition").writeStream.format(KAFKA)
        sink = sink.option("kafka.bootstrap.servers", self.servers)
        sink = sink.option("topic", f"{self.prefix}-copy").trigger(availableNow=True)
        query = sink.option("checkpointLocation", f"{self.folder}/checkpoint").start()
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)


def told(step: str, answer: Any) -> None:
    print(json.dumps({"step": step, "answer": answer}), flush=True)


def different(one: DataFrame, other: DataFrame) -> int:
    """Return the number of rows that only one of the two frames has.

    Two rows are equal if their offsets, values and timestamps are equal.
    """
    columns = ["key", "value", "partition", "offset", "timestamp", "timestampType", "headers"]
    left, right = one.select(columns), other.select(columns)
    return int(left.exceptAll(right).count() + right.exceptAll(left).count())


def main() -> None:
    servers, prefix, folder, *jars = sys.argv[1:]
    job = Job(servers, prefix, folder, jars)
    for codec in CODECS:
        job.write(KAFKA, job.rows(), "rows", codec)
    told("written", job.read(KAFKA, "rows").count())
    told("as columns", different(job.read(KAFKA, "rows"), job.read(LOGBUS, "rows")))
    for codec in ("none", "lz4", "zstd"):
        job.write(LOGBUS, job.rows(), "columns", codec)
    told("columns", job.read(KAFKA, "columns").count())
    told("as rows", different(job.read(KAFKA, "columns"), job.read(LOGBUS, "columns")))
    for topic in ("rows", "columns"):
        at = {f"{prefix}-{topic}": {"0": 20, "1": 30}}
        until = {f"{prefix}-{topic}": {"0": 130, "1": 70}}
        cut = {"startingOffsets": json.dumps(at), "endingOffsets": json.dumps(until)}
        found = job.read(KAFKA, topic, **cut)
        told(f"cut {topic}", [found.count(), different(found, job.read(LOGBUS, topic, **cut))])
    by_time = job.read(KAFKA, "rows", startingTimestamp="1")
    told("by time", by_time.count())
    told("tasks", job.read(KAFKA, "columns", minPartitions="6").rdd.getNumPartitions())
    told("stream", job.copy())
    job.write(KAFKA, job.rows(), "rows", "lz4")
    told("stream again", job.copy())
    same = job.read(LOGBUS, "rows").select("key", "value", "partition")
    copied = job.read(KAFKA, "copy").select("key", "value", "partition")
    told("copied", [copied.count(), copied.exceptAll(same).count()])
    job.spark.stop()


if __name__ == "__main__":
    main()
