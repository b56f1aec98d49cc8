"""Benchmarks 7 and 9: Kafka's own ProducerPerformance sends to the brokers of logbus and Kafka,
with acks=all."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from functools import partial

from peers import java_tools
from peers.bare import BareServer
from peers.bench import Bench
from peers.ceilings import without_servers
from peers.row import FLOOR, Goal, Measures, Row, Side, Variant, words
from peers.servers import Servers

PARTITIONS = 4
PRODUCED_MB = 200
"""Total size of the records of the benchmark with 1 KB values."""
FLUSHED = f"{FLOOR}, flushed"

TUNED = {"batch.size": "262144", "linger.ms": "10", "buffer.memory": "67108864"}
BOUND = (
    "the tool itself, the same program on the same cores. *At most*: a Python server that answers "
    "at once and stores nothing (the side floor)"
)
REPLICATED_BOUND = (
    "the processor, which the tool and three brokers share. *At most*: the rate if logbus's "
    "servers took no processor time"
)
CLIENTS: Mapping[str, Mapping[str, str]] = {
    "defaults": {},
    "tuned": TUNED,
    "tuned, lz4": {**TUNED, "compression.type": "lz4"},
}
VARIANTS = tuple(
    Variant(
        name,
        {"client": f"ProducerPerformance, acks=all, {words(client)}"},
        client.get("compression.type", "none"),
    )
    for name, client in CLIENTS.items()
)


@contextlib.contextmanager
def open_sides(
    bench: Bench, variant: Variant, *, size: int, megabytes: int, brokers: int
) -> Iterator[Mapping[str, Side]]:
    count = bench.size(megabytes * 1_000_000 // size)
    replicated = {"min_insync_replicas": "2"} if brokers > 1 else {}
    with (
        java_tools.payloads(bench, size) as payloads,
        BareServer("silent") as silent,
        BareServer("flushed") as flushed,
    ):

        def produce(servers: Servers | BareServer, topic: str) -> Measures:
            return java_tools.produce(
                servers, topic, count=count, payloads=payloads, settings=CLIENTS[variant.name]
            )

        def run(servers: Servers) -> Measures:
            with servers.topic(PARTITIONS, brokers, **replicated) as topic:
                return produce(servers, topic)

        both = bench.both(brokers, tuned=variant.name != "defaults")
        sides = {each.peer: Side.of(each, run) for each in both}
        topics = map("bare-{}".format, itertools.count())
        if brokers == 1:
            for name, bare in ((FLOOR, silent), (FLUSHED, flushed)):
                sides[name] = Side.of(bare, lambda bare: produce(bare, next(topics)))
        yield sides


def _row(name: str, number: int, size: int, megabytes: int, *, brokers: int = 1) -> Row:
    copies = "RF 1" if brokers == 1 else "three brokers, RF 3, min.insync 2"
    count = megabytes * 1_000_000 // size
    # The ceiling (the rate without servers) assumes that the processor limits the rate. With one
    # broker, flushes may limit it, so omit the ceiling.
    more = {} if brokers == 1 else {"ceiling": partial(without_servers, count=count)}
    return Row(
        name,
        number,
        f"Kafka's ProducerPerformance, {size} B, {PARTITIONS} partitions, acks=all, {copies}",
        goals=(Goal("records_per_s", 1.5),),
        open=partial(open_sides, size=size, megabytes=megabytes, brokers=brokers),
        variants=VARIANTS,
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
