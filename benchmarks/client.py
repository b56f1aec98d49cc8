"""What the client costs through one real broker, with the flush before the ack; prints JSON.

    python benchmarks/client.py [--seconds 5] [--only send,send_reported,arrow,poll,poll_sent,…]

Rates are medians of several runs; the broker is a process of its own on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from broker_lite.client import Bus, EndOffsetsWatch, connect, read_range
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition

MB = 1_000_000


def values(count: int, size: int) -> pa.Array:
    """Values of one size that do not compress to nothing."""
    data = os.urandom(size * 1000) * (count // 1000 + 1)
    offsets = pa.array(range(0, size * (count + 1), size), pa.int32())
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(data)]
    )


def bench_send(bus: Bus, seconds: float, *, reported: bool = False) -> dict[str, Any]:
    """Records of 100 B by ``send`` until all are acknowledged; ``reported``: to a callback each."""
    bus.create_topic("send", partitions=1, if_not_exists=True)
    value, done = os.urandom(100), 0

    def delivered(future: Any) -> None:
        nonlocal done
        done += future.exception() is None

    with bus.producer() as producer:
        producer.send("send", value).result()
        rates, calls = [], []
        for _ in range(3):
            count, begin, cpu = 0, time.perf_counter(), time.process_time()
            send = producer.send
            while time.perf_counter() - begin < seconds / 3:
                if reported:
                    for _ in range(10_000):
                        send("send", value).add_done_callback(delivered)
                else:
                    for _ in range(10_000):
                        send("send", value)
                count += 10_000
            calls.append(count / (time.perf_counter() - begin))
            producer.flush()
            spent = time.perf_counter() - begin
            rates.append(count / spent)
            cpu = (time.process_time() - cpu) / count * 1e6
    return {
        "records_per_s": round(statistics.median(rates)),
        "best_records_per_s": round(max(rates)),
        "cpu_us_per_record": round(cpu, 3),
    }


def bench_send_call() -> dict[str, Any]:
    """The call alone: no broker answers, nothing is sent."""
    from broker_lite.client.producing.producer import Producer
    from broker_lite.config import ProducerConfig

    producer = Producer(
        "127.0.0.1:1",
        ProducerConfig(linger_ms=60_000, batch_bytes=32 << 20, buffer_bytes=1 << 34),
    )
    value, best = os.urandom(100), float("inf")
    for _ in range(5):
        send, begin = producer.send, time.perf_counter()
        for _ in range(100_000):
            send("t", value)
        best = min(best, (time.perf_counter() - begin) / 100_000)
    producer._reactor.stop()
    return {"us_per_call": round(best * 1e6, 3)}


def bench_arrow(bus: Bus, seconds: float, pid: int) -> dict[str, Any]:
    """Values of 200 B by ``send_arrow`` into one partition, until all are acknowledged."""
    bus.create_topic("arrow", partitions=1, if_not_exists=True)
    bus.create_topic("warm-up", partitions=1, if_not_exists=True)
    rows = 100_000
    table = pa.table({"value": values(rows, 200)})
    with bus.producer() as producer:
        # Memory that the machine touches for the first time is many times slower than any other.
        for _ in range(int(seconds * 20)):
            producer.send_arrow("warm-up", table)
        producer.flush()
        bus.delete_topic("warm-up")
        producer.send_arrow("arrow", table).result()
        rates, total, cpu, broker = [], 0, time.process_time(), cpu_s(pid)
        for _ in range(3):
            count, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < seconds / 3:
                producer.send_arrow("arrow", table)
                count += rows
            producer.flush()
            total += count
            rates.append(count * 200 / (time.perf_counter() - begin) / MB)
        cpu, broker = time.process_time() - cpu, cpu_s(pid) - broker
    raw, raw_cpu_ms = raw_write()
    return {
        "mb_per_s": round(statistics.median(rates)),
        "best_mb_per_s": round(max(rates)),
        "client_cpu_ms_per_mb": round(cpu * 1000 / (total * 200 / MB), 2),
        "broker_cpu_ms_per_mb": round(broker * 1000 / (total * 200 / MB), 2),
        "raw_cpu_ms_per_mb": round(raw_cpu_ms, 2),
        "raw_write_and_flush_mb_per_s": round(raw),
        "ratio_to_raw": round(statistics.median(rates) / raw, 2),
    }


def raw_write() -> tuple[float, float]:
    """What the disk under the temporary folder takes: 5 MB writes, each flushed, in MB/s; and what
    a MB costs the processor, in ms."""
    data = os.urandom(5 * MB)
    with tempfile.NamedTemporaryFile() as file:
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(100):
            os.write(file.fileno(), data)
            os.fdatasync(file.fileno())
        written = 100 * len(data) / MB
        spent, cpu = time.perf_counter() - begin, time.process_time() - cpu
        return written / spent, cpu * 1000 / written


def bench_poll(bus: Bus, seconds: float, pid: int, *, local_reads: bool) -> dict[str, Any]:
    """Values of 200 B by ``poll_arrow`` from one partition: out of the broker's files, or sent."""
    rates, total, own, broker = [], 0, 0.0, 0.0
    for _ in range(4):
        with bus.consumer("arrow", start="earliest", local_reads=local_reads) as consumer:
            end = sum(consumer.end_offsets().values())
            consumer.poll_arrow(10.0)
            count, begin = 0, time.perf_counter()
            own, broker = own - time.process_time(), broker - cpu_s(pid)
            while time.perf_counter() - begin < seconds / 3:
                batch = consumer.poll_arrow(10.0)
                count += batch.num_rows
                if sum(consumer.positions().values()) >= end:
                    break
            rates.append(count * 200 / (time.perf_counter() - begin) / MB)
            own, broker = own + time.process_time(), broker + cpu_s(pid)
            total += count
    # The first run may have to read from the disk.
    return {
        "mb_per_s": round(statistics.median(rates[1:])),
        "best_mb_per_s": round(max(rates)),
        "client_cpu_ms_per_mb": round(own * 1000 / (total * 200 / MB), 3),
        "broker_cpu_ms_per_mb": round(broker * 1000 / (total * 200 / MB), 3),
    }


def bench_read_range(bus: Bus, seconds: float) -> dict[str, Any]:
    """What a Spark executor does: a range of one partition as Arrow."""
    where = TopicPartition("arrow", 0)
    view = bus.admin.cluster(["arrow"])
    end = bus.admin.list_offsets({where: -1})[where].offset
    end = min(end, int(400 * MB * seconds / 3 / 200))
    rates = []
    for _ in range(3):
        begin, count = time.perf_counter(), 0
        for batch in read_range(
            where,
            view.topic_id("arrow"),
            view.leader_epoch(where),
            0,
            end,
            leader=view.leader(where),
            bootstrap=bus.bootstrap_servers,
        ):
            count += batch.row_count
        assert count == end, (count, end)
        rates.append(count * 200 / (time.perf_counter() - begin) / MB)
    small = []
    for _ in range(200):
        begin = time.perf_counter()
        for _ in read_range(
            where,
            view.topic_id("arrow"),
            view.leader_epoch(where),
            end - 2,
            end,
            leader=view.leader(where),
            bootstrap=bus.bootstrap_servers,
            fetch_bytes=1 << 20,
        ):
            pass
        small.append((time.perf_counter() - begin) * 1000)
    return {
        "mb_per_s": round(statistics.median(rates)),
        "best_mb_per_s": round(max(rates)),
        "two_rows_ms_p50": round(statistics.median(small), 3),
    }


def bench_iterate(bus: Bus, seconds: float) -> dict[str, Any]:
    """Records of 100 B, one by one."""
    rates, total, cpu = [], 0, 0.0
    for _ in range(3):
        with bus.consumer("send", start="earliest") as consumer:
            records = iter(consumer)
            next(records)
            count, begin = 0, time.perf_counter()
            cpu -= time.process_time()
            left = sum(consumer.lag().values())
            for _ in records:
                count += 1
                if count == left or (
                    not count % 10_000 and time.perf_counter() - begin > seconds / 3
                ):
                    break
            rates.append(count / (time.perf_counter() - begin))
            cpu += time.process_time()
            total += count
    return {
        "records_per_s": round(statistics.median(rates)),
        "cpu_us_per_record": round(cpu / total * 1e6, 3),
    }


def bench_latency(bus: Bus, seconds: float) -> dict[str, Any]:
    """From before ``send`` to the record in ``poll`` and to the acknowledgement, in ms."""
    bus.create_topic("latency", partitions=1, if_not_exists=True)
    ends, acks = [], []
    with bus.producer(linger_ms=0) as producer, bus.consumer("latency") as consumer:
        producer.send("latency", b"warm").result()
        while not consumer.poll(1.0):
            pass
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            begin = time.perf_counter()
            future = producer.send("latency", b"x" * 100)
            while not consumer.poll(1.0):
                pass
            ends.append((time.perf_counter() - begin) * 1000)
            future.result()
        for _ in range(500):
            begin = time.perf_counter()
            producer.send("latency", b"x" * 100).result()
            acks.append((time.perf_counter() - begin) * 1000)
    return {"produce_to_poll_ms": percentiles(ends), "send_to_ack_ms": percentiles(acks)}


def bench_idle(bus: Bus, seconds: float, pid: int) -> dict[str, Any]:
    """CPU of an idle end offsets watch and an idle consumer, client and broker, in % of a core."""
    with EndOffsetsWatch(bus.bootstrap_servers, ["send"]) as watch:
        assert watch.wait_ready(10)
        with bus.consumer("send") as consumer:
            consumer.poll(0.5)
            own, broker, begin = time.process_time(), cpu_s(pid), time.perf_counter()
            consumer.poll(seconds)
            spent = time.perf_counter() - begin
            return {
                "client_percent": round((time.process_time() - own) / spent * 100, 2),
                "broker_percent": round((cpu_s(pid) - broker) / spent * 100, 2),
            }


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentiles(samples: list[float]) -> dict[str, float]:
    ranked = sorted(samples)
    return {
        "p50": round(ranked[len(ranked) // 2], 3),
        "p99": round(ranked[int(len(ranked) * 0.99)], 3),
        "samples": len(ranked),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    seconds = arguments.seconds
    results: dict[str, Any] = {}
    if not only or "call" in only:
        results["send_call"] = bench_send_call()
    with LocalCluster(brokers=1) as cluster, connect(cluster.bootstrap_servers) as bus:
        pid = cluster.brokers[0].pid
        assert pid is not None
        benches: dict[str, Callable[[], dict[str, Any]]] = {
            "send": lambda: bench_send(bus, seconds),
            "send_reported": lambda: bench_send(bus, seconds, reported=True),
            "arrow": lambda: bench_arrow(bus, seconds, pid),
            "poll": lambda: bench_poll(bus, seconds, pid, local_reads=True),
            "poll_sent": lambda: bench_poll(bus, seconds, pid, local_reads=False),
            "read_range": lambda: bench_read_range(bus, seconds),
            "iterate": lambda: bench_iterate(bus, seconds),
            "latency": lambda: bench_latency(bus, seconds),
            "idle": lambda: bench_idle(bus, seconds, pid),
        }
        for name, bench in benches.items():
            if not only or name in only:
                results[name] = bench()
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
