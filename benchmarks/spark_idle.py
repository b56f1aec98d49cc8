"""What an idle stream costs: CPU of the brokers and of ZooKeeper while nothing is sent.

Three brokers, one query with the default trigger from topic to topic that has caught up. CPU time
comes from /proc, in percent of one core, over a minute; the same minute without a query beside it.

python benchmarks/spark_idle.py [--seconds SECONDS] [--output FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import time
from pathlib import Path
from typing import Any

from spark_bench import folder, processor_s, report, session

import pyspark_logbus as logbus

BROKERS = 3


def wakes(pid: int) -> dict[str, int]:
    """How often each thread of a process gave up the processor of its own accord."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for line in (task / "status").read_text("utf-8").splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    found[task.name] = int(line.split()[1])
    return found


def watch(pids: dict[str, int], seconds: float) -> dict[str, dict[str, float]]:
    """Percent of one core, and wake-ups a second of the threads that live on, of each process."""
    before = {name: (sum(processor_s(pid)), wakes(pid)) for name, pid in pids.items()}
    started = time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - started
    found: dict[str, dict[str, float]] = {}
    for name, pid in pids.items():
        cpu, woken = before[name]
        now = wakes(pid)
        found[name] = {
            "cpu_percent": round((sum(processor_s(pid)) - cpu) / took * 100, 2),
            "wakes_per_s": round(sum(now[t] - woken[t] for t in now if t in woken) / took, 1),
        }
    return found


def brokers_percent(found: dict[str, dict[str, float]]) -> float:
    return round(sum(row["cpu_percent"] for name, row in found.items() if name != "zookeeper"), 2)


def start(spark: Any, bus: Any, checkpoint: str) -> Any:
    """A query that has read and written its rows and waits for more."""
    servers = bus.bootstrap_servers
    source = spark.readStream.format("logbus").option("bootstrap.servers", servers)
    frame = source.option("subscribe", "in").option("startingOffsets", "earliest").load()
    writer = frame.select("key", "value").writeStream.format("logbus")
    writer = writer.option("bootstrap.servers", servers).option("topic", "out")
    query = writer.option("checkpointLocation", checkpoint).start()
    while not any(p.numInputRows for p in query.recentProgress):
        time.sleep(0.05)
    return query


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=5.0)
    parser.add_argument("--output")
    args = parser.parse_args()
    work = folder()
    with (
        logbus.LocalCluster(brokers=BROKERS) as cluster,
        logbus.connect(cluster.bootstrap_servers) as bus,
    ):
        bus.create_topic("in", partitions=3)
        bus.create_topic("out", partitions=3)
        with bus.producer() as producer:
            for number in range(30):
                producer.send("in", b"%d" % number, partition=number % 3)
        pids = {f"broker_{broker.id}": broker.pid for broker in cluster.brokers}
        pids["zookeeper"] = cluster.zookeeper_server.pid
        time.sleep(args.settle)
        alone = watch(pids, args.seconds)
        spark = session("idle")
        query = start(spark, bus, f"{work}/checkpoint")
        time.sleep(args.settle)
        idle = watch(pids, args.seconds)
        query.stop()
        spark.stop()
    shutil.rmtree(work, ignore_errors=True)
    report(
        "spark_idle",
        {
            "seconds": args.seconds,
            "brokers": BROKERS,
            "idle_stream": idle,
            "no_stream": alone,
            "brokers_percent_of_a_core": brokers_percent(idle),
            "brokers_percent_without_a_stream": brokers_percent(alone),
            "goal_below": 1.0,
        },
        args.output,
    )


if __name__ == "__main__":
    main()
