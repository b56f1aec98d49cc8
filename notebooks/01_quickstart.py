# Databricks notebook source
# MAGIC %md
# MAGIC # logbus in ten minutes
# MAGIC
# MAGIC logbus is a log that Spark reads and writes as a streaming format. This notebook starts a logbus cluster
# MAGIC or uses yours, writes lines, counts them with a stream, and shows the query's lag.
# MAGIC
# MAGIC On Databricks, use a single-user cluster with Databricks Runtime for Spark 4.2 or later, and run `%pip install` on the
# MAGIC wheel that `make wheel` builds. Name brokers that the Databricks nodes can reach. If you name none, the
# MAGIC notebook starts a broker, which needs the wheel's `[broker]` extra and Java.
# MAGIC
# MAGIC Elsewhere, install logbus with `[all]` and run `python notebooks/01_quickstart.py`; plots become PNG files.
# MAGIC Or open it in an editor that runs Databricks cells. No Jupyter is needed.

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

# DBTITLE 1,Choose the brokers and the number of lines
dbutils.widgets.text("bootstrap_servers", "", "Brokers; empty starts one here")
dbutils.widgets.text("records", "1000", "Lines to write")
bootstrap_servers = dbutils.widgets.get("bootstrap_servers")
records = int(dbutils.widgets.get("records"))

# COMMAND ----------

# DBTITLE 1,Start a cluster if no broker was named
import json
import shutil
import tempfile
from collections import Counter

cluster = None
if not bootstrap_servers:
    cluster = logbus.LocalCluster(brokers=1).start()
    bootstrap_servers = cluster.bootstrap_servers
print(bootstrap_servers)

# COMMAND ----------

# DBTITLE 1,Create the topics
bus = logbus.connect(bootstrap_servers)
lines_topic, counts_topic = "quickstart.lines", "quickstart.counts"
for topic in (lines_topic, counts_topic):
    bus.create_topic(topic, partitions=2)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Write from Python
# MAGIC
# MAGIC `send` returns a future. Its result names the partition and offset of the flushed record. `send_arrow` sends tables.

# COMMAND ----------

statuses = ["500" if number % 10 == 1 else "200" for number in range(records)]
with bus.producer(acks="all", compression="lz4") as producer:
    first = producer.send(lines_topic, b"GET /page/0 200", key=b"web-1").result()
    for number in range(1, records):
        line = f"GET /page/{number} {statuses[number]}"
        producer.send(lines_topic, line.encode(), key=b"web-2")
print(first.topic, first.partition, first.offset)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Read the topic as a table
# MAGIC
# MAGIC `display` shows the first rows. If it stops a Python worker early, PySpark prints `BrokenPipeError`; the rows are complete.

# COMMAND ----------

table = (
    spark.read.format("logbus")
    .option("bootstrap.servers", bootstrap_servers)
    .option("subscribe", lines_topic)
    .load()
)
display(
    table.selectExpr(
        "CAST(key AS STRING) key", "CAST(value AS STRING) value", "partition", "offset"
    )
)
assert table.count() == records

# COMMAND ----------

# MAGIC %md
# MAGIC ## A stream from one topic to another
# MAGIC
# MAGIC `group.id` names the group to which the query commits its progress. The checkpoint alone decides where it resumes.

# COMMAND ----------

checkpoint = tempfile.mkdtemp(prefix="quickstart-")
counts = (
    spark.readStream.format("logbus")
    .option("bootstrap.servers", bootstrap_servers)
    .option("subscribe", lines_topic)
    .option("startingOffsets", "earliest")
    .option("group.id", "quickstart")
    .load()
    .selectExpr("regexp_extract(CAST(value AS STRING), '(\\\\d+)$', 1) AS status")
    .groupBy("status")
    .count()
)
query = (
    counts.selectExpr("status AS key", "to_json(struct(status, count)) AS value")
    .writeStream.format("logbus")
    .option("bootstrap.servers", bootstrap_servers)
    .option("topic", counts_topic)
    .option("checkpointLocation", checkpoint)
    .outputMode("complete")
    .start()
)
query.processAllAvailable()

# COMMAND ----------

# DBTITLE 1,Read the results: the last value of each key
last = {}
with bus.consumer(counts_topic, start="earliest") as consumer:
    while found := consumer.poll(2.0):
        last |= {record.key.decode(): record.value.decode() for record in found}
print(last)
counted = {status: json.loads(value)["count"] for status, value in last.items()}
assert counted == Counter(statuses)

# COMMAND ----------

# DBTITLE 1,Plot how many log lines have each HTTP status
figure, axes = plt.subplots(figsize=(9, 2.2), label="statuses")
axes.barh(sorted(counted), [counted[status] for status in sorted(counted)])
axes.set_xlabel("lines")
axes.set_ylabel("status")
figure.tight_layout()
display(figure)
plt.close(figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Lag
# MAGIC
# MAGIC Any lag tool shows the lag of the query's group, for example `logbus lag -g quickstart`, or the Python API:

# COMMAND ----------

with bus.producer() as producer:
    producer.send(lines_topic, b"GET /late 200")
query.processAllAvailable()
lag = bus.admin.lag("quickstart")
rows = [(str(tp), row.records, float(row.seconds)) for tp, row in lag.items()]
display(spark.createDataFrame(rows, "partition string, unread long, seconds double"))

# COMMAND ----------

# DBTITLE 1,Stop the query and the cluster
query.stop()
shutil.rmtree(checkpoint)
bus.close()
if cluster is not None:
    cluster.stop()
