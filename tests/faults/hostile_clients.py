"""Clients that try to use up a broker's memory.

    PYTHONPATH=tests python -m faults.hostile_clients unfinished --connections 4000
    PYTHONPATH=tests python -m faults.hostile_clients unread
    PYTHONPATH=tests python -m faults.hostile_clients inflated --connections 8
    PYTHONPATH=tests python -m faults.hostile_clients columns --connections 8

They send unfinished requests, read no responses, or send small batches that decompress to much
data. Each command starts a broker, attacks it, and prints one JSON object: the broker's resident
memory before the attack, at its peak and after the clients are gone, and the duration of
ApiVersions requests during the attack.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from support.data_calls import (
    ROWS_ONLY,
    Place,
    columns_batch,
    fetch_request,
    make_topic,
    rows_batch,
    send_batch,
)
from support.plain_connection import PlainConnection

from broker_lite.local.cluster import LocalCluster
from broker_lite.record import arrow
from broker_lite.record import format as fmt
from broker_lite.record.batch import read_header, set_max_timestamp
from broker_lite.wire.calls.cluster import ApiVersionsRequest

MIB = 1 << 20
ROWS = 9000
"""Number of rows in a batch of columns."""
AFTER_S = 5.0
"""Seconds in which a broker must release the memory of clients that are gone."""


class Watch:
    """Samples a broker's resident memory, and measures how long ApiVersions requests take on one
    connection."""

    def __init__(self, address: str, pid: int) -> None:
        self._address, self._pid = address, pid
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._sample, self._ask)
        ]
        self.peak_bytes = 0
        self.took_s: list[float] = []

    def _sample(self) -> None:
        while not self._ended.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self._pid))

    def _ask(self) -> None:
        with PlainConnection(self._address, timeout_s=120) as connection:
            while not self._ended.wait(0.005):
                began = time.monotonic()
                connection.call(ApiVersionsRequest("hostile", "1"))
                self.took_s.append(time.monotonic() - began)

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def percentile_ms(self, percent: float) -> float:
        took = sorted(self.took_s)
        return round(1000 * took[min(len(took) - 1, int(len(took) * percent / 100))], 1)


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def resident_peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def unfinished_request(declared_bytes: int, sent_bytes: int) -> bytes:
    """Return the first ``sent_bytes`` of a produce request: its length, its header, zeros."""
    body = struct.pack(">hhih", 0, 9, 1, -1)
    return struct.pack(">i", declared_bytes) + body.ljust(sent_bytes, b"\0")[:sent_bytes]


@contextlib.contextmanager
def unfinished(
    address: str, connections: int, *, declared_bytes: int = 64 * MIB, sent_bytes: int = 14
) -> Iterator[list[socket.socket]]:
    """Open connections that each send only the beginning of a request; close them at the end."""
    host, _, port = address.rpartition(":")
    data = unfinished_request(declared_bytes, sent_bytes)
    sockets: list[socket.socket] = []
    try:
        for _ in range(connections):
            sock = socket.create_connection((host, int(port)), 30)
            sockets.append(sock)
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.send(data)
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


def unread_fetches(place: Place, requests: int) -> socket.socket:
    """Open a connection that fetches column batches as rows in ``requests`` requests, and reads no
    response."""
    host, _, port = place.address.rpartition(":")
    sock = socket.create_connection((host, int(port)), 30)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = fetch_request(
        place, 0, reader=ROWS_ONLY, max_bytes=55 * MIB, partition_bytes=55 * MIB
    )
    sock.sendall(request * requests)
    return sock


def fill_with_columns(place: Place, batches: int) -> None:
    with PlainConnection(place.address) as connection:
        for number in range(batches):
            batch = columns_batch([b"%d %s" % (number, b"x" * 100)] * ROWS)
            assert send_batch(connection, place, batch).error_code == 0


def inflated_batch(value_bytes: int = 500 * MIB) -> bytes:
    """Return a small batch of rows that decompresses to ``value_bytes``.

    Its header has no maximum timestamp.
    """
    batch = bytearray(rows_batch([bytes(value_bytes)], codec=fmt.CODEC_ZSTD))
    set_max_timestamp(batch, read_header(batch), -1)
    return bytes(batch)


def inflated_columns(value_bytes: int = 60 * MIB) -> bytes:
    """Return a small batch of columns that decompresses to ``value_bytes``."""
    columns = arrow.Columns(1, None, pa.array([bytes(value_bytes)], pa.binary()))
    return bytes(arrow.encode(columns, timestamp_ms=1000, compression="zstd"))


def _attack_columns(place: Place, options: argparse.Namespace) -> Iterator[None]:
    with PlainConnection(place.address, timeout_s=120) as connection:
        send_batch(connection, place, inflated_columns())
    sockets = [unread_fetches(place, 8) for _ in range(options.connections)]
    yield
    for sock in sockets:
        sock.close()


def _attack_unfinished(place: Place, options: argparse.Namespace) -> Iterator[None]:
    sent = {"declared_bytes": options.declared_bytes, "sent_bytes": options.bytes}
    with unfinished(place.address, options.connections, **sent):
        yield


def _attack_unread(place: Place, options: argparse.Namespace) -> Iterator[None]:
    fill_with_columns(place, batches=24)
    sockets = [unread_fetches(place, 64) for _ in range(options.connections)]
    yield
    for sock in sockets:
        sock.close()


def _attack_inflated(place: Place, options: argparse.Namespace) -> Iterator[None]:
    batch = inflated_batch()

    def produce() -> None:
        with PlainConnection(place.address, timeout_s=120) as connection:
            send_batch(connection, place, batch)

    threads = [threading.Thread(target=produce) for _ in range(options.connections)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


ATTACKS: dict[str, Callable[[Place, argparse.Namespace], Iterator[None]]] = {
    "unfinished": _attack_unfinished,
    "unread": _attack_unread,
    "inflated": _attack_inflated,
    "columns": _attack_columns,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--declared-bytes", type=int, default=64 * MIB)
    parser.add_argument("--bytes", type=int, default=14, help="sent after the length")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the attack lasts")
    parser.add_argument("--after", type=float, default=AFTER_S, help="wait before the last look")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="hostile-") as directory,
        LocalCluster(brokers=1, directory=Path(directory)) as cluster,
    ):
        print(json.dumps(measure(cluster, options), indent=1))


def measure(cluster: LocalCluster, options: argparse.Namespace) -> dict[str, Any]:
    pid = cluster.brokers[0].pid
    assert pid is not None
    place = make_topic(cluster, "hostile")
    before = resident_bytes(pid), descriptors(pid)
    with Watch(place.address, pid) as watch:
        attack = contextlib.contextmanager(ATTACKS[options.attack])
        with attack(place, options):
            time.sleep(options.seconds)
            during = descriptors(pid)
        time.sleep(options.after)
        after = resident_bytes(pid), descriptors(pid)
    return {
        "rss_mb": {
            "before": before[0] // MIB,
            "peak": watch.peak_bytes // MIB,
            "after": after[0] // MIB,
        },
        "descriptors": {"before": before[1], "during": during, "after": after[1]},
        "api_versions": {
            "answers": len(watch.took_s),
            "p50_ms": watch.percentile_ms(50),
            "p99_ms": watch.percentile_ms(99),
            "max_ms": watch.percentile_ms(100),
        },
    }


if __name__ == "__main__":
    main()
