"""Benchmarks 8 and 9: Kafka's own ConsumerPerformance reads from the brokers of logbus and Kafka.

The rate covers fetching only, not the time until the group has assigned the partitions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial

from peers import java_tools
from peers.bench import Bench
from peers.ceilings import without_servers
from peers.row import Goal, Measures, Row, Side, Variant, words
from peers.rows.produce import PARTITIONS, TUNED
from peers.servers import Servers

TUNED_READING = {"max.partition.fetch.bytes": "8388608", "max.poll.records": "5000"}
"""Settings of a Kafka consumer for high throughput: larger responses, more records for each
poll."""
BOUND = (
    "the tool itself, the same program on the same cores. *At most*: the rate if logbus's servers "
    "took no processor time"
)


def _variant(name: str, settings: Mapping[str, str], compression: str) -> Variant:
    client = f"ConsumerPerformance, {words(settings)}; ProducerPerformance wrote both logs, as rows"
    return Variant(name, {"client": client}, compression)


@contextlib.contextmanager
def open_sides(
    bench: Bench, variant: Variant, *, size: int, megabytes: int, brokers: int
) -> Iterator[Mapping[str, Side]]:
    count = bench.size(megabytes * 1_000_000 // size)
    is_tuned = variant.name == "tuned"
    writing = {**TUNED, "compression.type": variant.compression}
    topics: dict[Servers, str] = {}

    def run(servers: Servers) -> Measures:
        settings = TUNED_READING if is_tuned else {}
        return java_tools.consume(servers, topics[servers], count=count, settings=settings)

    with java_tools.payloads(bench, size) as payloads, contextlib.ExitStack() as stack:
        for each in bench.both(brokers, tuned=is_tuned):
            topics[each] = stack.enter_context(each.topic(PARTITIONS, brokers))
            java_tools.produce(each, topics[each], count=count, payloads=payloads, settings=writing)
        yield {each.peer: Side.of(each, run) for each in topics}


def _row(
    name: str, number: int, size: int, megabytes: int, *, goal: float, brokers: int = 1
) -> Row:
    copies = "RF 1" if brokers == 1 else "three brokers, RF 3"
    return Row(
        name,
        number,
        f"Kafka's ConsumerPerformance, {size} B, {PARTITIONS} partitions, {copies}",
        goals=(Goal("records_per_s", goal),),
        open=partial(open_sides, size=size, megabytes=megabytes, brokers=brokers),
        variants=(
            _variant("defaults", {}, "none"),
            _variant("lz4", {}, "lz4"),
            _variant("tuned", TUNED_READING, "none"),
        ),
        bound=BOUND,
        ceiling=partial(without_servers, count=megabytes * 1_000_000 // size),
        quick=name == "consume-100b",
    )


ROWS = (
    _row("consume-100b", 8, 100, 250, goal=1.1),
    _row("consume-1kb", 8, 1000, 400, goal=1.1),
    _row("consume-100b-rf3", 9, 100, 250, goal=1.5, brokers=3),
    _row("consume-1kb-rf3", 9, 1000, 250, goal=1.5, brokers=3),
)
