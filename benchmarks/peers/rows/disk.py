"""Benchmark 16: the disk space of the same log lines in row batches and in column batches.

The sizes are those of the segment files. Kafka stores only rows, so logbus's rows and its columns
are both compared with Kafka's rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

import pyarrow as pa

from peers.bench import Bench
from peers.row import KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.servers import LogbusServers, Servers, send_all

LINES = 60_000
COMPRESSIONS = ("none", "lz4", "zstd")


def write_rows(servers: Servers, lines: list[bytes], packed: str) -> float:
    """Write lines to a new topic with confluent-kafka (codec: ``packed``); return its MB."""
    topic, before = servers.new_topic(), servers.stored_mb()
    now = int(time.time() * 1000)
    sends = ({"topic": topic, "value": line, "timestamp": now} for line in lines)
    # Send only full batches, so that logbus and Kafka store equal batches regardless of timing.
    batches = {
        "linger_ms": 10_000,
        "batch_num_messages": 3000,
        "queue_buffering_max_messages": LINES,
    }
    send_all(servers.bootstrap_servers, sends, compression_type=packed, **batches)
    return servers.stored_mb() - before


def write_columns(servers: LogbusServers, lines: list[bytes], packed: str) -> float:
    """Write lines to a new topic with ``send_arrow`` (codec: ``packed``); return its MB."""
    topic, before = servers.new_topic(), servers.stored_mb()
    with servers.bus.producer(compression=packed) as producer:
        producer.send_arrow(topic, pa.table({"value": pa.array(lines, pa.binary())})).result()
    return servers.stored_mb() - before


@contextlib.contextmanager
def open_sides(bench: Bench, variant: Variant) -> Iterator[Mapping[str, Side]]:
    lines = bench.lines.whole(bench.size(LINES))

    def run_logbus(servers: LogbusServers) -> Measures:
        return {
            "columns_mb": write_columns(servers, lines, variant.name),
            "rows_mb": write_rows(servers, lines, variant.name),
        }

    def run_kafka(servers: Servers) -> Measures:
        return dict.fromkeys(("columns_mb", "rows_mb"), write_rows(servers, lines, variant.name))

    yield {
        LOGBUS: Side.of(bench.logbus(), run_logbus),
        KAFKA: Side.of(bench.kafka(), run_kafka),
    }


def _variant(name: str) -> Variant:
    clients = "send_arrow of one table (columns), confluent-kafka, batches of 3,000 records (rows)"
    return Variant(name, {"client": clients}, name)


ROWS = (
    Row(
        "disk",
        16,
        "Bytes on disk of the same log lines, rows and columns",
        goals=(Goal("columns_mb", 1.0, "less"), Goal("rows_mb", 1.0, "less")),
        open=open_sides,
        variants=tuple(map(_variant, COMPRESSIONS)),
        bound="rows are stored as they came, in the same bytes as Kafka stores",
    ),
)
