"""Benchmark 16: the disk space of the same log lines in row batches and in column batches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

import confluent_kafka as ck
import pyarrow as pa

from broker_lite.bus import connect
from peers.bench import Bench
from peers.row import KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.servers import KafkaServers, LogbusServers

LINES = 60_000
FLUSH_SECONDS = 60
BATCH_RECORDS = 3000
COMPRESSIONS = ("none", "lz4", "zstd")


def write_rows(servers: LogbusServers | KafkaServers, lines: list[bytes], packed: str) -> float:
    """Write the lines to a new topic with confluent-kafka; return the size of its segments."""
    topic, before = servers.new_topic(), servers.stored_mb()
    producer = ck.Producer(
        {
            "bootstrap.servers": servers.bootstrap_servers,
            "compression.type": packed,
            # Wait for full batches, so that logbus and Kafka store equal batches regardless of
            # timing.
            "linger.ms": 10_000,
            "batch.num.messages": BATCH_RECORDS,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    now = int(time.time() * 1000)
    for line in lines:
        producer.produce(topic, line, timestamp=now)
    assert not producer.flush(FLUSH_SECONDS)
    stored = servers.stored_mb() - before
    return stored


def write_columns(servers: LogbusServers, lines: list[bytes], packed: str) -> float:
    """Write the lines to a new topic with ``send_arrow``; return the size of its segments."""
    topic, before = servers.new_topic(), servers.stored_mb()
    with (
        connect(servers.bootstrap_servers) as bus,
        bus.producer(compression=packed) as producer,
    ):
        producer.send_arrow(topic, pa.table({"value": pa.array(lines, pa.binary())})).result()
    return servers.stored_mb() - before


@contextlib.contextmanager
def open_sides(bench: Bench, variant: Variant) -> Iterator[Mapping[str, Side]]:
    lines = bench.lines.whole(bench.size(LINES))
    logbus, kafka = bench.logbus(), bench.kafka()
    text_mb = sum(map(len, lines)) / 1e6

    def run_logbus() -> Measures:
        return {
            "columns_mb": write_columns(logbus, lines, variant.name),
            "rows_mb": write_rows(logbus, lines, variant.name),
            "text_mb": text_mb,
        }

    def run_kafka() -> Measures:
        stored = write_rows(kafka, lines, variant.name)
        return {"columns_mb": stored, "rows_mb": stored, "text_mb": text_mb}

    yield {
        LOGBUS: Side(run_logbus, logbus.processes, logbus.settings),
        KAFKA: Side(run_kafka, kafka.processes, kafka.settings),
    }


def _variant(name: str) -> Variant:
    words = "send_arrow of one table (columns), confluent-kafka, batches of 3,000 records (rows)"
    return Variant(name, {"client": words}, {LOGBUS: name, KAFKA: name})


ROWS = (
    Row(
        "disk",
        16,
        "Bytes on disk of the same log lines, rows and columns",
        goals=(Goal("columns_mb", 1.0, "less"), Goal("rows_mb", 1.0, "less")),
        open=open_sides,
        variants=tuple(map(_variant, COMPRESSIONS)),
        note=(
            "size of the segment files; Kafka stores only rows, so both measures of logbus are "
            "compared with Kafka's rows"
        ),
        bound="rows are stored as they came, in the same bytes as Kafka stores",
    ),
)
