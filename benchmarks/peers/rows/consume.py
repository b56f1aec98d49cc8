"""Benchmarks 8 and 9: Kafka's own ConsumerPerformance reads from the brokers of each side."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from peers import java_tools
from peers.bench import Bench
from peers.ceilings import without_servers
from peers.row import KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.rows.produce import PARTITIONS, TUNED, write_payloads
from peers.servers import KafkaServers, LogbusServers

FETCH_BYTES = 8_388_608
POLL = {"max.poll.records": "5000"}
"""Settings of a Kafka consumer for high throughput: more records for each poll."""
COMPRESSIONS = {"defaults": "none", "lz4": "lz4", "tuned": "none"}
BOUND = (
    "the tool itself, the same program on the same cores. *At most*: the rate if logbus's servers "
    "took no processor time"
)


def _variant(name: str) -> Variant:
    compression = COMPRESSIONS[name]
    words = ", ".join(f"{key}={value}" for key, value in POLL.items())
    tuned = f"max.partition.fetch.bytes={FETCH_BYTES}, {words}"
    return Variant(
        name,
        settings={
            "client": f"ConsumerPerformance, {tuned if name == 'tuned' else 'its defaults'}",
            "written by": "ProducerPerformance to both (rows in both logs)",
        },
        compression={LOGBUS: compression, KAFKA: compression},
    )


def fill(
    bench: Bench,
    servers: LogbusServers | KafkaServers,
    *,
    size: int,
    count: int,
    replicas: int,
    compression: str,
) -> str:
    """Fill a new topic with Kafka's own producer; return its name."""
    topic = servers.new_topic(PARTITIONS, replicas)
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder:
        payloads = Path(folder) / "payloads"
        write_payloads(bench, payloads, size)
        java_tools.produce(
            servers.bootstrap_servers,
            topic,
            count=count,
            payloads=payloads,
            settings={**TUNED, "compression.type": compression},
        )
    return topic


@contextlib.contextmanager
def open_sides(
    bench: Bench, variant: Variant, *, size: int, megabytes: int, brokers: int
) -> Iterator[Mapping[str, Side]]:
    count = bench.size(megabytes * 1_000_000 // size)
    is_tuned = variant.name == "tuned"
    sides: list[LogbusServers | KafkaServers] = [
        bench.logbus(brokers),
        bench.kafka(brokers, tuned=is_tuned),
    ]
    topics = [
        fill(
            bench, each, size=size, count=count, replicas=brokers,
            compression=variant.compression[each.peer],
        )
        for each in sides
    ]  # fmt: skip

    def run(servers: LogbusServers | KafkaServers, topic: str) -> Measures:
        return java_tools.consume(
            servers.bootstrap_servers,
            topic,
            count=count,
            fetch_bytes=FETCH_BYTES if is_tuned else 0,
            settings=POLL if is_tuned else {},
        )

    yield {
        each.peer: Side(partial(run, each, topic), each.processes, each.settings)
        for each, topic in zip(sides, topics, strict=True)
    }
    for each, topic in zip(sides, topics, strict=True):
        each.delete_topic(topic)


def _row(
    name: str,
    number: int,
    size: int,
    megabytes: int,
    *,
    goal: float,
    brokers: int = 1,
) -> Row:
    copies = "RF 1" if brokers == 1 else "three brokers, RF 3"
    return Row(
        name,
        number,
        f"Kafka's ConsumerPerformance, {size} B, {PARTITIONS} partitions, {copies}",
        goals=(Goal("records_per_s", goal), Goal("records_per_s_with_joining", None)),
        open=partial(open_sides, size=size, megabytes=megabytes, brokers=brokers),
        variants=tuple(map(_variant, COMPRESSIONS)),
        note=(
            "records_per_s covers fetching only; with_joining also counts the time until the "
            "group has assigned the partitions. For a new group, logbus waits 250 ms for more "
            "members (group.initial.rebalance.delay.ms); Kafka does not wait here"
        ),
        bound=BOUND,
        ceiling=partial(without_servers, count=megabytes * 1_000_000 // size),
        quick=name == "consume-100b",
    )  # fmt: skip


ROWS = (
    _row("consume-100b", 8, 100, 250, goal=1.1),
    _row("consume-1kb", 8, 1000, 400, goal=1.1),
    _row("consume-100b-rf3", 9, 100, 250, goal=1.5, brokers=3),
    _row("consume-1kb-rf3", 9, 1000, 250, goal=1.5, brokers=3),
)
