"""Measure the web console of a cluster with 1,000 partitions and 100 groups, and some commands.

    python benchmarks/console.py [--rounds 2] [--seconds 31] [--only sampling,pages,…]

``--only`` takes sampling, pages, tail, groups, commands and plugin. Prints one JSON object. There
are three brokers; half of the partitions are in one topic, and each group has committed offsets in
ten partitions.

``sampling``: the share of a core that each broker spends on the console's periodic reading of the
cluster's state, without viewers. Each round measures the brokers' processor time without the
console and then with it; the figure is the median difference. ``at_rest``: no group commits.
``moving``: every group commits new offsets every 5 s, without the console and with it. A window of
31 s has six readings; one of them also requests sizes and start offsets (``WHOLE_S``).

``pages``: p95 in ms and kB of each page, requested one after the other, and the console's resident
memory after them and at its peak. ``tail``: the share of a core that a full live tail takes the
console, in addition to its sampling. ``groups``: seconds to read the lags of 1,000 groups, each
with offsets in ten partitions. ``commands``: wall time with Python's start; ``completion`` reads
topics from the brokers, ``completion_again`` from its cache. ``plugin``: the start and the end of
the pytest plugin's cluster of one broker, a new topic in it, and the import of the plugin.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from peers.figures import main, median, percentile, timed
from peers.meter import CpuUse, peak_mb, resident_mb
from peers.servers import LogbusServers

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition

Groups = dict[str, list[TopicPartition]]
TOPICS = {"large": 500, **{f"small-{number}": 50 for number in range(10)}}
GROUPS, PARTITIONS_A_GROUP, RECORDS_A_PARTITION, COMMIT_S = 100, 10, 10, 5.0
SETTLE_S = 40.0
"""Seconds until followers fetch idle partitions rarely, so that the brokers' load is steady."""
OF_TOPIC = ("messages", "partitions", "settings", "groups")
PAGES = ("/", "/brokers", "/brokers/0", "/topics", *(f"/topics/large/{name}" for name in OF_TOPIC),
         "/groups", "/groups/group-7", "/transactions")  # fmt: skip
REQUESTS, RUNS, WARM = 40, 9, 2
MANY_GROUPS = 1000
TAILED, TAIL_RECORDS_A_SECOND, TAIL_VALUE_BYTES = "small-0", 500, 100
PARTS = ("sampling", "pages", "tail", "groups", "commands", "plugin")
IMPORT = """
import time, pytest
began = time.perf_counter()
import pyspark_logbus.testing
print(time.perf_counter() - began)
"""
"""A program that prints how many seconds the import of the pytest plugin takes."""


def fill(bus: Bus) -> Groups:
    """Create topics, records and groups; return the partitions in which each group commits."""
    for name, count in TOPICS.items():
        bus.create_topic(name, partitions=count, replication_factor=3)
    every = [TopicPartition(name, number) for name, n in TOPICS.items() for number in range(n)]
    with bus.producer(linger_ms=1000) as producer:
        for number in range(RECORDS_A_PARTITION):
            for tp in every:
                producer.send(tp.topic, b"record %d" % number, partition=tp.partition)
            producer.flush()
    step = PARTITIONS_A_GROUP
    groups = {f"group-{n}": every[n * step : (n + 1) * step] for n in range(GROUPS)}
    commit(bus, groups, 1)
    return groups


def commit(bus: Bus, groups: Groups, offset: int) -> None:
    for group, tps in groups.items():
        bus.admin.commit_each(group, dict.fromkeys(tps, offset))


@contextlib.contextmanager
def in_thread(run: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``run`` in a thread; set its event when the context closes, and wait for its end."""
    ended = threading.Event()
    thread = threading.Thread(target=run, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def moving(bus: Bus, groups: Groups) -> contextlib.AbstractContextManager[None]:
    """Commit new offsets of every group at intervals, in a thread, while the context is open."""

    def run(ended: threading.Event) -> None:
        number = 1
        while not ended.wait(COMMIT_S):
            number = number % (RECORDS_A_PARTITION - 1) + 1
            commit(bus, groups, number)

    return in_thread(run)


@contextlib.contextmanager
def console(cluster: LocalCluster) -> Iterator[tuple[str, int]]:
    """Run a console; yield its address and process id once it answers requests."""
    address = urlsplit(cluster.start_console()).netloc
    running = cluster.console
    assert running is not None and running.pid is not None
    # Wait until the console has read the cluster's state: it answers no request before that.
    request(address, "/")
    try:
        yield address, running.pid
    finally:
        running.stop()
        cluster.console = None


def request(address: str, path: str) -> int:
    """Request a page and return its size in bytes."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200, (path, answer.status)
        return len(answer.read())


def sampling(cluster: LocalCluster, rounds: int, seconds: float) -> list[float]:
    def percent() -> list[float]:
        with CpuUse({broker.id: [broker.pid] for broker in cluster.brokers}) as use:
            time.sleep(seconds)
        return list(use.percent.values())

    differences = []
    for _ in range(rounds):
        without = percent()
        with console(cluster):
            differences.append([b - a for a, b in zip(without, percent())])
    return [median(row, 2) for row in zip(*differences)]


def pages(cluster: LocalCluster) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with console(cluster) as (address, pid):
        for path in PAGES:
            took = [timed(request, address, path) * 1000 for _ in range(REQUESTS + WARM)]
            size = request(address, path)
            p95 = percentile(took[WARM:], 95)
            found[path] = {"p95_ms": round(p95, 1), "kb": round(size / 1000, 1)}
        memory = {"console_mb": round(resident_mb(pid)), "console_peak_mb": round(peak_mb(pid))}
    largest = {key: max(row[key] for row in found.values()) for key in ("p95_ms", "kb")}
    return {"pages": found, "pages_largest": largest, **memory}


def sending(bus: Bus, topic: str, rate: int) -> contextlib.AbstractContextManager[None]:
    """Send ``rate`` records a second to a topic, in a thread, while the context is open."""

    def run(ended: threading.Event) -> None:
        with bus.producer(linger_ms=0) as producer:
            due = time.monotonic()
            while not ended.is_set():
                producer.send(topic, bytes(TAIL_VALUE_BYTES))
                due += 1 / rate
                ended.wait(max(0.0, due - time.monotonic()))

    return in_thread(run)


@contextlib.contextmanager
def tailing(address: str, topic: str) -> Iterator[list[int]]:
    """Read a live tail of the console, in a thread, while the context is open. Yield a list, which
    then has the sizes of the parts that arrived."""
    sizes: list[int] = []
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", f"/topics/{topic}/tail")
    answer = connection.getresponse()
    assert answer.status == 200, answer.status
    sock = connection.sock

    def run() -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while part := answer.read1(1 << 16):
                sizes.append(len(part))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sizes
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        thread.join()
        connection.close()


def tail(servers: LogbusServers, seconds: float) -> dict[str, float]:
    """Measure the processor time of the console without a tail, and with one of as many records as
    a tail sends."""
    with console(servers.cluster) as (address, pid):

        def percent() -> float:
            with CpuUse({"console": [pid]}) as use:
                time.sleep(seconds)
            return use.percent["console"]

        with sending(servers.bus, TAILED, TAIL_RECORDS_A_SECOND):
            without = percent()
            with tailing(address, TAILED) as sizes:
                beside = percent()
    return {
        "core_percent": round(beside - without, 2),
        "kb_per_s": round(sum(sizes) / seconds / 1000, 1),
    }


def many_groups(bus: Bus) -> dict[str, float]:
    """Measure how long the lags of ``MANY_GROUPS`` groups take to read."""
    tps = [TopicPartition(name, number) for name, n in TOPICS.items() for number in range(n)]
    names = [f"many-{number}" for number in range(MANY_GROUPS)]
    for number, name in enumerate(names):
        first = number * PARTITIONS_A_GROUP % len(tps)
        bus.admin.commit_each(name, dict.fromkeys(tps[first : first + PARTITIONS_A_GROUP], 1))
    took = [timed(bus.admin.lag_many, names) for _ in range(RUNS)]
    return {"lag_many_s": median(took[WARM:], 2)}


def median_ms(*words: str, cache: str, is_cold: bool = False, **variables: str) -> float:
    """Return the median time of a command in ms.

    ``cache`` is the command's cache folder, which is deleted before each run if ``is_cold``.
    """
    command = [sys.executable, "-P", "-m", "broker_lite", *words]
    environment = os.environ | variables | {"XDG_CACHE_HOME": cache}

    def run() -> None:
        assert subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout

    took = []
    for _ in range(RUNS + WARM):
        if is_cold:
            shutil.rmtree(cache, ignore_errors=True)
        took.append(timed(run) * 1000)
    return median(took[WARM:])


def commands(servers: str) -> dict[str, float]:
    words = f"logbus topic describe -b {servers} la"
    typed = {"_LOGBUS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "5"}
    with tempfile.TemporaryDirectory() as folder:
        cache = f"{folder}/cache"
        return {
            "version_ms": median_ms("--version", cache=cache),
            "health_ms": median_ms("health", "-b", servers, cache=cache),
            "completion_ms": median_ms(cache=cache, is_cold=True, **typed),
            "completion_again_ms": median_ms(cache=cache, **typed),
        }


def plugin() -> dict[str, float]:
    """Measure how long the pytest plugin takes to be imported, to start and to end its cluster, and
    to create a topic."""
    # A user's Python does not compile the plugin for each import.
    with_bytecode = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    marks, topics, imports = [], [], []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            cluster = LocalCluster(brokers=1, directory=folder)
            ready_s = timed(cluster.start)
            with connect(cluster.bootstrap_servers) as bus:
                topics += [timed(bus.create_topic, f"t-{number}", 1) for number in range(RUNS)]
            marks.append((ready_s, timed(cluster.kill)))
        command = [sys.executable, "-P", "-c", IMPORT]
        ran = subprocess.run(command, env=with_bytecode, stdout=subprocess.PIPE, check=True)
        imports.append(float(ran.stdout))
    ready_s, stop_s = (median(row, 2) for row in zip(*marks))
    topic_ms, import_ms = (median(1000 * took for took in row) for row in (topics, imports))
    return {"ready_s": ready_s, "stop_s": stop_s, "topic_ms": topic_ms, "import_ms": import_ms}


def measure(rounds: int = 2, seconds: float = 31.0, only: str = ",".join(PARTS)) -> dict[str, Any]:
    wanted = only.split(",")
    result: dict[str, Any] = {}
    with LogbusServers(3) as servers:
        groups = fill(servers.bus)
        if "sampling" in wanted:
            time.sleep(SETTLE_S)
            windows = servers.cluster, rounds, seconds
            result["sampling_at_rest_core_percent"] = sampling(*windows)
            with moving(servers.bus, groups):
                result["sampling_moving_core_percent"] = sampling(*windows)
        if "pages" in wanted:
            result |= pages(servers.cluster)
        if "tail" in wanted:
            result["tail"] = tail(servers, seconds)
        if "groups" in wanted:
            result["groups"] = many_groups(servers.bus)
        if "commands" in wanted:
            result["commands"] = commands(servers.bootstrap_servers)
    if "plugin" in wanted:
        result["plugin"] = plugin()
    return result


if __name__ == "__main__":
    main(measure)
