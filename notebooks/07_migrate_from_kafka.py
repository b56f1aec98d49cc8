# Databricks notebook source
# MAGIC %md
# MAGIC # Move a query from Kafka
# MAGIC
# MAGIC `logbus mirror` copies topics, settings and group offsets from a running cluster, and `logbus checkpoint` converts the checkpoint of a Spark query. This
# MAGIC notebook moves a topic, a consumer group and a query, and counts every record. Its source is another logbus cluster, which speaks Kafka's protocol; the
# MAGIC commands are the same for Kafka.
# MAGIC
# MAGIC It always starts its own two clusters.
# MAGIC
# MAGIC On Databricks, use a single-user cluster with Databricks Runtime for Spark 4.2 or later, and run `%pip install` on the
# MAGIC wheel that `make wheel` builds. Elsewhere, install logbus with `[all]`, and run
# MAGIC `python notebooks/07_migrate_from_kafka.py`; plots become PNG files.

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

# DBTITLE 1,Choose the number of records to copy
dbutils.widgets.text("records", "3000", "Records at the source")
records = int(dbutils.widgets.get("records"))

# COMMAND ----------

# DBTITLE 1,Start the source cluster and the target cluster
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

source_cluster = logbus.LocalCluster(brokers=1).start()
cluster = logbus.LocalCluster(brokers=1).start()
bootstrap_servers = cluster.bootstrap_servers
source = logbus.connect(source_cluster.bootstrap_servers)
target = logbus.connect(bootstrap_servers)


def logbus_command(*words):
    """Run the command line and return what it printed."""
    command = [sys.executable, "-m", "broker_lite", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# COMMAND ----------

# MAGIC %md
# MAGIC ## The source, before the move
# MAGIC
# MAGIC The source has a topic, and a group that has read a third of it. One partition was trimmed, so its offsets do not begin at zero, and the offsets of the
# MAGIC copy will differ.

# COMMAND ----------

source.create_topic("shop.orders", partitions=2, config={"retention.ms": "86400000"})
with source.producer() as producer:
    for number in range(records):
        producer.send("shop.orders", f"order {number}".encode(), partition=number % 2)
logbus_command(
    "topic",
    "trim",
    "shop.orders",
    "--before",
    str(records // 10),
    "--yes",
    "-b",
    source_cluster.bootstrap_servers,
)
kept = records - 2 * (records // 10)
with source.consumer(
    "shop.orders", group="billing", start="earliest", auto_commit=False
) as billing:
    read = []
    while len(read) < records // 3:
        read += billing.poll(5.0, records // 3 - len(read))
    billing.commit()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The checkpoint of a Spark query
# MAGIC
# MAGIC A query that read the source through Spark's Kafka connector has a checkpoint with the offsets of the source. This notebook does not load the
# MAGIC connector, and writes the two files that matter as Spark writes them: the planned batch and its commit.

# COMMAND ----------

folder = Path(tempfile.mkdtemp(prefix="move-"))
old = folder / "old"
position = records // 5
ends = json.dumps({"shop.orders": {"0": position, "1": position}})
metadata = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
for name, text in {
    "metadata": '{"id":"6f2a1d3e-0000-4000-8000-000000000001"}',
    "offsets/0": f"v1\n{metadata}\n{ends}",
    "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
}.items():
    (old / name).parent.mkdir(parents=True, exist_ok=True)
    (old / name).write_text(text)

# COMMAND ----------

# DBTITLE 1,Copy the source to the target with logbus mirror
print(
    logbus_command(
        "mirror",
        "--from",
        source_cluster.bootstrap_servers,
        "-b",
        bootstrap_servers,
        "--topics",
        "shop.*",
        "--once",
    )
)

# COMMAND ----------


# DBTITLE 1,Source and target have the same counts and values
def values(servers):
    """Return the values of each partition, in order."""
    frame = spark.read.format("logbus").option("bootstrap.servers", servers)
    rows = frame.option("subscribe", "shop.orders").load()
    found = {}
    for row in (
        rows.orderBy("partition", "offset")
        .selectExpr("partition", "CAST(value AS STRING) v")
        .collect()
    ):
        found.setdefault(row.partition, []).append(row.v)
    return found


before, after = values(source_cluster.bootstrap_servers), values(bootstrap_servers)
assert before == after
assert sum(map(len, after.values())) == kept
rows = [(p, len(before[p]), len(after[p])) for p in sorted(after)]
display(spark.createDataFrame(rows, "partition int, at_source int, in_copy int"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The group resumes
# MAGIC
# MAGIC The mirror has translated the offsets of the group. The group's next member on the target begins at the record that the group had not read yet.

# COMMAND ----------

with target.consumer("shop.orders", group="billing", start="earliest") as billing:
    rest = []
    while len(rest) < kept - len(read):
        rest += billing.poll(5.0)
assert {r.value for r in rest}.isdisjoint(r.value for r in read)
assert len(rest) + len(read) == kept

# COMMAND ----------

# MAGIC %md
# MAGIC ## The query resumes
# MAGIC
# MAGIC `logbus checkpoint` replaces the offsets in a copy of the checkpoint. The query starts with `format("logbus")` and the new checkpoint; everything else stays.

# COMMAND ----------

new = folder / "new"
print(
    logbus_command(
        "checkpoint",
        str(old),
        str(new),
        "--from",
        source_cluster.bootstrap_servers,
        "-b",
        bootstrap_servers,
        "-o",
        "table",
    )
)
target.create_topic("shop.invoices", partitions=2)
query = (
    spark.readStream.format("logbus")
    .option("bootstrap.servers", bootstrap_servers)
    .option("subscribe", "shop.orders")
    .load()
    .select("value")
    .writeStream.format("logbus")
    .option("bootstrap.servers", bootstrap_servers)
    .option("topic", "shop.invoices")
    .option("checkpointLocation", str(new))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# COMMAND ----------

# DBTITLE 1,The query reads every record after its old position once
with target.consumer("shop.invoices", start="earliest") as consumer:
    invoices = []
    while len(invoices) < records - 2 * position:
        invoices += consumer.poll(5.0)
    assert not consumer.poll(0.5)
expected = [f"order {number}".encode() for number in range(2 * position, records)]
assert sorted(record.value for record in invoices) == sorted(expected)

# COMMAND ----------

trimmed = records // 10
parts = (
    ("deleted before the move", trimmed, "0.85"),
    ("read before the move", position - trimmed, "#8c9fbf"),
    ("read after the move", records // 2 - position, "#4c72b0"),
)
figure, axes = plt.subplots(figsize=(9, 2.6), label="move")
for partition in (0, 1):
    left = 0
    for label, size, color in parts:
        axes.barh(partition, size, left=left, color=color, label=label if partition == 0 else None)
        left += size
axes.axvline(position, color="#c44e52", lw=1.5)
axes.text(
    position,
    1.55,
    f" source offset {position:,} = offset {position - trimmed:,} of the copy",
    color="#c44e52",
)
axes.set_yticks((0, 1), ("partition 0", "partition 1"))
axes.set_xlabel("offset at the source")
axes.set_ylim(-0.6, 1.9)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.35))
figure.tight_layout()
display(figure)
plt.close(figure)

# COMMAND ----------

# DBTITLE 1,Stop both clusters
shutil.rmtree(folder)
for each in (source, target):
    each.close()
for each in (source_cluster, cluster):
    each.stop()
