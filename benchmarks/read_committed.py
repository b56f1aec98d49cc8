"""Measure the cost of transactions for readers, and for a broker that writes markers.

    python benchmarks/read_committed.py [--transactions 1500] [--rounds 15]

One broker has two topics. ``plain`` has batches of 1,000 columnar rows of 100 bytes; ``marked`` has
the same rows, with each batch in its own transaction. A round reads each whole topic with both
isolation levels, in the reverse order of the round before, once by fetches and once from the
broker's files. ``ratio`` is the median of the rounds' ratios of read_committed to read_uncommitted.

``markers`` measures ten WriteTxnMarkers requests, sent one after another as a coordinator does.
Each request ends 200 transactions in 100 partitions. ``loop`` has the delays of the broker's event
loop in this time, which should stay below 5 ms.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from functools import partial
from typing import Any

import pyarrow as pa
from broker import loop_delays
from peers import figures
from peers.servers import LogbusServers

from broker_lite.bus import Bus
from broker_lite.client.administration import transactions
from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import CallExchange, Operation, Send
from broker_lite.local.broker import LocalBroker
from broker_lite.model import TopicPartition
from broker_lite.server.coordinators.transaction_markers import PARTITIONS_PER_CALL
from broker_lite.wire.calls.broker_transactions import (
    MarkedTopic,
    TransactionMarker,
    WriteTxnMarkersRequest,
)

ROWS = 1_000
VALUE_BYTES = 100
LEVELS = ("read_committed", "read_uncommitted")
PRODUCERS, PARTITIONS = 200, 100


def fill(bus: Bus, batches: int) -> None:
    """Write the same batches to the topics ``plain`` and ``marked``."""
    values = [os.urandom(VALUE_BYTES) for _ in range(ROWS)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    for topic in ("plain", "marked"):
        bus.create_topic(topic, 1)
    with bus.producer() as plain, bus.producer(transactional_id="bench") as marked:
        for _ in range(batches):
            plain.send_arrow("plain", table, partition=0)
            plain.flush()
            marked.begin()
            marked.send_arrow("marked", table, partition=0)
            marked.commit()


def rate(bus: Bus, topic: str, rows: int, **options: Any) -> float:
    """Read the whole topic once; return the rows per second."""
    with bus.consumer(topic, start="earliest", **options) as consumer:
        left = rows
        began = time.perf_counter()
        while left > 0:
            left -= consumer.poll_arrow(5.0).num_rows
        return rows / (time.perf_counter() - began)


def read(bus: Bus, rows: int, rounds: int) -> dict[str, Any]:
    """Return, by topic and kind of read, the median rate of read_committed and its ratio to that of
    read_uncommitted."""

    def run(case: tuple[str, bool, str]) -> float:
        topic, in_place, level = case
        return rate(bus, topic, rows, isolation_level=level, local_reads=in_place)

    kinds = list(itertools.product(("plain", "marked"), (False, True)))
    cases = [(*kind, level) for kind in kinds for level in LEVELS]
    found = figures.in_turns(cases, run, rounds)
    results: dict[str, Any] = {}
    for topic, in_place in kinds:
        committed, uncommitted = (found[topic, in_place, level] for level in LEVELS)
        results[f"{topic}_{'in_place' if in_place else 'fetched'}"] = {
            "rows_per_s": round(figures.median(committed)),
            "ratio": figures.ratio(committed, uncommitted, 3),
        }
    return results


def begin(bus: Bus, stack: contextlib.ExitStack) -> list[TransactionMarker]:
    """Open PRODUCERS transactions, each in all partitions; return the markers that will abort
    them."""
    bus.create_topic("markers", PARTITIONS)
    for number in range(PRODUCERS):
        producer = stack.enter_context(
            bus.producer(transactional_id=f"open-{number}", transaction_timeout_ms=900_000)
        )
        producer.begin()
        for partition in range(PARTITIONS):
            producer.send("markers", b"v", partition=partition)
        producer.flush()
    tps = [TopicPartition("markers", number) for number in range(PARTITIONS)]
    rows = bus.admin.run(transactions.open_in_logs, tps)
    assert len(rows) == PRODUCERS * PARTITIONS
    marked = (MarkedTopic("markers", tuple(range(PARTITIONS))),)
    return [
        TransactionMarker(producer_id, epoch, False, marked, 0, version=1)
        for producer_id, epoch in sorted({(row.producer_id, row.producer_epoch) for row in rows})
    ]


def write(markers: list[TransactionMarker], cluster: Cluster, deadline_ms: float) -> Operation[int]:
    """Send all markers in WriteTxnMarkers requests, as a coordinator does; return the number of
    refused markers."""
    yield from requests.refresh(cluster, ["markers"], deadline_ms)
    leader = cluster.view.leader(TopicPartition("markers", 0))
    assert leader is not None
    count = PARTITIONS_PER_CALL // PARTITIONS
    refused = 0
    for at in range(0, len(markers), count):
        request = WriteTxnMarkersRequest(tuple(markers[at : at + count]))
        answer = yield Send(leader, CallExchange(request))
        refused += sum(row.error_code != 0 for row in answer.rows)
    return refused


def end(bus: Bus, broker: LocalBroker) -> dict[str, Any]:
    """Measure the WriteTxnMarkers requests that end all open transactions; return the figures."""
    with contextlib.ExitStack() as stack:
        markers = begin(bus, stack)
        before = loop_delays(broker)
        began = time.perf_counter()
        refused = bus.admin.run(partial(write, markers))
        took = time.perf_counter() - began
        after = loop_delays(broker)
    assert refused == 0
    return {
        "markers": PRODUCERS * PARTITIONS,
        "took_ms": round(1000 * took),
        "loop": {name: round(after[name] - before[name], 1) for name in after},
    }


def measure(transactions: int = 1500, rounds: int = 15) -> dict[str, Any]:
    with LogbusServers(1, {"metrics.port": "0"}) as servers:
        fill(servers.bus, transactions)
        results = read(servers.bus, transactions * ROWS, rounds)
        results["markers"] = end(servers.bus, servers.cluster.brokers[0])
    return results


if __name__ == "__main__":
    figures.main(measure)
