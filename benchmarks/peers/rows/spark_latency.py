"""Benchmark 6: the time of one record from a topic through a Spark query into another topic.

The query has the default trigger. For both sides (the compared systems), confluent-kafka sends a
record, reads it from the output topic, and pauses for a random time; only the brokers and
connectors differ. ``records`` is the number of records of a run.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping

import confluent_kafka as ck

from peers.bench import Bench
from peers.figures import percentile
from peers.row import Goal, Measures, Row, Side, Variant
from peers.spark import Both
from peers.spark_session import ending
from peers.spark_variants import DEFAULTS, SOURCE, TUNED, variant

RECORDS = 100
"""Number of records of a run, so many that the p99 is not the slowest record."""
WARM_UP = 4
PAUSE_SECONDS_MAX = 0.1
"""Maximum pause between records, in seconds.

Pauses are random, so that records do not arrive in step with the query's triggers.
"""
WAIT_SECONDS = 60


class Probe:
    """Sends records, and waits for each in the query's output topic."""

    def __init__(self, address: str, source: str, target: str) -> None:
        self._source = source
        servers = {"bootstrap.servers": address}
        self._producer = ck.Producer({**servers, "linger.ms": 0, "acks": "all"})
        self._consumer = ck.Consumer(
            {**servers, "group.id": f"probe-{target}", "enable.auto.commit": False,
             "fetch.wait.max.ms": 100}
        )  # fmt: skip
        self._consumer.assign([ck.TopicPartition(target, 0, 0)])

    def turn_ms(self, value: bytes) -> float:
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
    sides = Both(bench, chosen)

    def run(name: str) -> Measures:
        servers, times = sides.servers[name], []
        with (
            servers.topic() as topic,
            servers.topic() as output,
            contextlib.closing(Probe(servers.bootstrap_servers, topic, output)) as probe,
        ):
            source, target = sides.source(name, topic), ending(servers, output)
            sides.spark.call("loop_start", source=source, target=target)
            for line in lines:
                times.append(probe.turn_ms(line))
                time.sleep(pauses.uniform(0, PAUSE_SECONDS_MAX))
            triggers = sides.spark.call("loop_stop")["triggers_ms"]
        return {
            "p50_ms": round(percentile(times[WARM_UP:], 50), 1),
            "p99_ms": round(percentile(times[WARM_UP:], 99), 1),
            "trigger_p50_ms": percentile(triggers[WARM_UP:], 50),
            "records": count,
        }

    yield sides.sides(run)


ROWS = (
    Row(
        "spark-latency",
        6,
        "one record through a Spark source and sink, time in to time out",
        goals=tuple(
            Goal(measure, limit, "less", name)
            for name, limit in ((DEFAULTS, 0.5), (TUNED, 1.2))
            for measure in ("p50_ms", "p99_ms")
        ),
        open=open_latency,
        variants=(variant(DEFAULTS), variant(TUNED, source=SOURCE)),
        bound="Spark's own trigger with a Python source and sink",
        quick=False,
        seconds_max=1200,
    ),
)
