"""The shared parts of the benchmarks of growing cost (``rows.growth``): one logbus cluster and its
load.

Clients run in this process. They send Arrow columns for volume, and use plain sockets for many
connections. The default sizes take minutes; ``GROWTH=full`` selects large sizes.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition
from broker_lite.record.arrow import Columns
from broker_lite.wire import fetch
from peers.bench import Bench
from peers.meter import fine_cpu_seconds
from peers.servers import processes_of

READY_SECONDS = 300.0
SETTLE_SECONDS = 20.0
SETTLED_PERCENT = 2.0
IS_FULL = os.environ.get("GROWTH", "") == "full"


class Alone:
    """A cluster that only one benchmark uses, with a client; a context manager."""

    def __init__(self, brokers: int = 1, **config: str) -> None:
        self.cluster = LocalCluster(brokers, config=config)

    def __enter__(self) -> Alone:
        self.cluster.start()
        self.bus: Bus = connect(self.cluster.bootstrap_servers)
        return self

    def __exit__(self, *_: object) -> None:
        self.bus.close()
        self.cluster.stop()

    def processes(self) -> dict[str, list[int]]:
        return processes_of(self.cluster)

    def new_topic(self, name: str, partitions: int = 1, replicas: int = 1, **config: str) -> float:
        """Create a topic; return the seconds until every partition has a leader."""
        before = time.perf_counter()
        self.bus.create_topic(
            name, partitions=partitions, replication_factor=replicas,
            config={key.replace("_", "."): value for key, value in config.items()},
        )  # fmt: skip
        return time.perf_counter() - before

    def restart(self, *, by_kill: bool, last: TopicPartition) -> float:
        """Restart the only broker; return the seconds until it accepts a record in the partition
        ``last``."""
        (broker,) = self.cluster.brokers
        if by_kill:
            broker.kill()
        else:
            broker.stop()
        before = time.perf_counter()
        broker.start(wait=False)
        broker.wait_ready(READY_SECONDS)
        with self.bus.producer() as producer:
            producer.send(last.topic, b"first", partition=last.partition).result(READY_SECONDS)
        return time.perf_counter() - before

    def settle(self) -> None:
        """Wait until the brokers are idle, at most SETTLE_SECONDS."""
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until:
            if self.idle_percent(1.0)["idle_broker_percent"] <= SETTLED_PERCENT:
                return

    def idle_percent(self, seconds: float) -> dict[str, float]:
        """Return the percentage of a core that each role uses while clients send no requests."""
        with Idling(self.processes()) as idling:
            time.sleep(seconds)
        return idling.percent


class Idling:
    """Measures the processor time of the processes of each role (such as the brokers) while the
    context is open: ``seconds``, and ``percent`` of a core."""

    def __init__(self, roles: dict[str, list[int]]) -> None:
        self._roles = roles

    def __enter__(self) -> Idling:
        self._before, self._began = self._spent(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        took = time.monotonic() - self._began
        self.seconds = {role: spent - self._before[role] for role, spent in self._spent().items()}
        self.percent = {
            f"idle_{role}_percent": round(spent / took * 100, 3)
            for role, spent in self.seconds.items()
        }

    def _spent(self) -> dict[str, float]:
        return {role: sum(map(fine_cpu_seconds, pids)) for role, pids in self._roles.items()}


@contextlib.contextmanager
def alone(bench: Bench, brokers: int = 1, **config: str) -> Iterator[Alone]:
    """Stop all other servers of the run, then start a cluster; yield it."""
    bench.stop_all()
    with (
        Alone(brokers, **{key.replace("_", "."): value for key, value in config.items()}) as found,
        bench.counting(found.processes),
    ):
        yield found


def column(values: list[bytes]) -> Columns:
    return Columns(len(values), None, pa.array(values, pa.binary()))


def resident_mb(pids: list[int]) -> float:
    """Return the present resident memory of processes in MB (10^6 bytes)."""
    page = resource.getpagesize()
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            total += int(file.read().split()[1]) * page
    return round(total / 1e6, 1)


def percentile(values: list[float], percent: int) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, len(ranked) * percent // 100)]


class Waiters:
    """Consumers at the end of one partition, each with a connection and a waiting fetch.

    The consumers only count responses and fetch again, so that the broker dominates the
    measurement.
    """

    def __init__(self, port: int, topic_id: str, count: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < count + 200:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
        self._topic_id = topic_id
        self._selector = selectors.DefaultSelector()
        self._offset = 0
        self._sockets = []
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(sock)
            self._selector.register(sock, selectors.EVENT_READ, bytearray())
        self._waiting: set[Any] = set()
        self._empty_bytes = 0

    def ask(self, offset: int) -> None:
        """Make every consumer fetch from ``offset``."""
        self._offset = offset
        self._waiting = set(self._sockets)
        for sock in self._sockets:
            sock.sendall(self._request())

    def until_all_have_it(self) -> float:
        """Run the consumers until each has received a record; return the seconds that this took."""
        before = time.perf_counter()
        while self._waiting:
            self._turn(1.0)
        return time.perf_counter() - before

    def idle(self, seconds: float) -> None:
        """Make the consumers fetch repeatedly for ``seconds``, without new records."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._turn(left)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._selector.close()

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            sock: Any = key.fileobj
            buffer: bytearray = key.data
            data = sock.recv(65_536)
            if not data:
                raise RuntimeError("the broker closed a connection")
            buffer += data
            while len(buffer) >= 4 and len(buffer) >= 4 + (
                size := struct.unpack_from(">i", buffer)[0]
            ):
                del buffer[: 4 + size]
                self._answered(sock, size)

    def _answered(self, sock: Any, size: int) -> None:
        """Handle a response: fetch again if the response has no record.

        The smallest response so far has no records. A response with a record is more than 60 bytes
        larger.
        """
        self._empty_bytes = min(self._empty_bytes or size, size)
        if size > self._empty_bytes + 60:
            self._waiting.discard(sock)
        else:
            sock.sendall(self._request())

    def _request(self) -> bytes:
        row = fetch.FetchPartition(0, self._offset, 1 << 20)
        return bytes(
            fetch.encode_request(
                fetch.FetchRequest(
                    [fetch.FetchTopic("", self._topic_id, [row])],
                    max_wait_ms=500,
                    max_bytes=1 << 20,
                    columns_body_version=1,
                    flags=fetch.FLAG_CHECKS_CRC,
                ),
                correlation_id=1,
                client_id="bench",
            )
        )
