# Databricks notebook source
# MAGIC %md
# MAGIC # Streaming ETL, exactly once
# MAGIC
# MAGIC A Spark query reads orders from one topic, adds a price, and writes invoices to another topic. In the middle of a
# MAGIC micro-batch a worker process of the query dies. With `deliveryGuarantee=exactly_once` each order still has one invoice.
# MAGIC For comparison, the same query with the default `at_least_once` loses a worker in the same way.
# MAGIC
# MAGIC On Databricks, use a single-user cluster with Databricks Runtime for Spark 4.2 or later, and run `%pip install` on the
# MAGIC wheel that `make wheel` builds. Elsewhere, install logbus with `[all]`, and run
# MAGIC `python notebooks/02_streaming_etl_exactly_once.py`; plots become PNG files.

# COMMAND ----------

# DBTITLE 1,Outside Databricks: start a local Spark and define dbutils and display
import os
import sys

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

# DBTITLE 1,Choose the brokers and the number of orders
dbutils.widgets.text("bootstrap_servers", "", "Brokers; empty starts one here")
dbutils.widgets.text("orders", "400", "Orders, a multiple of 4")
bootstrap_servers = dbutils.widgets.get("bootstrap_servers")
ORDERS = int(dbutils.widgets.get("orders"))

# COMMAND ----------

# DBTITLE 1,Start a cluster if no broker was named
import shutil
import tempfile
from pathlib import Path

cluster = None
if not bootstrap_servers:
    cluster = logbus.LocalCluster(brokers=1).start()
    bootstrap_servers = cluster.bootstrap_servers
print(bootstrap_servers)

# COMMAND ----------

# DBTITLE 1,Write the orders to two partitions
GUARANTEES = ("at_least_once", "exactly_once")
bus = logbus.connect(bootstrap_servers)
bus.create_topic("etl.orders", partitions=2)
for guarantee in GUARANTEES:
    bus.create_topic(f"etl.invoices.{guarantee}", partitions=2)
with bus.producer() as producer:
    for order in range(ORDERS):
        key, value = f"order-{order}".encode(), f"{order % 7 + 1}".encode()
        producer.send("etl.orders", value, key=key, partition=order % 2)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The query, and the kill
# MAGIC
# MAGIC The query takes half of the orders in each micro-batch, with two tasks. The function `deadly` returns the rows that it gets. In one task of the
# MAGIC second micro-batch it waits a second, in which the other task writes its rows. Then it kills its worker process with SIGKILL. The file
# MAGIC `killed` records the kill, so that it happens only once.

# COMMAND ----------

folder = Path(tempfile.mkdtemp(prefix="etl-"))


def deadly(killed):
    deadly_order = f"order-{ORDERS // 2 + 1}"

    def passing(batches):
        import os
        import signal
        import time

        for batch in batches:
            yield batch
            if deadly_order in batch.column("key").to_pylist() and not os.path.exists(killed):
                open(killed, "w").close()
                time.sleep(1)
                os.kill(os.getpid(), signal.SIGKILL)

    return passing


def start(guarantee):
    orders = (
        spark.readStream.format("logbus")
        .option("bootstrap.servers", bootstrap_servers)
        .option("subscribe", "etl.orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ORDERS // 2)
        .load()
    )
    invoices = orders.selectExpr(
        "CAST(key AS STRING) key", "CAST(25 * CAST(CAST(value AS STRING) AS INT) AS STRING) value"
    ).mapInArrow(deadly(str(folder / f"{guarantee}.killed")), "key string, value string")
    return (
        invoices.writeStream.format("logbus")
        .option("bootstrap.servers", bootstrap_servers)
        .option("topic", f"etl.invoices.{guarantee}")
        .option("deliveryGuarantee", guarantee)
        .option("checkpointLocation", str(folder / guarantee))
        .trigger(availableNow=True)
        .start()
    )


# COMMAND ----------

# MAGIC %md
# MAGIC ## Run both queries until their worker is killed
# MAGIC
# MAGIC Spark logs each kill with long stack traces. They are expected here, so this cell turns Spark's log off.

# COMMAND ----------

from pyspark.errors import StreamingQueryException


def invoices(guarantee):
    """Return the keys of the invoices that a reader sees, in the order of the partitions."""
    table = (
        spark.read.format("logbus")
        .option("bootstrap.servers", bootstrap_servers)
        .option("subscribe", f"etl.invoices.{guarantee}")
        .load()
    )
    return [row.key for row in table.selectExpr("CAST(key AS STRING) key").collect()]


spark.sparkContext.setLogLevel("OFF")
after_kill = {}
for guarantee in GUARANTEES:
    try:
        start(guarantee).awaitTermination()
        raise AssertionError("the query was not killed")
    except StreamingQueryException as error:
        print(guarantee, "was killed:", type(error).__name__)
    after_kill[guarantee] = len(invoices(guarantee))
spark.sparkContext.setLogLevel("ERROR")
print(after_kill)

# COMMAND ----------

# MAGIC %md
# MAGIC One micro-batch was committed before the kill. With `exactly_once` a reader sees the invoices of this batch (half of
# MAGIC the orders) and no row of the second batch. The rows of the finished task are in the log, but their transaction was not
# MAGIC committed.

# COMMAND ----------

assert after_kill["exactly_once"] == ORDERS // 2
assert after_kill["at_least_once"] >= ORDERS // 2

# COMMAND ----------

# MAGIC %md
# MAGIC ## Start the queries again
# MAGIC
# MAGIC Each query continues from its checkpoint and repeats the second micro-batch. The first task of the new exactly-once run aborts the
# MAGIC transactions that the killed run left open.

# COMMAND ----------

from collections import Counter

times = {}
for guarantee in GUARANTEES:
    start(guarantee).awaitTermination()
    times[guarantee] = Counter(invoices(guarantee))
rows = [(name, len(found), sum(found.values()) - ORDERS) for name, found in times.items()]
display(spark.createDataFrame(rows, "guarantee string, orders long, repeated_invoices long"))

# COMMAND ----------

# DBTITLE 1,No invoice is missing; with exactly_once none is double
wanted = {f"order-{order}" for order in range(ORDERS)}
assert set(times["at_least_once"]) == wanted
assert times["exactly_once"] == Counter(wanted)

# COMMAND ----------

# DBTITLE 1,Plot the number of invoices of each order
import matplotlib.pyplot as plt

figure, rows = plt.subplots(
    len(GUARANTEES), 1, sharex=True, sharey=True, figsize=(9, 4), label="invoices"
)
for axes, guarantee in zip(rows, GUARANTEES):
    axes.bar(range(ORDERS), [times[guarantee][f"order-{n}"] for n in range(ORDERS)], width=1.0)
    axes.set_title(guarantee)
    axes.set_ylabel("invoices")
rows[-1].set_xlabel("order")
figure.tight_layout()
display(figure)
plt.close(figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Single writes
# MAGIC
# MAGIC A `df.write` is one transaction. With `transactionalId` and a rising `transactionVersion` it is also idempotent: a job
# MAGIC that repeats a write adds nothing. In `foreachBatch`, set `transactionVersion` to the batch id.

# COMMAND ----------

bus.create_topic("etl.daily", partitions=1)
for _ in ("first write", "repeated write"):
    (
        spark.range(10)
        .selectExpr("CAST(id AS STRING) AS value")
        .write.format("logbus")
        .option("bootstrap.servers", bootstrap_servers)
        .option("topic", "etl.daily")
        .option("deliveryGuarantee", "exactly_once")
        .option("transactionalId", "daily-report")
        .option("transactionVersion", 20260101)
        .mode("append")
        .save()
    )
daily = spark.read.format("logbus").option("bootstrap.servers", bootstrap_servers)
assert daily.option("subscribe", "etl.daily").load().count() == 10

# COMMAND ----------

# DBTITLE 1,Stop the cluster
shutil.rmtree(folder)
bus.close()
if cluster is not None:
    cluster.stop()
