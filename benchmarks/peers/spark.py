"""The parts that all Spark benchmarks share.

``Both`` fills a topic of logbus and one of Kafka with the same lines, once for all benchmarks that
need the lines, and checks that the topics are equal. Spark reads its input from Parquet files,
which costs little compared with either sink.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pyarrow as pa
import pyarrow.parquet as pq

from peers.bench import Bench
from peers.row import FLOOR, Measures, Side, Variant
from peers.servers import Servers, send_all
from peers.spark_session import SparkHost, ending
from peers.spark_variants import is_advised, reading, writing

ALL = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
PARTITIONS = 4
LINES = 1_200_000
"""Number of lines of a topic to read, about 300 MB."""
FLOOR_BATCH_ROWS = 5_000

_filled: dict[tuple[object, ...], dict[str, str]] = {}
"""The topics filled so far, by servers and content. Later benchmarks reuse the topics."""
_parquet: dict[tuple[int, str], Path] = {}


class Both:
    """The servers of both sides (the compared systems) and one Spark session."""

    def __init__(self, bench: Bench, chosen: Variant) -> None:
        self.bench = bench
        self.chosen = chosen
        self.servers: dict[str, Servers] = {each.peer: each for each in bench.both()}
        self.spark: SparkHost = bench.spark(is_advised(chosen))

    def sides(self, run: Callable[[str], Measures]) -> dict[str, Side]:
        """Return the sides (the compared systems) by name. ``run(name)`` does the work of a side.
        Processor time and memory are measured of the side's servers and of Spark."""

        def side(name: str, servers: Servers) -> Side:
            def roles() -> dict[str, list[int]]:
                return {**servers.processes(), **self.spark.processes()}

            return Side(partial(run, name), roles, servers.settings)

        return {name: side(name, servers) for name, servers in self.servers.items()}

    def floor(self, count: int, call: str, **arguments: Any) -> dict[str, Side]:
        """Return FLOOR, the side without a broker: Spark runs ``call`` with a source and a sink
        that cost nothing."""

        def run() -> Measures:
            return rate(count, self.spark.call(call, **arguments)["seconds"])

        words = "a Python source that has its rows ready, a sink that drops them; no broker"
        return {FLOOR: Side(run, self.spark.processes, words)}

    def ready(self, count: int) -> dict[str, Any]:
        """Return the source of FLOOR, the side without a broker: ``count`` rows from memory, each
        as long as an average line of the input."""
        size = round(sum(map(len, self.bench.lines.whole(10_000))) / 10_000)
        rows = {"rows": str(count), "batchrows": str(min(FLOOR_BATCH_ROWS, count // PARTITIONS))}
        return ending(FLOOR, **rows, tasks=str(PARTITIONS), valuebytes=str(size))

    def source(self, name: str, topic: str) -> dict[str, Any]:
        """Return ``topic`` of the compared system ``name`` as Spark's source, with options."""
        return ending(self.servers[name], topic, **reading(self.chosen, name))

    def target(self, name: str, topic: str) -> dict[str, Any]:
        """Return ``topic`` of the compared system ``name`` as its sink's target, with options."""
        return ending(self.servers[name], topic, **writing(self.chosen, name))

    def lines(self, count: int) -> Path:
        """Return a folder with ``count`` of the benchmark's input lines in several Parquet files,
        so that Spark reads them in parallel tasks."""
        key = (count, self.bench.lines.source)
        if key not in _parquet:
            _parquet[key] = Path(self.bench.folder()) / f"lines-{count}"
            write_parquet(_parquet[key], self.bench.lines.whole(count))
        return _parquet[key]

    def filled(self, count: int, by: str = "spark") -> dict[str, str]:
        """Fill a topic of each side with ``count`` lines; compare both topics; return their names.

        With ``by="spark"``, Spark writes each topic with its side's sink. With ``by="client"``, one
        Kafka client writes both topics.
        """
        key = (*self.servers.values(), count, self.chosen.compression, by)
        if key not in _filled:
            topics = {
                name: self._fill(servers, count, by) for name, servers in self.servers.items()
            }
            ends = {name: ending(self.servers[name], topic) for name, topic in topics.items()}
            read = {name: self.spark.call("aggregate", source=end) for name, end in ends.items()}
            must_agree({name: each["result"] for name, each in read.items()})
            _filled[key] = topics
        return _filled[key]

    def _fill(self, servers: Servers, count: int, by: str) -> str:
        topic, packed = servers.new_topic(PARTITIONS), self.chosen.compression
        if by == "spark":
            target = ending(servers, topic, **{"kafka.compression.type": packed})
            self.spark.call("write", folder=str(self.lines(count)), target=target)
            return topic
        sends = (
            {"topic": topic, "value": value, "partition": number // 1000 % PARTITIONS}
            for number, value in enumerate(self.bench.lines.whole(count))
        )
        batches = {"linger_ms": 20, "batch_size": 262_144, "compression_type": packed}
        send_all(
            servers.bootstrap_servers, sends, **batches, queue_buffering_max_messages=1_000_000
        )
        return topic

    def count(self, name: str, topic: str) -> int:
        """Return the number of records of a topic, from its end offsets.

        The client is confluent-kafka for both sides.
        """
        asks = {"bootstrap.servers": self.servers[name].bootstrap_servers, "group.id": "count"}
        with contextlib.closing(ck.Consumer(asks)) as consumer:
            tps = [ck.TopicPartition(topic, number) for number in range(PARTITIONS)]
            return sum(consumer.get_watermark_offsets(tp, timeout=30)[1] for tp in tps)


def write_parquet(folder: Path, lines: list[bytes]) -> None:
    """Write the lines to PARTITIONS files of a new folder."""
    folder.mkdir()
    step = -(-len(lines) // PARTITIONS)
    for number in range(PARTITIONS):
        part = pa.array(lines[number * step : (number + 1) * step], pa.binary())
        table, path = pa.table({"value": part}), folder / f"{number}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False)


def must_agree(found: Mapping[str, object]) -> None:
    """Raise RuntimeError if the sides (compared systems) returned different results."""
    if len({json.dumps(value) for value in found.values()}) != 1:
        raise RuntimeError(f"the compared systems returned different results: {found}")


def must_be(expected: int, found: int, what: str) -> None:
    """Raise RuntimeError if a run did not process this number of rows."""
    if expected != found:
        raise RuntimeError(f"{what}: {found} rows instead of {expected}")


def rate(count: int, seconds: float) -> Measures:
    return {"rows_per_s": round(count / seconds), "run_s": round(seconds, 3)}
