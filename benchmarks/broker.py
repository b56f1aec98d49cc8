"""What one broker does: small produces, 1 MB batches flushed before the ack, fetches by sendfile.

    python benchmarks/broker.py [--seconds 3]

Starts ZooKeeper and one broker, drives it over plain sockets from this process with requests made
beforehand, so that the load costs as little as it can, and prints one JSON object. ``cpu_us`` is
the broker's processor time, all threads, by request.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from broker_lite.client.admin import Admin
from broker_lite.local.cluster import LocalCluster
from broker_lite.record import arrow
from broker_lite.record.records import Row, encode_rows
from broker_lite.wire import fetch, produce

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
READ_BYTES = 1 << 20


class Load:
    """Keeps ``depth`` copies of one request under way on each of ``connections`` sockets."""

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
        """Drive for so long; the seconds that it took."""
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


def cpu_seconds(pid: int) -> float:
    fields = open(f"/proc/{pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def produce_request(topic_id: str, batch: bytes | memoryview, partition: int = 0) -> bytes:
    row = produce.PartitionRecords(partition, batch)
    parts = produce.encode_request(
        [produce.TopicRecords("", topic_id, [row])],
        acks=-1,
        timeout_ms=30_000,
        correlation_id=1,
        client_id="bench",
    )
    return b"".join(bytes(part) for part in parts)


def fetch_request(topic_id: str, size: int, *, flags: int, body_version: int) -> bytes:
    row = fetch.FetchPartition(0, 0, size)
    return bytes(
        fetch.encode_request(
            fetch.FetchRequest(
                [fetch.FetchTopic("", topic_id, [row])],
                max_wait_ms=500,
                max_bytes=size,
                columns_body_version=body_version,
                flags=flags,
            ),
            correlation_id=1,
            client_id="bench",
        )
    )


def columns_batch(size: int, value_bytes: int = 200) -> memoryview:
    count = size // (value_bytes + 4)
    values = pa.array([os.urandom(value_bytes) for _ in range(count)], pa.binary())
    return arrow.encode(arrow.Columns(count, None, values, None, None), timestamp_ms=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    results: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(brokers=1, directory=directory) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        broker = cluster.brokers[0]
        address = ("127.0.0.1", broker.port)

        def topic(name: str) -> str:
            topic_id: str = admin.create_topic(name, 1, 1, {})
            while admin.cluster([name]).topics[name].partitions[0].error is not None:
                time.sleep(0.01)
            time.sleep(0.1)
            return topic_id

        def measure(name: str, request: bytes, connections: int, depth: int, size: int) -> None:
            load = Load(address, request, connections, depth)
            before = cpu_seconds(broker.pid)
            took = load.run(seconds)
            cpu = cpu_seconds(broker.pid) - before
            answers = max(load.answers, 1)
            moved = size * answers if size else load.received
            results[name] = {
                "requests_per_s": round(load.answers / took),
                "mb_per_s": round(moved / took / 1e6, 1),
                "cpu_us": round(cpu / answers * 1e6, 1),
                "broker_cores": round(cpu / took, 2),
            }

        small = bytes(encode_rows([Row(0, 1, None, bytes(100), ())]))
        request = produce_request(topic("small"), small)
        measure("produce_100B_1_connection_1_deep", request, 1, 1, len(small))
        measure("produce_100B_16_connections_8_deep", request, 16, 8, len(small))
        big = columns_batch(1 << 20)
        topic_id = topic("big")
        measure("produce_1MB_1_connection_5_deep", produce_request(topic_id, big), 1, 5, len(big))
        for name, flags, body_version in (
            ("fetch_8MB_sendfile", fetch.FLAG_CHECKS_CRC, 1),
            ("fetch_8MB_checked_by_broker", 0, 1),
            ("fetch_1MB_transcoded_to_rows", 0, 0),
        ):
            wanted = 1 << 20 if "1MB" in name else 8 << 20
            request = fetch_request(topic_id, wanted, flags=flags, body_version=body_version)
            measure(name, request, 1, 2, 0)
        tiny = fetch_request(topic_id, 1, flags=fetch.FLAG_ENDS_ONLY, body_version=1)
        measure("fetch_ends_only_16_connections_4_deep", tiny, 16, 4, 0)
        rss = next(
            line for line in open(f"/proc/{broker.pid}/status") if line.startswith("VmRSS")
        )
        results["broker"] = {"rss_mb_after": round(int(rss.split()[1]) / 1024, 1)}
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
