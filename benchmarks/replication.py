"""What three replicas cost: rates and latency of one client, and how soon a replica is back.

    python benchmarks/replication.py [--seconds 9] [--outage 60] [--only NAME,…]

Three brokers, RF 3, acks=all: acknowledged is what all in-sync replicas have flushed. One partition
and one client, all on this machine; prints one JSON object. ``back_in_sync``: a follower is killed
for ``--outage`` seconds under half of the rate that was measured, and started again under it.
``after_unclean_stop``: kill -9 of all brokers with what was written so far on their disks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from broker_lite.client import Bus, connect
from broker_lite.errors import LogbusError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition

MB = 1_000_000
ROUNDS = 3
WAIT_S = 120.0
ROWS = 1000


def bench_records(bus: Bus, seconds: float, size: int) -> dict[str, Any]:
    """Records of one size by ``send``, until all are acknowledged."""
    topic = f"records-{size}"
    bus.create_topic(topic, partitions=1)
    value = os.urandom(size)
    rates = []
    with bus.producer() as producer:
        producer.send(topic, value).result()
        for _ in range(ROUNDS):
            count, begin = 0, time.perf_counter()
            send = producer.send
            while time.perf_counter() - begin < seconds / ROUNDS:
                for _ in range(1000):
                    send(topic, value)
                count += 1000
            producer.flush()
            rates.append(count / (time.perf_counter() - begin))
    rate = statistics.median(rates)
    return {
        "record_bytes": size,
        "records_per_s": round(rate),
        "mb_per_s": round(rate * size / MB, 1),
        "best_records_per_s": round(max(rates)),
    }


def bench_latency(bus: Bus, seconds: float) -> dict[str, Any]:
    """From ``send`` to the acknowledgement at 1,000 records of 100 B a second, in ms."""
    bus.create_topic("latency", partitions=1)
    value, times = os.urandom(100), []
    with bus.producer(linger_ms=0) as producer:
        producer.send("latency", value).result()
        begin, sent = time.perf_counter(), 0
        while (now := time.perf_counter()) < begin + seconds:
            for _ in range(int((now - begin) * 1000) - sent):
                at = time.perf_counter()
                producer.send("latency", value).add_done_callback(
                    lambda _, at=at: times.append((time.perf_counter() - at) * 1000)
                )
                sent += 1
            time.sleep(0.0005)
        producer.flush()
    ranked = sorted(times)
    return {
        "p50_ms": round(ranked[len(ranked) // 2], 2),
        "p99_ms": round(ranked[int(len(ranked) * 0.99)], 2),
        "max_ms": round(ranked[-1], 2),
        "samples": len(ranked),
    }


class Pressure:
    """Rows of 1 KB at a pace in a thread, in Arrow, to one partition."""

    def __init__(self, bus: Bus, topic: str, mb_per_s: float) -> None:
        self.megabytes = 0.0
        self.error: LogbusError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bus, topic, mb_per_s), daemon=True)

    def _run(self, bus: Bus, topic: str, mb_per_s: float) -> None:
        table = pa.table({"value": pa.array([os.urandom(1000) for _ in range(ROWS)], pa.binary())})
        try:
            with bus.producer() as producer:
                begin = time.monotonic()
                while not self._over.is_set():
                    if self.megabytes < (time.monotonic() - begin) * mb_per_s:
                        producer.send_arrow(topic, table)
                        self.megabytes += ROWS * 1000 / MB
                    else:
                        time.sleep(0.002)
        except LogbusError as error:
            self.error = error

    def __enter__(self) -> Pressure:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


def wait_isr(bus: Bus, topic: str, size: int) -> float:
    """Seconds until the partition has so many replicas in sync."""
    begin = time.monotonic()
    while time.monotonic() < begin + WAIT_S:
        row = bus.admin.cluster([topic]).partition(TopicPartition(topic, 0))
        if row is not None and len(row.isr) == size and row.error is None:
            return time.monotonic() - begin
        time.sleep(0.02)
    raise AssertionError(f"{topic} has not {size} replicas in sync after {WAIT_S:.0f} s")


def bench_back_in_sync(
    cluster: LocalCluster, bus: Bus, outage: float, mb_per_s: float
) -> dict[str, Any]:
    """How long a follower needs that was away, while the others take half of what they can."""
    bus.create_topic("outage", partitions=1)
    wait_isr(bus, "outage", 3)
    row = bus.admin.cluster(["outage"]).partition(TopicPartition("outage", 0))
    assert row is not None
    follower = next(broker for broker in cluster.brokers if broker.id != row.leader)
    with Pressure(bus, "outage", mb_per_s) as pressure:
        follower.kill()
        time.sleep(outage)
        behind = pressure.megabytes
        begin = time.monotonic()
        follower.start()
        started = time.monotonic() - begin
        wait_isr(bus, "outage", 3)
        seconds = time.monotonic() - begin
    return {
        "outage_s": outage,
        "load_mb_per_s": round(mb_per_s, 1),
        "behind_mb": round(behind),
        "process_started_s": round(started, 2),
        "back_in_sync_s": round(seconds, 2),
    }


def bench_unclean_stop(cluster: LocalCluster, bus: Bus) -> dict[str, Any]:
    """kill -9 of all brokers; seconds until they serve again, and until all is in sync."""
    topics = bus.topics()
    size = sum(sum(found.partitions.values()) for found in bus.admin.log_dirs())
    for broker in cluster.brokers:
        broker.kill()
    begin = time.monotonic()
    for broker in cluster.brokers:
        broker.start(wait=False)
    for broker in cluster.brokers:
        broker.wait_ready()
    ready = time.monotonic() - begin
    with bus.producer() as producer:
        for topic in topics:
            producer.send(topic, b"after").result(WAIT_S)
    served = time.monotonic() - begin
    for topic in topics:
        wait_isr(bus, topic, 3)
    return {
        "stored_gb": round(size / 1e9, 2),
        "listening_s": round(ready, 2),
        "serving_s": round(served, 2),
        "in_sync_s": round(time.monotonic() - begin, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=9.0)
    parser.add_argument("--outage", type=float, default=60.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    seconds = options.seconds
    results: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1)}
    with LocalCluster(brokers=3) as cluster, connect(cluster.bootstrap_servers) as bus:

        def half() -> float:
            return float(results.get("records_1_kb", {"mb_per_s": 40.0})["mb_per_s"]) / 2

        rows: dict[str, Callable[[], dict[str, Any]]] = {
            "latency_at_1000_per_s": lambda: bench_latency(bus, seconds),
            "records_100_b": lambda: bench_records(bus, seconds, 100),
            "records_1_kb": lambda: bench_records(bus, seconds, 1000),
            "back_in_sync": lambda: bench_back_in_sync(cluster, bus, options.outage, half()),
            "after_unclean_stop": lambda: bench_unclean_stop(cluster, bus),
        }
        for name, row in rows.items():
            if not only or name in only:
                results[name] = row()
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
