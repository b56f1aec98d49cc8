"""Benchmarks 7 and 9: Kafka's own ProducerPerformance sends to the brokers of each side,
acks=all."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from peers import java_tools
from peers.bare import BareServer
from peers.bench import Bench
from peers.ceilings import without_servers
from peers.row import FLOOR, KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.servers import KafkaServers, LogbusServers

PARTITIONS = 4
PRODUCED_MB = 200
"""Total size of the records of the benchmark with 1 KB values."""
FLUSHED = f"{FLOOR}, flushed"
PAYLOADS_MB = 20
"""Size of the file of distinct values, from which the tool chooses at random."""

TUNED = {"batch.size": "262144", "linger.ms": "10", "buffer.memory": "67108864"}
FLUSH_NOTE = (
    "logbus flushes to disk before each acknowledgement, Kafka does not (its default: "
    "acknowledged from memory)"
)
BOUND = (
    "the tool itself, the same program on the same cores. *At most*: a Python server that answers "
    "at once and stores nothing (the side floor)"
)
REPLICATED_BOUND = (
    "the processor, which the tool and three brokers share. *At most*: the rate if logbus's "
    "servers took no processor time"
)


def _variant(name: str, client: Mapping[str, str], compression: str = "none") -> Variant:
    words = ", ".join(f"{key}={value}" for key, value in client.items()) or "its defaults"
    return Variant(
        name,
        settings={"client": f"ProducerPerformance, acks=all, {words}"},
        compression={LOGBUS: compression, KAFKA: compression},
    )


CLIENTS: Mapping[str, Mapping[str, str]] = {
    "defaults": {},
    "tuned": TUNED,
    "tuned, lz4": {**TUNED, "compression.type": "lz4"},
}
VARIANTS = tuple(
    _variant(name, client, client.get("compression.type", "none"))
    for name, client in CLIENTS.items()
)


def write_payloads(bench: Bench, path: Path, size: int) -> None:
    """Write a file of values of one size from real log lines, for ``--payload-file``."""
    values = bench.lines.sized(PAYLOADS_MB * 1_000_000 // size, size)
    path.write_bytes(b"\n".join(values) + b"\n")


@contextlib.contextmanager
def open_sides(
    bench: Bench, variant: Variant, *, size: int, megabytes: int, brokers: int
) -> Iterator[Mapping[str, Side]]:
    count = bench.size(megabytes * 1_000_000 // size)
    replicated = {"min.insync.replicas": "2"} if brokers > 1 else {}
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder:
        payloads = Path(folder) / "payloads"
        write_payloads(bench, payloads, size)

        def produce(servers: str, topic: str) -> Measures:
            return java_tools.produce(
                servers, topic, count=count, payloads=payloads, settings=CLIENTS[variant.name]
            )

        def run(servers: LogbusServers | KafkaServers) -> Measures:
            topic = servers.new_topic(PARTITIONS, brokers, config=replicated)
            try:
                return produce(servers.bootstrap_servers, topic)
            finally:
                servers.delete_topic(topic)

        logbus = bench.logbus(brokers)
        kafka = bench.kafka(brokers, tuned=variant.name != "defaults")
        sides = {
            LOGBUS: Side(partial(run, logbus), logbus.processes, logbus.settings),
            KAFKA: Side(partial(run, kafka), kafka.processes, kafka.settings),
        }
        with BareServer("silent") as silent, BareServer("flushed") as flushed:
            topics = map("bare-{}".format, itertools.count())

            def run_bare(server: BareServer) -> Measures:
                return produce(server.bootstrap_servers, next(topics))

            for name, bare in ((FLOOR, silent), (FLUSHED, flushed)):
                if brokers == 1:
                    sides[name] = Side(partial(run_bare, bare), bare.processes, bare.settings)
            yield sides


def _row(name: str, number: int, size: int, megabytes: int, *, brokers: int = 1) -> Row:
    copies = "RF 1" if brokers == 1 else "three brokers, RF 3, min.insync 2"
    count = megabytes * 1_000_000 // size
    # A ceiling assumes that the processor limits the rate; with one broker, flushes may limit it.
    more = {} if brokers == 1 else {"ceiling": partial(without_servers, count=count)}
    return Row(
        name,
        number,
        f"Kafka's ProducerPerformance, {size} B, {PARTITIONS} partitions, acks=all, {copies}",
        goals=(Goal("records_per_s", 1.5),),
        open=partial(open_sides, size=size, megabytes=megabytes, brokers=brokers),
        variants=VARIANTS,
        note=FLUSH_NOTE,
        bound=BOUND if brokers == 1 else REPLICATED_BOUND,
        quick=name == "produce-1kb",
        **more,
    )


ROWS = (
    _row("produce-100b", 7, 100, 100),
    _row("produce-1kb", 7, 1000, PRODUCED_MB),
    _row("produce-100b-rf3", 9, 100, 50, brokers=3),
    _row("produce-1kb-rf3", 9, 1000, 50, brokers=3),
)
