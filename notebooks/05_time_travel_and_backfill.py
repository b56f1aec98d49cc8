# Databricks notebook source
# MAGIC %md
# MAGIC # Time travel and backfill
# MAGIC
# MAGIC A log keeps its records, so a reader can go back in time. This notebook writes three days of history, reads one day of it, and then does what every
# MAGIC new query needs: a stream takes the records from now on, a batch job fills in what came before, and together they have every record once.
# MAGIC
# MAGIC On Databricks, use a single-user cluster with Databricks Runtime for Spark 4.2 or later, and run `%pip install` on the
# MAGIC wheel that `make wheel` builds. Elsewhere, install logbus with `[all]`, and run
# MAGIC `python notebooks/05_time_travel_and_backfill.py`; plots become PNG files.

# COMMAND ----------

# DBTITLE 1,Outside Databricks: start a local Spark and define dbutils and display
import os
import sys

import matplotlib.pyplot as plt

import pyspark_logbus as logbus

if "dbutils" not in globals():
    from types import SimpleNamespace

    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # For one machine: 2 shuffle tasks in place of 200, and no progress bar over the output.
    here = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.config(map=logbus.spark_conf() | here).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    values = {"bootstrap_servers": os.environ.get("LOGBUS_BOOTSTRAP_SERVERS", "")}
    dbutils = SimpleNamespace(
        widgets=SimpleNamespace(
            text=lambda name, default, label: values.setdefault(name, default), get=values.get
        )
    )

    def display(shown):
        if hasattr(shown, "savefig"):
            shown.savefig(f"{shown.get_label()}.png", dpi=120)
        else:
            shown.show() if hasattr(shown, "show") else print(shown)

# COMMAND ----------

# DBTITLE 1,Choose the brokers and the number of records in an hour at midnight
dbutils.widgets.text("bootstrap_servers", "", "Brokers; empty starts one here")
dbutils.widgets.text("records", "40", "Records of a quiet hour")
bootstrap_servers = dbutils.widgets.get("bootstrap_servers")
quiet = int(dbutils.widgets.get("records"))

# COMMAND ----------

# DBTITLE 1,Start a cluster if no broker was named
import math
import shutil
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta

from matplotlib.dates import ConciseDateFormatter

cluster = None
if not bootstrap_servers:
    cluster = logbus.LocalCluster(brokers=1).start()
    bootstrap_servers = cluster.bootstrap_servers
bus = logbus.connect(bootstrap_servers)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Three days of history
# MAGIC
# MAGIC Every record has the time of its event. Retention compares this time with the broker's clock, so the topic has `retention.ms=-1` to keep
# MAGIC old records. An hour at noon has three times as many records as an hour at midnight.

# COMMAND ----------

HOURS = 72
now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
first_hour = now - timedelta(hours=HOURS)
bus.create_topic("travel.events", partitions=2, config={"retention.ms": "-1"})
written = Counter()
with bus.producer() as producer:
    for hour in range(HOURS):
        begin = first_hour + timedelta(hours=hour)
        busy = 2 - math.cos(2 * math.pi * begin.hour / 24)
        for number in range(round(quiet * busy)):
            at = begin + timedelta(hours=number / round(quiet * busy))
            producer.send(
                "travel.events",
                f"{hour}-{number}".encode(),
                partition=number % 2,
                timestamp_ms=int(at.timestamp() * 1000),
            )
            written[begin] += 1
print(f"{sum(written.values()):,} records")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read one day
# MAGIC
# MAGIC `logbus.read` looks up the offsets of `since` and `until` in each partition and reads only the records between them.

# COMMAND ----------

day = now.replace(hour=0) - timedelta(days=1)
yesterday = logbus.read(
    spark,
    "travel.events",
    since=day,
    until=day + timedelta(days=1),
    options={"bootstrap.servers": bootstrap_servers},
)
expected = sum(count for hour, count in written.items() if day <= hour < day + timedelta(days=1))
display(
    yesterday.selectExpr("CAST(value AS STRING) value", "partition", "offset", "timestamp").limit(4)
)
assert yesterday.count() == expected

# COMMAND ----------

# MAGIC %md
# MAGIC A consumer goes to a time with `seek_to_time`. The lookup uses an index, so it takes the same time in a large log.

# COMMAND ----------

with bus.consumer("travel.events", partitions=[0], start="earliest") as consumer:
    consumer.seek_to_time(int(day.timestamp() * 1000))
    record = consumer.poll(5.0)[0]
print(datetime.fromtimestamp(record.timestamp_ms / 1000, UTC), record.value.decode())
assert record.timestamp_ms == int(day.timestamp() * 1000)

# COMMAND ----------

# MAGIC %md
# MAGIC ## A stream from now on, and a backfill
# MAGIC
# MAGIC The query starts at noon of yesterday, as if it had been written then. `startingTimestamp` starts each partition at its first record at or after that
# MAGIC time. The backfill reads the rest: everything before the same time. One boundary for both leaves no gap and no overlap.

# COMMAND ----------

boundary = day + timedelta(hours=12)
folder = tempfile.mkdtemp(prefix="travel-")
query = (
    spark.readStream.format("logbus")
    .option("bootstrap.servers", bootstrap_servers)
    .option("subscribe", "travel.events")
    .option("startingTimestamp", str(int(boundary.timestamp() * 1000)))
    .load()
    .selectExpr("CAST(value AS STRING) id", "timestamp")
    .writeStream.format("parquet")
    .option("path", f"{folder}/live")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .start()
)
query.processAllAvailable()

# COMMAND ----------

backfill = logbus.read(
    spark, "travel.events", until=boundary, options={"bootstrap.servers": bootstrap_servers}
).selectExpr("CAST(value AS STRING) id", "timestamp")
backfill.write.parquet(f"{folder}/backfill")

# COMMAND ----------

# DBTITLE 1,Records that arrive during the backfill belong to the stream
with bus.producer() as producer:
    for number in range(quiet):
        at = int((now + timedelta(minutes=number * 60 / quiet)).timestamp() * 1000)
        producer.send("travel.events", f"{HOURS}-{number}".encode(), timestamp_ms=at)
        written[now] += 1
query.processAllAvailable()
query.stop()

# COMMAND ----------

# DBTITLE 1,Backfill and stream together have every record once
live = spark.read.parquet(f"{folder}/live")
old = spark.read.parquet(f"{folder}/backfill")
both = live.union(old)
assert both.count() == sum(written.values())
assert both.select("id").distinct().count() == sum(written.values())

# COMMAND ----------


def hourly(frame):
    """Return the rows of each hour since the first one."""
    counts = Counter()
    for row in frame.selectExpr("unix_timestamp(timestamp) AS s").collect():
        counts[int(row.s - first_hour.timestamp()) // 3600] += 1
    return [counts[hour] for hour in range(HOURS + 1)]


hours = [first_hour + timedelta(hours=hour) for hour in range(HOURS + 1)]
before, after = hourly(old), hourly(live)
figure, axes = plt.subplots(figsize=(9, 3.6), label="backfill")
axes.bar(hours, before, width=1 / 24, align="edge", color="#8c9fbf", label="backfill (batch)")
axes.bar(
    hours, after, width=1 / 24, align="edge", bottom=before, color="#4c72b0", label="live (stream)"
)
axes.step(
    hours, [written[hour] for hour in hours], where="post", color="0.2", lw=1, label="written"
)
axes.axvline(boundary, color="#c44e52", label="boundary")
axes.set_ylabel("records an hour")
axes.set_ylim(0, 3.3 * quiet)
axes.spines[["top", "right"]].set_visible(False)
axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))
axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))
figure.tight_layout()
display(figure)
plt.close(figure)
assert [a + b for a, b in zip(before, after)] == [written[hour] for hour in hours]

# COMMAND ----------

# DBTITLE 1,Stop the cluster
shutil.rmtree(folder)
bus.close()
if cluster is not None:
    cluster.stop()
