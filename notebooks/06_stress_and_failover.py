# Databricks notebook source
# MAGIC %md
# MAGIC # Stress and failover
# MAGIC
# MAGIC This notebook runs three brokers and a producer that never pauses, and kills a broker with SIGKILL in the middle of the run. Afterwards every
# MAGIC acknowledged record must be readable once. The plot shows how long acknowledgements are missing.
# MAGIC
# MAGIC This notebook always starts its own cluster, because it kills a broker.
# MAGIC
# MAGIC On Databricks, use a single-user cluster with Databricks Runtime for Spark 4.2 or later, and run `%pip install` on the
# MAGIC wheel that `make wheel` builds. Elsewhere, install logbus with `[all]`, and run
# MAGIC `python notebooks/06_stress_and_failover.py`; plots become PNG files.

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

# DBTITLE 1,Choose the number of records a second and the length of the run
dbutils.widgets.text("rate", "1000", "Records a second")
dbutils.widgets.text("seconds", "6", "Length of the run")
rate = int(dbutils.widgets.get("rate"))
seconds = float(dbutils.widgets.get("seconds"))

# COMMAND ----------

# DBTITLE 1,Start three brokers
import threading
import time
from itertools import pairwise

cluster = logbus.LocalCluster(brokers=3).start()
bootstrap_servers = cluster.bootstrap_servers
bus = logbus.connect(bootstrap_servers)
bus.create_topic("stress.events", partitions=3)


def partitions():
    """Return leader, replicas and in-sync replicas of each partition."""
    return bus.cluster().topics["stress.events"].partitions


def show_partitions():
    rows = [(p.partition, p.leader, str(p.replicas), str(p.isr)) for p in partitions()]
    display(spark.createDataFrame(rows, "partition int, leader int, replicas string, isr string"))


show_partitions()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Send, and kill a leader
# MAGIC
# MAGIC The producer sends records to three partitions at a steady rate and keeps the times of sending and acknowledgement. After a third of the run the leader
# MAGIC of partition 0 gets SIGKILL. The producer retries by itself: the program sees no error.

# COMMAND ----------

sent, acknowledged, failed = {}, {}, []
killed_at = None


def send(start):
    with bus.producer(linger_ms=5) as producer:
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
            sent[number] = time.monotonic()
            future = producer.send("stress.events", str(number).encode(), partition=number % 3)
            future.add_done_callback(lambda done, number=number: note(number, done))


def note(number, done):
    if done.exception() is None:
        acknowledged[number] = time.monotonic()
    else:
        failed.append(done.exception())


start = time.monotonic()
sender = threading.Thread(target=send, args=(start,))
sender.start()
time.sleep(seconds / 3)
victim = partitions()[0].leader
killed_at = time.monotonic()
cluster.brokers[victim].kill()
sender.join()
print(f"{len(sent):,} sent, {len(acknowledged):,} acknowledged, {len(failed)} failed")

# COMMAND ----------

# DBTITLE 1,Every acknowledged record is in the topic once
found = []
for partition in range(3):
    with bus.consumer("stress.events", partitions=[partition], start="earliest") as consumer:
        while records := consumer.poll(2.0):
            found += [int(record.value) for record in records]
assert not failed
assert sorted(found) == sorted(acknowledged) == list(range(int(rate * seconds)))

# COMMAND ----------

# DBTITLE 1,Spark reads as many records as were acknowledged
table = spark.read.format("logbus").option("bootstrap.servers", bootstrap_servers)
frame = table.option("subscribe", "stress.events").load()
assert frame.selectExpr("CAST(value AS STRING)").distinct().count() == len(acknowledged)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The gap
# MAGIC
# MAGIC In the upper plot each dot is a record: when it was sent, and how long its acknowledgement took. Records of partition 0 wait for the election of a new
# MAGIC leader. Records of the other partitions may wait, too, until the dead broker has left their in-sync replicas. The lower plot counts the
# MAGIC acknowledgements of partition 0 in each tenth of a second; the longest gap in the second after the kill is shaded.

# COMMAND ----------

COLORS = {2: "#b8c4d9", 1: "#8c9fbf", 0: "#2f4b7c"}
figure, (above, below) = plt.subplots(
    2, 1, sharex=True, figsize=(9, 5), label="failover", height_ratios=(3, 2)
)
for partition, color in COLORS.items():
    numbers = [number for number in sent if number % 3 == partition]
    above.plot(
        [sent[n] - start for n in numbers],
        [1000 * (acknowledged[n] - sent[n]) for n in numbers],
        ".",
        markersize=3,
        color=color,
        label=f"partition {partition}",
    )
above.set_yscale("log")
above.yaxis.set_major_formatter("{x:g}")
above.set_ylabel("acknowledged\nafter [ms]")
acks = sorted(at - start for number, at in acknowledged.items() if number % 3 == 0)
tenths = [0] * (int(10 * acks[-1]) + 1)
for at in acks:
    tenths[int(10 * at)] += 1
kill = killed_at - start
around = [(a, b) for a, b in pairwise(acks) if b > kill and a < kill + 1]
gap = max(around, key=lambda pair: pair[1] - pair[0])
below.bar([n / 10 for n in range(len(tenths))], tenths, width=0.1, align="edge", color="#2f4b7c")
below.axhline(rate / 30, color="0.3", lw=1, ls=":")
below.set_ylabel("acknowledged\nin 0.1 s")
below.set_xlabel("seconds since the start")
for axes in (above, below):
    axes.axvspan(*gap, color="#c44e52", alpha=0.15, lw=0, label="gap of partition 0")
    axes.axvline(kill, color="#c44e52", lw=1.5, label="kill of its leader")
    axes.spines[["top", "right"]].set_visible(False)
above.legend(frameon=False, ncols=5, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1))
figure.align_ylabels()
figure.tight_layout()
display(figure)
plt.close(figure)

# COMMAND ----------

# DBTITLE 1,The longest gap between two acknowledgements of a partition
gaps = {}
for partition in range(3):
    times = sorted(at for number, at in acknowledged.items() if number % 3 == partition)
    gaps[partition] = max(b - a for a, b in pairwise(times))
rows = [(partition, round(1000 * gap)) for partition, gap in gaps.items()]
display(spark.createDataFrame(rows, "partition int, longest_gap_ms int"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The broker returns
# MAGIC
# MAGIC The restarted broker reads its data directory, truncates records that were never committed, copies the records that it missed, and joins the in-sync
# MAGIC replicas again.

# COMMAND ----------

cluster.brokers[victim].start()
deadline = time.monotonic() + 60
while any(len(partition.isr) < 3 for partition in partitions()):
    assert time.monotonic() < deadline
    time.sleep(0.1)
show_partitions()

# COMMAND ----------

# DBTITLE 1,Stop the cluster
bus.close()
cluster.stop()
