"""Exchange records between Spark and third-party clients as row batches and as columnar batches.

Spark reads the clients' row batches as columns. The clients read Spark's columnar batches as rows.
The tests use every codec, headers, nulls, and start offsets inside a batch.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.client_programs import GO_MODULES, Note
from support.client_rows import CODECS, ROWS, Aiokafka, KafkaPython, Librdkafka, Row, RowClient
from support.log_batches import iter_headers, segments_of
from support.program_rows import Console, GoProgram, Kafkajs, Kcat, Platformatic
from support.spark_queries import Queries

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]

NUMBERS = itertools.count()
COLUMN_CODECS = ("none", "lz4", "zstd")
BATCHES = 3
SCHEMA = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, "
    "timestamp timestamp, topic string, partition int, n int"
)


@pytest.fixture
def queries(spark: Any, bus: Bus, tmp_path: Path) -> Queries:
    return Queries(spark, bus, tmp_path)


@pytest.fixture(
    params=[
        Librdkafka.name,
        KafkaPython.name,
        Aiokafka.name,
        Kcat.name,
        *(pytest.param(name, marks=pytest.mark.compat) for name in GO_MODULES),
        pytest.param(Kafkajs.name, marks=pytest.mark.compat),
        pytest.param(Platformatic.name, marks=pytest.mark.compat),
        pytest.param(Console.name, marks=pytest.mark.compat),
    ]
)
def other(request: pytest.FixtureRequest, cluster: LocalCluster) -> RowClient:
    servers, fixture = cluster.bootstrap_servers, request.getfixturevalue
    make: dict[str, Callable[[], RowClient]] = {
        Librdkafka.name: lambda: Librdkafka(servers),
        KafkaPython.name: lambda: KafkaPython(servers),
        Aiokafka.name: lambda: Aiokafka(servers),
        Kcat.name: lambda: Kcat(servers, fixture("kcat")),
        Kafkajs.name: lambda: Kafkajs(servers, fixture("node_folder")),
        Platformatic.name: lambda: Platformatic(servers, fixture("node_folder")),
        Console.name: lambda: Console(servers, fixture("class_path")),
    }
    kind = request.param
    if kind in GO_MODULES:
        return GoProgram(servers, kind, fixture("go_program")(kind))
    return make[kind]()


def from_spark(found: Any) -> Row:
    headers = tuple((h.key, h.value) for h in found.headers or ())
    return Row(found.key, found.value, headers, found.ms)


def test_spark_reads_kafka_record_batches_of_other_clients(
    other: RowClient, queries: Queries, bus: Bus, answered: Note, versions: dict[str, str]
) -> None:
    written = other.writable(ROWS)
    number, timed = next(NUMBERS), written[0].timestamp_ms is not None
    topics = [f"rows-{os.getpid()}-{number}-{codec}" for codec in other.codecs]
    for topic, codec in zip(topics, other.codecs, strict=True):
        bus.create_topic(topic, partitions=1)
        other.write(topic, written, codec)

    def read(**bounds: str) -> dict[str, list[Row]]:
        frame = queries.read(subscribe=",".join(topics), includeHeaders="true", **bounds)
        rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("topic", "offset")
        found: dict[str, list[Row]] = {topic: [] for topic in topics}
        for row in rows.collect():
            kept = from_spark(row)
            found[row.topic].append(kept if timed else kept._replace(timestamp_ms=None))
        return found

    assert read() == dict.fromkeys(topics, written)
    # Start and end reading in the middle of a batch.
    first, end = 2, len(written) - 3
    cut = read(
        startingOffsets=json.dumps({topic: {"0": first} for topic in topics}),
        endingOffsets=json.dumps({topic: {"0": end} for topic in topics}),
    )
    assert cut == dict.fromkeys(topics, written[first:end])
    codecs = "every codec" if other.codecs == CODECS else ", ".join(other.codecs)
    answered(versions[other.name], f"its rows read by Spark as columns, {codecs}", "the same")


@pytest.fixture(scope="module")
def columns(spark: Any, cluster: LocalCluster) -> dict[str, str]:
    """Return a topic for each codec, to which Spark wrote ROWS as BATCHES columnar batches."""
    zero = datetime(1970, 1, 1, tzinfo=UTC)
    topics = {codec: f"columns-{os.getpid()}-{codec}" for codec in COLUMN_CODECS}
    with connect(cluster.bootstrap_servers) as bus:
        for codec, topic in topics.items():
            bus.create_topic(topic, partitions=1)
            made = [
                (row.key, row.value, list(row.headers) or None,
                 zero + timedelta(milliseconds=row.timestamp_ms or 0), topic, 0, n)
                for n, row in enumerate(ROWS)
            ]  # fmt: skip
            frame = spark.createDataFrame(made, SCHEMA).coalesce(1).sortWithinPartitions("n")
            writer = frame.drop("n").write.format("logbus").mode("append")
            writer = writer.option("bootstrap.servers", cluster.bootstrap_servers)
            writer = writer.option("compression.type", codec).option("useTimestampColumn", "true")
            for _ in range(BATCHES):
                writer.save()
            assert_batches_of_columns(cluster, bus.admin.cluster((topic,)).topic_id(topic))
    return topics


def assert_batches_of_columns(cluster: LocalCluster, topic_id: str) -> None:
    """Check that every replica's disk has columnar batches, which these tests need."""
    logs = segments_of(cluster.directory, topic_id)
    assert len(logs) == len(cluster.brokers)
    for log in logs:
        headers = [header for _, header in iter_headers(log.read_bytes())]
        assert [header.is_columns for header in headers] == [True] * BATCHES


def test_other_clients_read_arrow_batches_that_spark_wrote(
    other: RowClient, columns: dict[str, str], answered: Note, versions: dict[str, str]
) -> None:
    expected = [other.seen(row) for row in ROWS] * BATCHES
    for topic in columns.values():
        assert other.read(topic, 0, len(expected)) == expected
        # Read from the middle of the first batch into the next batch.
        first = len(ROWS) - 5
        assert other.read(topic, first, 20) == expected[first : first + 20]
    answered(
        versions[other.name], "columns written by Spark read as rows: none, lz4, zstd", "the same"
    )
