"""Measure one broker: small produces, 1 MB batches flushed before the ack, fetches by sendfile.

    python benchmarks/broker.py [--seconds 3]

The script starts ZooKeeper and one broker, and prints one JSON object. It sends prepared requests
over plain sockets, so that the load itself costs little. ``cpu_us`` is the processor time in us
that all threads of the broker use for a request. ``loop`` has the delays of the broker's event
loop, which should stay below 5 ms under the whole load.

``scrapes_N_partitions``: the time from a small request to its answer, one request a millisecond, on
a broker that leads N partitions: at ``rest``, and while another process requests ``/metrics``
without a pause (``scraped``). The p99 should rise by at most 1 ms.

``metrics_us_a_request``: the processor time that the metrics of one small produce request take.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from peers import figures
from peers.meter import CpuUse, resident_mb
from peers.servers import LogbusServers, dotted

from broker_lite.local.broker import LocalBroker
from broker_lite.record import arrow
from broker_lite.record.records import encode_entries
from broker_lite.server.metrics import Metrics
from broker_lite.wire import fetch, produce

READ_BYTES = 1 << 20
PING_S = 0.001
SCRAPED_PARTITIONS = (1000, 2000, 6000)
TOPIC_PARTITIONS = 1000
"""Partitions of each topic of a broker with many partitions."""
ROUNDS = 3
SCRAPER = """
import sys, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1], timeout=10).read()
    print(end=".", flush=True)
"""
"""A program that requests a URL without a pause, and prints a dot for each answer."""
SMALL = "produce_100B_16_connections_8_deep"
PARTITIONS = 4
LOOPS = 10_000


class Load:
    """A load that keeps ``depth`` copies of one request in flight on each of several sockets."""

    def __init__(self, address: tuple[str, int], request: bytes, connections: int, depth: int):
        self._request = request
        self._depth = depth
        self._selector = selectors.DefaultSelector()
        self._buffer = bytearray(READ_BYTES)
        self.answers = self.received = 0
        self._left: dict[socket.socket, tuple[int, bytes]] = {}
        self._sockets = []
        for _ in range(connections):
            sock = socket.create_connection(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(sock)
            self._left[sock] = (0, b"")
            self._selector.register(sock, selectors.EVENT_READ)

    def run(self, seconds: float) -> float:
        """Send requests for about ``seconds``; return the exact duration."""
        for sock in self._sockets:
            sock.sendall(self._request * self._depth)
        self.answers = self.received = 0
        began = time.perf_counter()
        until = began + seconds
        while time.perf_counter() < until:
            for key, _ in self._selector.select():
                self._more(key.fileobj)
        took = time.perf_counter() - began
        for sock in self._sockets:
            sock.close()
        return took

    def _more(self, sock: Any) -> None:
        count = sock.recv_into(self._buffer)
        self.received += count
        data = memoryview(self._buffer)[:count]
        left, head = self._left[sock]
        done = position = 0
        while True:
            if left > len(data) - position:
                left -= len(data) - position
                break
            position += left
            done += left > 0
            left = 0
            need = 4 - len(head)
            head += bytes(data[position : position + need])
            position += need
            if len(head) < 4:
                break
            left, head = struct.unpack(">i", head)[0], b""
        self._left[sock] = (left, head)
        if done:
            self.answers += done
            sock.sendall(self._request * done)


def produce_request(topic_id: str, batch: bytes | memoryview, partitions: int = 1) -> bytes:
    """Return a produce request with the same batch for each partition."""
    rows = [produce.PartitionRecords(number, batch) for number in range(partitions)]
    parts = produce.encode_request(
        [produce.TopicRecords("", topic_id, rows)],
        acks=-1,
        timeout_ms=30_000,
        correlation_id=1,
        client_id="bench",
    )
    return b"".join(bytes(part) for part in parts)


RAW, ROWS = (fetch.FLAG_CHECKS_CRC, 1), (0, 0)
"""Fetch flags, and newest format version of column batches that the client decodes, of two clients:
``RAW`` receives batches as they are stored, ``ROWS`` decodes only rows."""


def fetch_request(
    topic_id: str, size: int, *, reader: tuple[int, int] = RAW, offset: int = 0
) -> bytes:
    row = fetch.FetchPartition(0, offset, size)
    request = fetch.FetchRequest(
        [fetch.FetchTopic("", topic_id, [row])],
        max_wait_ms=500,
        max_bytes=size,
        columns_body_version=reader[1],
        flags=reader[0],
    )
    return bytes(fetch.encode_request(request, correlation_id=1, client_id="bench"))


def columns_batch(size: int, value_bytes: int = 200) -> memoryview:
    count = size // (value_bytes + 4)
    values = pa.array([os.urandom(value_bytes) for _ in range(count)], pa.binary())
    return arrow.encode(arrow.Columns(count, None, values, None, None), timestamp_ms=1)


def metrics_url(broker: LocalBroker) -> str:
    return f"http://127.0.0.1:{broker.metrics_port}/metrics"


def metrics(broker: LocalBroker) -> dict[str, str]:
    """Return the values of the broker's series."""
    with urllib.request.urlopen(metrics_url(broker), timeout=10) as answer:
        return dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines())


def loop_delays(broker: LocalBroker) -> dict[str, float]:
    """Return the delays of the broker's event loop since the broker started."""
    rows = metrics(broker)
    return {
        "samples": float(rows["logbus_loop_delay_seconds_count"]),
        "over_5_ms": float(rows["logbus_loop_rule_violations_total"]),
        "delay_ms": 1000 * float(rows["logbus_loop_delay_seconds_sum"]),
    }


def answer_times(address: tuple[str, int], request: bytes, seconds: float) -> list[float]:
    """Send one request after the other, with a pause of ``PING_S``; return the times in ms until
    their answers."""
    took = []
    with socket.create_connection(address) as sock, sock.makefile("rb") as answers:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            sock.sendall(request)
            answers.read(struct.unpack(">i", answers.read(4))[0])
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(PING_S)
    return took


class Bench:
    """One broker under load; ``results`` holds the figures of each measured case."""

    def __init__(self, servers: LogbusServers, seconds: float) -> None:
        self._bus = servers.bus
        self._broker = servers.cluster.brokers[0]
        self._seconds = seconds
        self.results: dict[str, dict[str, float]] = {}

    def topic(self, name: str, partitions: int = 1) -> str:
        """Create a topic; return its id once its leader accepts produce requests."""
        topic_id = self._bus.create_topic(name, partitions, 1)
        time.sleep(0.2)
        return topic_id

    def measure(self, name: str, request: bytes, connections: int, depth: int, size: int) -> None:
        """Measure one case: ``depth`` copies of a request in flight on each connection. ``size`` is
        the payload of a request in bytes.

        If ``size`` is 0, the throughput counts the bytes of the responses.
        """
        load = Load(("127.0.0.1", self._broker.port), request, connections, depth)
        with CpuUse({"broker": [self._broker.pid]}) as use:
            took = load.run(self._seconds)
        cpu, answers = use.seconds["broker"], max(load.answers, 1)
        moved = size * answers if size else load.received
        self.results[name] = {
            "requests_per_s": round(load.answers / took),
            "mb_per_s": round(moved / took / 1e6, 1),
            "cpu_us": round(cpu / answers * 1e6, 1),
            "broker_cores": round(cpu / took, 2),
        }

    def small_produces(self) -> None:
        """Measure requests of one record of 100 B, one at a time and many in flight."""
        small = bytes(encode_entries([(None, bytes(100))], 1))
        request = produce_request(self.topic("small"), small)
        self.measure("produce_100B_1_connection_1_deep", request, 1, 1, len(small))
        self.measure(SMALL, request, 16, 8, len(small))

    def scrapes(self, partitions: int) -> dict[str, Any]:
        """Measure the answer times of a small request without and with requests for metrics."""
        for number in range(partitions // TOPIC_PARTITIONS):
            topic_id = self.topic(f"many-{number}", TOPIC_PARTITIONS)
        leaders = 'logbus_partitions{role="leader"}'
        while float(metrics(self._broker)[leaders]) < partitions:
            time.sleep(0.1)
        # The fetch of an empty partition would wait for its first record.
        with self._bus.producer() as producer:
            producer.send(f"many-{number}", b"x", partition=0).result()
        request = fetch_request(topic_id, 1, reader=(fetch.FLAG_ENDS_ONLY, 1))
        pinged = ("127.0.0.1", self._broker.port), request, self._seconds
        scrapes = 0

        def run(case: str) -> list[float]:
            nonlocal scrapes
            if case == "rest":
                return answer_times(*pinged)
            command = [sys.executable, "-c", SCRAPER, metrics_url(self._broker)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as scraper:
                try:
                    assert scraper.stdout is not None
                    scraper.stdout.read(1)  # Wait for the first answer.
                    took = answer_times(*pinged)
                    assert scraper.poll() is None, "a request for /metrics failed"
                finally:
                    scraper.kill()
                scrapes = len(scraper.communicate()[0])
            return took

        found = figures.in_turns(("rest", "scraped"), run, ROUNDS)
        spread = {
            case: figures.spread_ms([ms for took in rounds for ms in took], 2)
            for case, rounds in found.items()
        }
        return spread | {"scrapes_per_s": round(scrapes / self._seconds, 1)}

    def rss_mb(self) -> float:
        return round(resident_mb(self._broker.pid), 1)

    def loop(self) -> dict[str, int]:
        """Return how many delays of the broker's event loop were measured, and how many exceeded
        5 ms."""
        return {name: int(loop_delays(self._broker)[name]) for name in ("samples", "over_5_ms")}


def metrics_us() -> float:
    """Return the processor time in us of the operations on metrics that a broker does for one
    produce request with a single batch, less that of the loop around them."""
    found = Metrics()
    requests, traffic = found.counter("requests", "produce"), found.traffic("t")
    duration = found.histogram("request_duration_seconds", "produce")

    def count() -> None:
        for _ in range(LOOPS):
            requests.n += 1
            traffic.received_records.n += 1
            traffic.received_bytes.n += 100
            duration.observe(0.0015)

    def loop() -> None:
        for _ in range(LOOPS):
            pass

    took_s = figures.shortest(count, 1.0) - figures.shortest(loop, 0.2)
    return round(took_s / LOOPS * 1e6, 2)


@contextlib.contextmanager
def one_broker(seconds: float, **config: str) -> Iterator[Bench]:
    """Start a broker with these settings, in which "_" stands for "."."""
    with LogbusServers(1, dotted(config)) as servers:
        yield Bench(servers, seconds)


def measure(seconds: float = 3.0) -> dict[str, Any]:
    big = columns_batch(1 << 20)
    with one_broker(seconds, metrics_port="0") as bench:
        idle = bench.rss_mb()
        bench.small_produces()
        # With default settings, a Kafka producer that has many records to send fills batches of 16
        # kB.
        batch = bytes(encode_entries([(None, os.urandom(1000)) for _ in range(16)], 1))
        request = produce_request(bench.topic("kafka", PARTITIONS), batch, PARTITIONS)
        size = PARTITIONS * len(batch)
        bench.measure("produce_4_of_16kB_1_connection_5_deep", request, 1, 5, size)
        topic_id = bench.topic("big")
        request = produce_request(topic_id, big)
        bench.measure("produce_1MB_1_connection_5_deep", request, 1, 5, len(big))
        request = fetch_request(topic_id, 8 << 20)
        bench.measure("fetch_8MB_sendfile", request, 1, 2, 0)
        request = fetch_request(topic_id, 1 << 20, reader=ROWS)
        bench.measure("fetch_1MB_columns_to_rows", request, 1, 2, 0)
        request = fetch_request(topic_id, 1, reader=(fetch.FLAG_ENDS_ONLY, 1))
        bench.measure("fetch_ends_only_16_connections_4_deep", request, 16, 4, 0)
        rss_mb = {"idle": idle, "after": bench.rss_mb()}
        found = {**bench.results, "rss_mb": rss_mb, "loop": bench.loop()}
    with one_broker(seconds, fetch_verify="always") as bench:
        topic_id = bench.topic("big")
        bench.measure("warm_up", produce_request(topic_id, big), 1, 5, len(big))
        name = "fetch_8MB_checked_by_broker"
        bench.measure(name, fetch_request(topic_id, 8 << 20), 1, 2, 0)
        found[name] = bench.results[name]
    for partitions in SCRAPED_PARTITIONS:
        with one_broker(seconds, metrics_port="0") as bench:
            found[f"scrapes_{partitions}_partitions"] = bench.scrapes(partitions)
    return found | {"metrics_us_a_request": metrics_us()}


if __name__ == "__main__":
    figures.main(measure)
