"""The parts that all Spark benchmarks share.

``Both`` fills a topic of each side with the same lines, once for all benchmarks that need the
lines, and checks that the topics are equal. Spark reads its input from Parquet files, which costs
little compared with either sink.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pyarrow as pa
import pyarrow.parquet as pq

from peers.bench import Bench
from peers.row import FLOOR, KAFKA, LOGBUS, Measures, Side, Variant
from peers.servers import KafkaServers, LogbusServers
from peers.spark_session import SparkHost
from peers.spark_variants import is_advised

ALL = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
PARTITIONS = 4
LINES = 1_200_000
"""Number of lines of a topic to read, about 300 MB."""
FLOOR_BATCH_ROWS = 5_000
NOTHING: Mapping[str, str] = {}

Servers = LogbusServers | KafkaServers
Ending = dict[str, Any]
"""A ``spark_host.End`` as a JSON object."""

_filled: weakref.WeakKeyDictionary[Servers, dict[tuple[str, int], str]] = (
    weakref.WeakKeyDictionary()
)
"""The filled topics of each set of servers, which later benchmarks reuse."""
_agreed: weakref.WeakKeyDictionary[SparkHost, set[tuple[str, ...]]] = weakref.WeakKeyDictionary()
"""The topics, one of each side, that each Spark session has already found equal."""
_parquet: dict[tuple[int, str], Path] = {}


class Both:
    """The servers of both sides (the compared systems) and one Spark session."""

    def __init__(self, bench: Bench, chosen: Variant) -> None:
        self.bench = bench
        self.servers: dict[str, Servers] = {LOGBUS: bench.logbus(), KAFKA: bench.kafka()}
        self.spark: SparkHost = bench.spark(is_advised(chosen))
        self._consumers: dict[str, ck.Consumer] = {}

    def side(self, name: str, run: Callable[[], Measures]) -> Side:
        """Return a side (a compared system) that does the work ``run``. The cost of the processes
        of its servers and of Spark is measured."""
        servers = self.servers[name]
        return Side(
            run, lambda: {**servers.processes(), **self.spark.processes()}, servers.settings
        )

    def floor(self, count: int, call: str, **arguments: Any) -> dict[str, Side]:
        """Return the side FLOOR: the same call of Spark with a source and a sink that cost
        nothing."""

        def run() -> Measures:
            return rate(count, self.spark.call(call, **arguments)["seconds"])

        words = "a Python source that has its rows ready, a sink that drops them; no broker"
        return {FLOOR: Side(run, self.spark.processes, words)}

    def ready(self, count: int) -> Ending:
        """Return the source of the side FLOOR: ``count`` rows from memory, each as long as the mean
        line of the input."""
        size = round(sum(map(len, self.bench.lines.whole(10_000))) / 10_000)
        rows = {"rows": str(count), "batchrows": str(min(FLOOR_BATCH_ROWS, count // PARTITIONS))}
        options = {**rows, "tasks": str(PARTITIONS), "valuebytes": str(size)}
        return {"side": FLOOR, "address": "", "topic": "", "options": options}

    def dropped(self) -> Ending:
        """Return the sink of the side FLOOR, which drops all rows."""
        return {"side": FLOOR, "address": "", "topic": "", "options": {}}

    def end(self, name: str, topic: str, options: Mapping[str, str] = NOTHING) -> Ending:
        """Return a topic on the cluster of side ``name``, as a ``source`` or ``target`` of
        ``spark_host.Host``."""
        address = self.servers[name].bootstrap_servers
        return {"side": name, "address": address, "topic": topic, "options": dict(options)}

    def lines(self, count: int) -> Path:
        """Return a folder with ``count`` of the benchmark's input lines in several Parquet files,
        so that Spark reads them in parallel tasks."""
        key = (count, self.bench.lines.source)
        if key not in _parquet:
            folder = Path(self.bench.folder()) / f"lines-{count}"
            folder.mkdir()
            text = self.bench.lines.array(count).cast(pa.large_binary())
            step = -(-count // PARTITIONS)
            for number in range(PARTITIONS):
                part = text.slice(number * step, step).cast(pa.large_string())
                pq.write_table(
                    pa.table({"value": part}),
                    folder / f"{number}.parquet",
                    compression="none",
                    use_dictionary=False,
                )
            _parquet[key] = folder
        return _parquet[key]

    def filled(self, count: int, compression: str = "none", by: str = "spark") -> dict[str, str]:
        """Fill a topic of each side with ``count`` lines; compare both topics; return their names.

        With ``by="spark"``, Spark writes each topic with its side's sink. With ``by="client"``, one
        Kafka client writes both topics.
        """
        topics = {}
        for name, servers in self.servers.items():
            kept = _filled.setdefault(servers, {})
            key = (f"{compression} {by}", count)
            if key not in kept:
                kept[key] = self._fill(name, count, compression, by)
            topics[name] = kept[key]
        # Compare the topics of both systems once in each Spark session, because later benchmarks
        # reuse them.
        agreed = _agreed.setdefault(self.spark, set())
        both = tuple(
            end["address"] + end["topic"] for end in map(self.end, topics, topics.values())
        )
        if both not in agreed:
            self._must_agree(topics, count)
            agreed.add(both)
        return topics

    def _fill(self, name: str, count: int, compression: str, by: str) -> str:
        topic = self.servers[name].new_topic(PARTITIONS)
        if by == "client":
            self._produce(name, topic, count, compression)
        else:
            target = self.end(name, topic, {"kafka.compression.type": compression})
            self.spark.call("write", folder=str(self.lines(count)), target=target)
        return topic

    def _produce(self, name: str, topic: str, count: int, compression: str) -> None:
        producer = ck.Producer(
            {
                "bootstrap.servers": self.servers[name].bootstrap_servers,
                "acks": "all",
                "linger.ms": 20,
                "batch.size": 262_144,
                "compression.type": compression,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        for number, line in enumerate(self.bench.lines.whole(count)):
            while True:
                try:
                    producer.produce(topic, line, partition=number // 1000 % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    def _must_agree(self, topics: Mapping[str, str], count: int) -> None:
        values = {
            name: self.spark.call("aggregate", source=self.end(name, topic))
            for name, topic in topics.items()
        }
        must_agree({name: each["result"] for name, each in values.items()})
        columns = must_agree(
            {
                name: self.spark.call("columns_seen", source=self.end(name, topic))["result"]
                for name, topic in topics.items()
            }
        )
        if columns != [count, 0, count, 1, count, count, 0]:
            raise RuntimeError(f"{count} lines were written, but the columns are {columns}")

    def count(self, name: str, topic: str) -> int:
        """Return the number of records of a topic, from its end offsets.

        The same client asks the brokers of both sides.
        """
        consumer = self._consumers.get(name)
        if consumer is None:
            consumer = self._consumers[name] = ck.Consumer(
                {"bootstrap.servers": self.servers[name].bootstrap_servers, "group.id": "count"}
            )
        return sum(
            consumer.get_watermark_offsets(ck.TopicPartition(topic, number), timeout=30)[1]
            for number in range(PARTITIONS)
        )

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers = {}


@contextlib.contextmanager
def both(bench: Bench, chosen: Variant) -> Iterator[Both]:
    found = Both(bench, chosen)
    try:
        yield found
    finally:
        found.close()


def must_agree(found: Mapping[str, object]) -> object:
    """Return the result that every side (compared system) returned. Raise RuntimeError if the
    results differ."""
    if len({json.dumps(value) for value in found.values()}) != 1:
        raise RuntimeError(f"the compared systems returned different results: {found}")
    return next(iter(found.values()))


def must_be(expected: int, found: int, what: str) -> None:
    """Raise RuntimeError if a run did not process this number of rows."""
    if expected != found:
        raise RuntimeError(f"{what}: {found} rows instead of {expected}")


def rate(count: int, seconds: float) -> Measures:
    return {"rows_per_s": round(count / seconds), "run_s": round(seconds, 3)}
