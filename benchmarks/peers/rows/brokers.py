"""Benchmark 14: memory and processor time of the brokers alone, for each GB written and read. A GB
that is written and then read counts as two GB."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from peers import java_tools, kept
from peers.bench import Bench
from peers.row import KAFKA, Goal, Measures, Processes, Row, Side, Variant, words
from peers.rows.produce import FLUSHED, PARTITIONS, PRODUCED_MB, TUNED
from peers.servers import HEAP, Servers

SIZE = 1000
MEGABYTES = 300
HEAPS = {"tuned, small heap": "-Xmx256M -Xms256M"}
"""The heap options of a Kafka broker with little memory: a quarter of the default heap."""


def _client(name: str) -> Mapping[str, str]:
    return {} if name == "defaults" else TUNED


@contextlib.contextmanager
def open_sides(bench: Bench, variant: Variant) -> Iterator[Mapping[str, Side]]:
    # Start new servers, because peak memory counts from a server's start. In an earlier benchmark,
    # a broker may have loaded numpy and pyarrow, which take 50 MB.
    bench.stop_all()
    count = bench.size(MEGABYTES * 1_000_000 // SIZE)
    settings = {**_client(variant.name), "compression.type": variant.compression}
    with java_tools.payloads(bench, SIZE) as payloads:

        def run(servers: Servers) -> Measures:
            with servers.topic(PARTITIONS) as topic:
                java_tools.produce(
                    servers, topic, count=count, payloads=payloads, settings=settings
                )
                java_tools.consume(servers, topic, count=count, settings={})
            return {"moved_gb": 2 * count * SIZE / 1e9}

        both = (bench.logbus(), bench.kafka(heap=HEAPS.get(variant.name, HEAP)))
        yield {each.peer: Side.of(each, run) for each in both}


def derive(measures: Measures, processes: Processes) -> Measures:
    broker = processes["broker"]
    return {
        "broker_peak_mb": broker["peak_mb"],
        "broker_cpu_s_per_gb": round(broker["cpu_s"] / measures["moved_gb"], 3),
    }


def bare_cpu(found: Mapping[str, Any], measure: str) -> float | None:
    """Return the lowest possible ratio of processor times.

    Divide the time of a server that only writes, flushes and answers by the time of Kafka's broker.
    Return None if ``measure`` is no processor time, or without a result of the benchmark
    produce-1kb.
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
    tools = f"ProducerPerformance, acks=all, {words(_client(name))}; ConsumerPerformance"
    return Variant(name, {"client": tools}, "lz4" if name.endswith("lz4") else "none")


ROWS = (
    Row(
        "brokers",
        14,
        f"Brokers only: {SIZE} B records in by ProducerPerformance, out by ConsumerPerformance",
        goals=(
            Goal("broker_peak_mb", 0.15, "less"),
            Goal("broker_cpu_s_per_gb", 1.0, "less"),
        ),
        open=open_sides,
        variants=tuple(map(_variant, ("defaults", "tuned", "tuned, lz4", "tuned, small heap"))),
        bound=(
            "memory: the broker takes 50 MB before its first record. Processor: 110 us for a batch "
            "of 16 KB, little more for 256 KB. *At least*: a server that only writes and flushes "
            "(the side *floor, flushed* of produce-1kb)"
        ),
        ceiling=bare_cpu,
        derive=derive,
    ),
)
