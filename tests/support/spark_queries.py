"""Run reads, writes and streaming queries of Spark on the worker's cluster."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

from broker_lite.model import LATEST_TIMESTAMP
from support.log_batches import iter_headers, segments_of

_NUMBERS = itertools.count()


def records(bus: Any, *topics: str) -> list[Any]:
    """Return all records of the topics, in offset order within each partition."""
    found: list[Any] = []
    for topic in topics:
        places = bus.admin.cluster((topic,)).partitions_of(topic)
        listed = bus.admin.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP))
        ends = {place: row.offset for place, row in listed.items() if row.offset}
        if not ends:
            continue
        with bus.consumer(topic, start="earliest") as consumer:
            # Compare positions instead of counts, because transaction markers have offsets too.
            while any((consumer.position(place) or 0) < end for place, end in ends.items()):
                found += consumer.poll(0.2)
    return sorted(found, key=lambda r: (r.topic, r.partition, r.offset))


class Queries:
    """Creates DataFrames and streaming queries on a cluster, and reads their output."""

    def __init__(self, spark: Any, bus: Any, folder: Path) -> None:
        self.spark = spark
        self.bus = bus
        self.folder = folder
        self.running: list[Any] = []

    def topic(
        self, *counts: int, name: str | None = None, replicas: int = -1, **config: object
    ) -> str:
        """Create a topic with ``counts[p]`` records 0, 1, … in partition p; return its name."""
        name = name or f"s-{os.getpid()}-{next(_NUMBERS)}"
        self.bus.create_topic(
            name, partitions=len(counts), replication_factor=replicas, config=config
        )
        self.fill(name, *counts)
        return name

    def fill(self, topic: str, *counts: int, word: str = "") -> None:
        with self.bus.producer() as producer:
            for partition, count in enumerate(counts):
                for number in range(count):
                    producer.send(topic, f"{word}{number}".encode(), partition=partition)

    def _with(self, reader: Any, given: dict[str, Any]) -> Any:
        reader = reader.format("logbus").option("bootstrap.servers", self.bus.bootstrap_servers)
        for key, value in given.items():
            reader = reader.option(key, value)
        return reader

    def read(self, schema: str | None = None, **given: Any) -> Any:
        reader = self._with(self.spark.read, given)
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, schema: str | None = None, **given: Any) -> Any:
        given.setdefault("fetchOffset.retryIntervalMs", "100")
        reader = self._with(self.spark.readStream, given)
        return (reader.schema(schema) if schema else reader).load()

    def values(self, topic: str) -> list[str]:
        """Return a topic's values, sorted; read them without Spark, because tests poll often."""
        return sorted(record.value.decode() for record in records(self.bus, topic))

    def write(self, frame: Any, **given: Any) -> None:
        self._with(frame.write.mode("append"), given).save()

    def checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{next(_NUMBERS)}")

    def start(
        self,
        frame: Any,
        *,
        checkpoint: str | None = None,
        mode: str = "append",
        trigger: dict[str, Any] | None = None,
        each: Any = None,
        **given: Any,
    ) -> Any:
        """Start a streaming query that writes to a topic, or calls ``each`` for every batch."""
        writer = frame.writeStream.outputMode(mode)
        writer = writer.option("checkpointLocation", checkpoint or self.checkpoint())
        if trigger:
            writer = writer.trigger(**trigger)
        writer = self._with(writer, given) if each is None else writer.foreachBatch(each)
        self.running.append(writer.start())
        return self.running[-1]

    def stop(self) -> None:
        for query in self.running:
            query.stop()

    def committed(self, group: str) -> dict[str, int]:
        """Return the committed offsets of a group, by partition name such as topic-0."""
        return {str(tp): row.offset for tp, row in self.bus.admin.committed(group).items()}


def offsets(query: Any, source: int = 0) -> list[dict[str, Any]]:
    """Return the distinct end offsets of a query's batches, oldest first."""
    found = []
    for progress in query.recentProgress:
        end = json.loads(progress.json)["sources"][source]["endOffset"]
        if end and end not in found:
            found.append(end)
    return found


def damage_second_of_three(bus: Any, cluster: Any, topic: str) -> range:
    """Write three batches of ten records to partition 0; flip a byte of the second batch on disk.

    Return the offsets of the corrupt batch.
    """
    with bus.producer() as producer:
        for number in range(3):
            for value in range(10):
                producer.send(topic, f"{number}-{value}".encode(), partition=0)
            producer.flush()
    topic_id = bus.admin.cluster((topic,)).topic_id(topic)
    [log] = segments_of(cluster.directory, topic_id)
    data = log.read_bytes()
    position, header = next(
        (at, h) for at, h in iter_headers(data) if h.base_offset <= 10 < h.next_offset
    )
    last = position + header.size_bytes - 1
    with log.open("r+b") as file:
        file.seek(last)
        file.write(bytes([data[last] ^ 0xFF]))
    return range(header.base_offset, header.next_offset)
