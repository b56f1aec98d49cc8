"""Run two queries over a whole topic, either with Spark's Kafka connector or with logbus's source.

Run ``python moved.py FORMAT HOST:PORT TOPIC FOLDER CHECKPOINTS JAR…``. One query writes the values
to files below FOLDER, the other counts the occurrences of each key. The program prints the counts
as one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_logbus import spark_conf


def main() -> None:
    kind, servers, topic, folder, checkpoints, *jars = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(jars))
    builder = builder.config("spark.driver.host", "127.0.0.1").config(map=spark_conf())
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.readStream.format(kind).option("kafka.bootstrap.servers", servers)
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", "30").load()

    values = rows.selectExpr("cast(value AS string) AS value").writeStream.format("parquet")
    values = values.option("checkpointLocation", f"{checkpoints}/values")
    values.trigger(availableNow=True).start(f"{folder}/values").awaitTermination()

    seen: dict[str, int] = {}

    def each(changed: DataFrame, _: int) -> None:
        seen.update({row["key"]: row["count"] for row in changed.collect()})

    keys: Any = rows.selectExpr("cast(key AS string) AS key").groupBy("key").count().writeStream
    keys = keys.outputMode("update").option("checkpointLocation", f"{checkpoints}/keys")
    keys.foreachBatch(each).trigger(availableNow=True).start().awaitTermination()
    files = [row["value"] for row in spark.read.parquet(f"{folder}/values").collect()]
    print(json.dumps({"counts": seen, "values": sorted(files)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
