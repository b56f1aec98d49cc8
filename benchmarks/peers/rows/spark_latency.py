"""Benchmark 6: the time of one record from a topic through a Spark query into another topic.

Outside Spark, both sides (the compared systems) use confluent-kafka; only the brokers and
connectors differ.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from functools import partial

import confluent_kafka as ck
import numpy as np

from peers.bench import Bench
from peers.row import KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.spark import Both, both
from peers.spark_variants import DEFAULTS, TUNED, Options, variant

RECORDS = 100
"""Number of records of a run, so many that the p99 is not the slowest record."""
WARM_UP = 4
PAUSE_SECONDS_MAX = 0.1
"""Maximum pause between records, in seconds.

Pauses are random, so that records do not arrive in step with the query's triggers.
"""
WAIT_SECONDS = 60
SOURCE: Options = {LOGBUS: {}, KAFKA: {"kafka.fetch.max.wait.ms": "10"}}
"""Options of the Spark sources of both sides in the variant ``tuned``."""


class Probe:
    """Sends records, and waits for each in the query's output topic."""

    def __init__(self, address: str, source: str, target: str) -> None:
        self._source = source
        self._producer = ck.Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})
        self._consumer = ck.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"probe-{target}",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.assign([ck.TopicPartition(target, 0, 0)])

    def turn(self, value: bytes) -> float:
        """Send a record; return the milliseconds until it is in the output topic."""
        before = time.perf_counter()
        self._producer.produce(self._source, value, partition=0)
        self._producer.poll(0)
        while True:
            found = self._consumer.poll(WAIT_SECONDS)
            if found is None:
                raise RuntimeError(f"no record came back within {WAIT_SECONDS} s")
            if found.error() is None and found.value() == value:
                return (time.perf_counter() - before) * 1000

    def close(self) -> None:
        self._producer.flush(WAIT_SECONDS)
        self._consumer.close()


@contextlib.contextmanager
def open_latency(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    count = RECORDS if not bench.quick else RECORDS // 10
    lines = bench.lines.whole(count + WARM_UP)
    pauses = random.Random(1)
    options = SOURCE if chosen.name == TUNED else {LOGBUS: {}, KAFKA: {}}
    with both(bench, chosen) as sides:

        def run(name: str) -> Measures:
            times, triggers = _turns(sides, name, options[name], lines, pauses)
            return {
                "p50_ms": round(float(np.percentile(times, 50)), 1),
                "p99_ms": round(float(np.percentile(times, 99)), 1),
                "trigger_p50_ms": round(float(np.percentile(triggers, 50)), 1),
                "records": len(times),
            }

        yield {name: sides.side(name, partial(run, name)) for name in (LOGBUS, KAFKA)}


def _turns(
    sides: Both, name: str, options: Mapping[str, str], lines: list[bytes], pauses: random.Random
) -> tuple[list[float], list[float]]:
    servers = sides.servers[name]
    source, target = servers.new_topic(1), servers.new_topic(1)
    probe = Probe(servers.bootstrap_servers, source, target)
    try:
        sides.spark.call(
            "loop_start", source=sides.end(name, source, options), target=sides.end(name, target)
        )
        times = []
        for line in lines:
            times.append(probe.turn(line))
            time.sleep(pauses.uniform(0, PAUSE_SECONDS_MAX))
        triggers = sides.spark.call("loop_stop")["triggers_ms"]
    finally:
        probe.close()
        servers.delete_topic(source)
        servers.delete_topic(target)
    return times[WARM_UP:], triggers[WARM_UP:]


ROWS = (
    Row(
        "spark-latency",
        6,
        "one record through a Spark source and sink, time in to time out",
        goals=(
            Goal("p50_ms", 0.5, "less", "defaults"),
            Goal("p99_ms", 0.5, "less", "defaults"),
            Goal("p50_ms", 1.2, "less", "tuned"),
            Goal("p99_ms", 1.2, "less", "tuned"),
        ),
        open=open_latency,
        variants=(variant(DEFAULTS), variant(TUNED, source=SOURCE)),
        note="a query with the default trigger copies one topic to another; on both sides, "
        "confluent-kafka sends and receives, with random pauses. ``records`` is their number in a "
        "run; a variant without it has 20, and its p99 covers all runs together",
        bound="Spark's own trigger with a Python source and sink",
        quick=False,
        seconds_max=1200,
    ),
)
