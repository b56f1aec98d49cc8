"""Measure how fast ``logbus mirror`` copies rows and columns to another cluster; print JSON.

    python benchmarks/mirror.py [--megabytes 500] [--rounds 3]

Two clusters of one broker each and the mirror share this machine. The topics have two partitions,
with uncompressed batches of 1 MB of 100-byte values. The mirror uses acks=all, and brokers flush
before they acknowledge. A round copies a filled topic once, and is timed from the first metadata
request until the last position is stored. ``_mb_per_s`` counts stored bytes. ``_cpu_s_per_gb`` is
the mirror's processor time. The figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.mirror.mirror import Mirror
from broker_lite.mirror.rewrite import RewrittenBatch
from broker_lite.mirror.target import MirrorTarget
from broker_lite.model import TopicPartition
from broker_lite.record.batch import read_header
from broker_lite.record.records import encode_entries

MB = 1_000_000
PARTITIONS = 2
VALUE_BYTES = 100
BATCH_ROWS = 9_000
"""Number of rows of a batch of about 1 MB."""
SETTINGS = {"retention.bytes": str(1 << 40), "max.message.bytes": str(4 << 20)}


def fill_rows(bus: Bus, topic: str, batches: int) -> int:
    """Produce ``batches`` batches to each partition; return the number of records."""
    value = os.urandom(VALUE_BYTES)
    batch = encode_entries([(None, value)] * BATCH_ROWS, 1_700_000_000_000)
    target = MirrorTarget(bus.bootstrap_servers, "fill")
    for partition in range(PARTITIONS):
        pieces = [
            RewrittenBatch(bytearray(batch), read_header(batch), ((0, BATCH_ROWS),))
            for _ in range(batches)
        ]
        target.write({TopicPartition(topic, partition): pieces}, lambda *_: None)
    target.close()
    return PARTITIONS * batches * BATCH_ROWS


def fill_columns(bus: Bus, topic: str, batches: int) -> int:
    values = pa.array([os.urandom(VALUE_BYTES) for _ in range(BATCH_ROWS)], pa.binary())
    table = pa.table({"value": values})
    with bus.producer() as producer:
        for n in range(PARTITIONS * batches):
            producer.send_arrow(topic, table, partition=n % PARTITIONS)
    return PARTITIONS * batches * BATCH_ROWS


def copy(source: Bus, target: Bus, topic: str, records: int) -> dict[str, float]:
    """Copy a topic once and delete the copy; return the figures."""
    stored = sum(
        size
        for row in source.admin.log_dirs()
        for tp, size in row.partitions.items()
        if tp.topic == topic
    )
    mirror = Mirror(
        source.bootstrap_servers, target.bootstrap_servers, topics=topic, tell=lambda _: None
    )
    began, cpu = time.perf_counter(), time.process_time()
    mirror.run(once=True, stop=threading.Event(), on_sync=lambda: None)
    spent, cpu = time.perf_counter() - began, time.process_time() - cpu
    copied = sum(each.copied for each in mirror.copies.values())
    assert copied == records, (copied, records)
    mirror.close()
    target.delete_topic(topic)
    target.delete_topic(mirror.name)
    return {
        "mb_per_s": stored / MB / spent,
        "records_per_s": records / spent,
        "cpu_s_per_gb": cpu / (stored / 1e9),
    }


def run(megabytes: int, rounds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(brokers=1, directory=Path(folder) / "source") as origin,
        LocalCluster(brokers=1, directory=Path(folder) / "target") as there,
        connect(origin.bootstrap_servers) as source,
        connect(there.bootstrap_servers) as target,
    ):
        counts = {}
        for topic, fill in (("rows", fill_rows), ("columns", fill_columns)):
            source.create_topic(topic, partitions=PARTITIONS, config=SETTINGS)
            counts[topic] = fill(source, topic, max(1, megabytes // PARTITIONS))
        taken: dict[str, list[dict[str, float]]] = {topic: [] for topic in counts}
        for _ in range(rounds):
            for topic, records in counts.items():
                taken[topic].append(copy(source, target, topic, records))
        for topic, found in taken.items():
            for name in found[0]:
                middle = statistics.median(each[name] for each in found)
                is_cpu = name.startswith("cpu")
                figures[f"{topic}_{name}"] = round(middle, 2) if is_cpu else round(middle)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="of each body")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    figures = run(arguments.megabytes, arguments.rounds)
    shown = {"benchmark": "mirror", "megabytes": arguments.megabytes, **figures}
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
