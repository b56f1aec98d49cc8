"""A micro-batch of two rows from logbus to logbus, beside a Python source and sink that do nothing.

Both with the two settings of conf/spark-defaults.conf, in turns. The two rows of a batch are sent
when those of the batch before came out. Reports the median trigger, the time from send to receive,
the first batch and the first after idling (Spark ends idle workers after a minute).

python benchmarks/spark_latency.py [--batches N] [--idle SECONDS] [--output FILE]
"""

from __future__ import annotations

import argparse
import shutil
import time
from typing import Any

from spark_bench import folder, median, report, session

import pyspark_logbus as logbus


def triggers(query: Any) -> list[float]:
    """Trigger times in ms of the batches that had rows, without the first ones."""
    rows = [p for p in query.recentProgress if p.numInputRows]
    return [float(p.durationMs["triggerExecution"]) for p in rows]


def run_floor(spark: Any, checkpoint: str, batches: int) -> tuple[float, list[float]]:
    before = time.perf_counter()
    query = (
        spark.readStream.format("floor")
        .load()
        .writeStream.format("floor")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    while not query.lastProgress:
        time.sleep(0.005)
    first = time.perf_counter() - before
    while query.lastProgress.batchId < batches:
        time.sleep(0.02)
    query.stop()
    return first, triggers(query)


class Loop:
    """A query from one topic to another, and somebody who sends and waits."""

    def __init__(self, spark: Any, bus: Any, checkpoint: str) -> None:
        self.producer = bus.producer(linger_ms=0)
        self.consumer = bus.consumer("out", start="latest")
        self.consumer.poll(0.1)
        source = spark.readStream.format("logbus").option("subscribe", "in")
        source = source.option("bootstrap.servers", bus.bootstrap_servers).load()
        writer = source.select("key", "value").writeStream.format("logbus")
        writer = writer.option("bootstrap.servers", bus.bootstrap_servers).option("topic", "out")
        self.query = writer.option("checkpointLocation", checkpoint).start()

    def turn(self) -> float:
        """Two rows in and out; seconds."""
        before = time.perf_counter()
        self.producer.send("in", b"one", partition=0)
        self.producer.send("in", b"two", partition=0)
        self.producer.flush()
        left = 2
        while left:
            left -= len(list(self.consumer.poll(60.0)))
        return time.perf_counter() - before

    def close(self) -> None:
        self.query.stop()
        self.consumer.close()
        self.producer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--idle", type=float, default=75.0)
    parser.add_argument("--output")
    args = parser.parse_args()
    spark = session("latency", **{"spark.sql.streaming.numRecentProgressUpdates": "10000"})
    work = folder()
    with (
        logbus.LocalCluster(brokers=1) as cluster,
        logbus.connect(cluster.bootstrap_servers) as bus,
    ):
        bus.create_topic("in", partitions=1)
        bus.create_topic("out", partitions=1)
        before = time.perf_counter()
        loop = Loop(spark, bus, f"{work}/logbus")
        while not loop.query.lastProgress:
            time.sleep(0.005)
        first = time.perf_counter() - before
        loop.turn()
        floor_first, floors = run_floor(spark, f"{work}/floor-0", args.batches)
        turns = [loop.turn() for _ in range(args.batches)]
        _, more = run_floor(spark, f"{work}/floor-1", args.batches)
        warm = triggers(loop.query)[-args.batches + 10 :]
        floors = floors[10:] + more[10:]
        idle_turn = idle_trigger = 0.0
        if args.idle:
            time.sleep(args.idle)
            idle_turn = loop.turn()
            while len(triggers(loop.query)) < args.batches + 2:
                time.sleep(0.02)
            idle_trigger = triggers(loop.query)[-1]
        loop.close()
    spark.stop()
    shutil.rmtree(work, ignore_errors=True)
    report(
        "spark_latency",
        {
            "floor_trigger_ms": median(floors),
            "logbus_trigger_ms": median(warm),
            "ratio": round(median(warm) / median(floors), 3),
            "goal_at_most": 1.3,
            "send_to_receive_ms": median([turn * 1000 for turn in turns]),
            "first_batch_s": round(first, 3),
            "floor_first_batch_s": round(floor_first, 3),
            "idle_s": args.idle,
            "after_idling_trigger_ms": idle_trigger,
            "after_idling_send_to_receive_ms": round(idle_turn * 1000, 1),
        },
        args.output,
    )


if __name__ == "__main__":
    main()
