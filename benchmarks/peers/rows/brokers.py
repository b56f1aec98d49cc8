"""Benchmark 14: memory and processor time of the brokers alone, for each GB written and read."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from peers import java_tools, kept
from peers.bench import Bench
from peers.row import KAFKA, LOGBUS, Goal, Measures, Processes, Row, Side, Variant
from peers.rows.produce import (
    FLUSH_NOTE,
    FLUSHED,
    PARTITIONS,
    PRODUCED_MB,
    TUNED,
    write_payloads,
)
from peers.servers import KafkaServers, LogbusServers

SIZE = 1000
MEGABYTES = 300
CLIENTS: Mapping[str, Mapping[str, str]] = {
    "defaults": {},
    "tuned": TUNED,
    "tuned, lz4": TUNED,
    "tuned, small heap": TUNED,
}
HEAPS = {"tuned, small heap": "-Xmx256M -Xms256M"}
"""The heap options of a Kafka broker with little memory: a quarter of the default heap."""


@contextlib.contextmanager
def open_sides(bench: Bench, variant: Variant) -> Iterator[Mapping[str, Side]]:
    # Start new servers, because peak memory counts from a server's start. In an earlier benchmark,
    # a broker may have loaded numpy and pyarrow, which take 50 MB.
    bench.stop_all()
    count = bench.size(MEGABYTES * 1_000_000 // SIZE)
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder:
        payloads = Path(folder) / "payloads"
        write_payloads(bench, payloads, SIZE)

        client = CLIENTS[variant.name]

        def run(servers: LogbusServers | KafkaServers) -> Measures:
            topic = servers.new_topic(PARTITIONS)
            where = servers.bootstrap_servers
            packed = {"compression.type": variant.compression[servers.peer]}
            java_tools.produce(
                where, topic, count=count, payloads=payloads, settings={**client, **packed}
            )
            java_tools.consume(where, topic, count=count)
            servers.delete_topic(topic)
            return {"moved_gb": 2 * count * SIZE / 1e9}

        sides: list[LogbusServers | KafkaServers] = [
            bench.logbus(),
            bench.kafka(heap=HEAPS.get(variant.name, "")),
        ]
        yield {each.peer: Side(partial(run, each), each.processes, each.settings) for each in sides}


def derive(measures: Measures, processes: Processes) -> Measures:
    """Derive the cost of the brokers without and with ZooKeeper.

    Kafka's brokers include KRaft, which does ZooKeeper's work.
    """
    broker, zookeeper = processes["broker"], processes.get("zookeeper", {})
    cpu, peak = broker["cpu_s"], broker["peak_mb"]
    return {
        "broker_peak_mb": peak,
        "broker_cpu_s_per_gb": round(cpu / measures["moved_gb"], 3),
        "with_zookeeper_peak_mb": round(peak + zookeeper.get("peak_mb", 0), 1),
        "with_zookeeper_cpu_s_per_gb": round(
            (cpu + zookeeper.get("cpu_s", 0)) / measures["moved_gb"], 3
        ),
    }


def bare_cpu(found: Mapping[str, Any], measure: str) -> float | None:
    """Return the lowest possible ratio of processor times.

    This is the time of a server that only writes, flushes and answers, divided by the time of
    Kafka's broker. Return None without a result of the benchmark produce-1kb.
    """
    if measure != "broker_cpu_s_per_gb":
        return None
    for each in kept.read(kept.RESULTS / "produce-1kb.json")["variants"]:
        if each["variant"] == found["variant"] and FLUSHED in each.get("sides", {}):
            seconds = each["sides"][FLUSHED]["processes"]["broker"]["cpu_s"]
            theirs = found["sides"][KAFKA]["median"][measure]
            return float(seconds / (2 * PRODUCED_MB / 1000) / theirs)
    return None


def _variant(name: str) -> Variant:
    compression = "lz4" if name.endswith("lz4") else "none"
    words = ", ".join(f"{key}={value}" for key, value in CLIENTS[name].items())
    return Variant(
        name,
        {
            "client": f"ProducerPerformance, acks=all, {words or 'its defaults'}; "
            "ConsumerPerformance, its defaults"
        },
        {LOGBUS: compression, KAFKA: compression},
    )


ROWS = (
    Row(
        "brokers",
        14,
        f"Brokers only: {SIZE} B records in by ProducerPerformance, out by ConsumerPerformance",
        goals=(
            Goal("broker_peak_mb", 0.15, "less"),
            Goal("broker_cpu_s_per_gb", 1.0, "less"),
            Goal("with_zookeeper_peak_mb", None, "less"),
            Goal("with_zookeeper_cpu_s_per_gb", None, "less"),
        ),
        open=open_sides,
        variants=tuple(map(_variant, CLIENTS)),
        note=f"a GB that is written and then read counts as two GB; {FLUSH_NOTE}",
        bound=(
            "memory: the broker takes 50 MB before its first record. Processor: 110 us for a batch "
            "of 16 KB, little more for 256 KB. *At least*: a server that only writes and flushes "
            "(the side *floor, flushed* of produce-1kb)"
        ),
        ceiling=bare_cpu,
        derive=derive,
    ),
)
