# Databricks notebook source
# MAGIC %md
# MAGIC # Lag, and how to watch it
# MAGIC
# MAGIC Lag is the number of records that a reader has not read yet. This notebook makes a reader fall behind and catch up, and plots its
# MAGIC lag in records and in seconds beside an independent count. Then it plots the lag of a Spark query, batch by batch.
# MAGIC
# MAGIC On Databricks, use a single-user cluster with Databricks Runtime for Spark 4.2 or later, and run `%pip install` on the
# MAGIC wheel that `make wheel` builds. Elsewhere, install logbus with `[all]`, and run
# MAGIC `python notebooks/03_lag_and_monitoring.py`; plots become PNG files.

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

# DBTITLE 1,Choose the brokers and the number of records in a burst
dbutils.widgets.text("bootstrap_servers", "", "Brokers; empty starts one here")
dbutils.widgets.text("records", "200", "Records of a burst in each step")
bootstrap_servers = dbutils.widgets.get("bootstrap_servers")
burst = int(dbutils.widgets.get("records"))

# COMMAND ----------

# DBTITLE 1,Start a cluster if no broker was named
import json
import shutil
import tempfile
import time

from pyspark_logbus.progress_listener import lag_of

cluster = None
if not bootstrap_servers:
    cluster = logbus.LocalCluster(brokers=1).start()
    bootstrap_servers = cluster.bootstrap_servers
bus = logbus.connect(bootstrap_servers)
bus.create_topic("monitoring.events", partitions=2)

# COMMAND ----------

# MAGIC %md
# MAGIC ## A reader that falls behind
# MAGIC
# MAGIC The loop has thirty steps of a tenth of a second. A writer sends a burst of records in each of steps 3 to 14, and nothing afterwards. In each step the reader takes at most half
# MAGIC as many records as a burst has, and commits them. After each step the notebook asks the cluster for the lag with `Admin.lag`, and computes it
# MAGIC from its own counts.

# COMMAND ----------

STEPS = 30
written = read = 0
samples = []
consumer = bus.consumer(
    "monitoring.events", group="slow-reader", start="earliest", auto_commit=False
)
with bus.producer() as producer:
    while not consumer.assignment():
        consumer.poll(0.1)
    started = time.monotonic()
    for step in range(STEPS):
        if 3 <= step < 15:
            for number in range(burst):
                producer.send("monitoring.events", b"event", partition=number % 2)
            producer.flush()
            written += burst
        taken = len(consumer.poll(0.5, burst // 2)) if read < written else 0
        read += taken
        consumer.commit()
        lag = bus.admin.lag("slow-reader").values()
        records = sum(row.records for row in lag)
        seconds = max((row.seconds for row in lag), default=0.0)
        samples.append((time.monotonic() - started, records, seconds, written - read))
        time.sleep(0.1)
consumer.close()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The plot
# MAGIC
# MAGIC The line is the lag that the cluster reports. The dots are the records written minus the records read, as this notebook counted them. They
# MAGIC agree in every step. Lag in seconds is the age of the oldest unread record.

# COMMAND ----------

times, reported, ages, counted = zip(*samples)
figure, (above, below) = plt.subplots(
    2, 1, sharex=True, figsize=(9, 5), label="lag", height_ratios=(3, 2)
)
above.fill_between(times, reported, color="#4c72b0", alpha=0.15)
above.plot(times, reported, color="#4c72b0", label="Admin.lag")
above.plot(times, counted, "o", color="#c44e52", markersize=4, label="written − read")
above.axvspan(times[3], times[14], color="0.5", alpha=0.1, label="bursts arrive")
above.set_ylabel("unread records")
above.legend(frameon=False)
below.plot(times, ages, color="#55a868")
below.set_ylabel("age of the\noldest [s]")
below.set_xlabel("seconds since the start")
for axes in (above, below):
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_ylim(bottom=0)
figure.align_ylabels()
figure.tight_layout()
display(figure)
plt.close(figure)

# COMMAND ----------

# DBTITLE 1,Check the plotted lag against the notebook's own counts
assert list(reported) == list(counted)
assert max(reported) > 0
lag = bus.admin.lag("slow-reader")
rows = [(str(tp), row.committed.offset, row.end, row.records) for tp, row in sorted(lag.items())]
display(spark.createDataFrame(rows, "partition string, committed long, end long, unread long"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## A Spark query
# MAGIC
# MAGIC A query commits its progress to a group, so `Admin.lag` shows its lag, too. Each micro-batch takes at most two bursts. The progress report of
# MAGIC each batch has the lag that remained after it.

# COMMAND ----------

checkpoint = tempfile.mkdtemp(prefix="monitoring-")
query = (
    spark.readStream.format("logbus")
    .option("bootstrap.servers", bootstrap_servers)
    .option("subscribe", "monitoring.events")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 2 * burst)
    .option("group.id", "counting-query")
    .load()
    .writeStream.format("noop")
    .option("checkpointLocation", checkpoint)
    .start()
)
query.processAllAvailable()
reports = [
    lag for report in query.recentProgress for lag in lag_of(json.loads(report.json)) if lag.rows
]

# COMMAND ----------

numbers = [report.batch_id for report in reports]
rows = [report.rows for report in reports]
left = [report.records_behind for report in reports]
figure, axes = plt.subplots(figsize=(9, 3.2), label="batches")
axes.bar(numbers, rows, color="#4c72b0", label="rows read in the batch")
axes.plot(numbers, left, "o-", color="#c44e52", label="lag after the batch")
axes.set_xlabel("micro-batch")
axes.set_ylabel("records")
axes.set_xticks(numbers)
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
display(figure)
plt.close(figure)

# COMMAND ----------

# DBTITLE 1,The query has read everything, and its group says so
assert sum(rows) == written
assert left[-1] == 0
deadline = time.monotonic() + 30
while sum(row.records for row in bus.admin.lag("counting-query").values()):
    assert time.monotonic() < deadline, "the query commits a batch when it plans the next one"
    time.sleep(0.1)

# COMMAND ----------

# MAGIC %md
# MAGIC ## In production
# MAGIC
# MAGIC | you want | use |
# MAGIC |---|---|
# MAGIC | to see the lag | `logbus lag -g GROUP --by-partition`, `logbus lag -w` |
# MAGIC | a check in a script | `logbus lag -g GROUP --crit 10000 --crit-s 300`; exit code 5 above a limit |
# MAGIC | metrics of Spark | `logbus.LagMetrics(spark)`, and `logbus generate grafana spark` |
# MAGIC | alerts | `logbus generate prometheus-rules` |

# COMMAND ----------

# DBTITLE 1,Stop the query and the cluster
query.stop()
shutil.rmtree(checkpoint)
bus.close()
if cluster is not None:
    cluster.stop()
