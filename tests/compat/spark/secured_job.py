"""A Spark program that uses a secured cluster with Spark's Kafka connector and with logbus.

Both get the same options. Run ``python secured_job.py PROPERTIES TOPIC FOLDER JAR…``. PROPERTIES is
the client file of Kafka's tools, and TOPIC must exist. The program prints one JSON line for each
step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_logbus import spark_conf

ROWS = 100


def told(step: str, answer: Any) -> None:
    print(json.dumps({"step": step, "answer": answer}), flush=True)


def main(properties: str, topic: str, folder: str, jars: list[str]) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(jars))
    builder = builder.config("spark.driver.host", "127.0.0.1").config(map=spark_conf())
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = (line.partition("=") for line in Path(properties).read_text("utf-8").splitlines())
    options = {f"kafka.{key}": value for key, _, value in rows}
    frame = spark.range(ROWS).selectExpr("cast(concat('row ', id) AS binary) AS value")
    for kind in ("kafka", "logbus"):
        frame.write.format(kind).mode("append").options(**options).option("topic", topic).save()
    for kind in ("kafka", "logbus"):
        found = spark.read.format(kind).options(**options).option("subscribe", topic).load()
        told(kind, [found.count(), found.select("value").distinct().count()])
    stream = spark.readStream.format("kafka").options(**options).option("subscribe", topic)
    stream = stream.option("startingOffsets", "earliest")
    sink = stream.load().select("value").writeStream.format("kafka").options(**options)
    sink = sink.option("topic", topic).trigger(availableNow=True)
    sink.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    found = spark.read.format("logbus").options(**options).option("subscribe", topic).load()
    told("streamed", found.count())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
