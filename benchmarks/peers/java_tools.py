"""Run Kafka's own command line tools against the brokers of logbus or Kafka, and parse their
measurements."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peers.bench import Bench
from peers.row import Measures
from peers.servers import kafka_java

RUN_SECONDS = 300
IDLE_MS = 60_000
"""Milliseconds without a record after which ConsumerPerformance stops."""
PAYLOADS_MB = 20
HEAP = "-Xmx512M"
"""The heap option with which Kafka's own scripts start its tools."""

_SENT = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec .* (\d+) ms 50th, .* (\d+) ms 99th", re.M
)


class ToolFailed(Exception):
    """Raised when a Kafka tool fails; the message is the tool's output."""


def run(tool: str, *arguments: str) -> str:
    command = [*kafka_java(HEAP), f"org.apache.kafka.tools.{tool}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)
    if done.returncode:
        raise ToolFailed(f"{tool}: {(done.stderr.strip() or done.stdout.strip())[-600:]}")
    return done.stdout


@contextlib.contextmanager
def payloads(bench: Bench, size: int) -> Iterator[Path]:
    """Yield a file of distinct values of ``size`` bytes, from real log lines. ProducerPerformance
    chooses values from it at random."""
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder:
        path = Path(folder) / "payloads"
        values = bench.lines.sized(PAYLOADS_MB * 1_000_000 // size, size)
        path.write_bytes(b"\n".join(values) + b"\n")
        yield path


def produce(
    servers: Any, topic: str, *, count: int, payloads: Path, settings: Mapping[str, str]
) -> Measures:
    """Run ProducerPerformance at full speed, with values from a file."""
    pairs = [f"{key}={value}" for key, value in settings.items()]
    said = run(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--throughput", "-1"),
        *("--payload-file", str(payloads)),
        *("--producer-props", f"bootstrap.servers={servers.bootstrap_servers}", "acks=all", *pairs),
    )
    return read_sent(said, count)


def read_sent(said: str, count: int) -> Measures:
    """Parse the last line of ProducerPerformance, which covers the whole run."""
    found = _SENT.findall(said)
    if not found or int(found[-1][0]) != count:
        raise ToolFailed(f"ProducerPerformance did not send {count} records: {said[-600:]}")
    _, rate, median, tail = found[-1]
    return {
        "records_per_s": float(rate),
        "latency_p50_ms": float(median),
        "latency_p99_ms": float(tail),
    }


def consume(servers: Any, topic: str, *, count: int, settings: Mapping[str, str]) -> Measures:
    """Run ConsumerPerformance from the start of a topic; return its fetch rate.

    ``max.partition.fetch.bytes`` becomes --fetch-size, whose default would replace it.
    """
    more = dict(settings)
    size = more.pop("max.partition.fetch.bytes", None)
    said = run(
        "ConsumerPerformance",
        *("--bootstrap-server", servers.bootstrap_servers, "--topic", topic),
        *("--num-records", str(count), "--timeout", str(IDLE_MS), "--hide-header"),
        *(("--fetch-size", size) if size else ()),
        *(word for each in more.items() for word in ("--command-property", "=".join(each))),
    )
    return read_consumed(said, count)


def read_consumed(said: str, count: int) -> Measures:
    """Parse the line of numbers that ConsumerPerformance prints."""
    rows = [line.split(", ") for line in said.splitlines() if line.count(", ") >= 9]
    if not rows or int(rows[-1][4]) < count:
        raise ToolFailed(f"ConsumerPerformance did not read {count} records: {said[-600:]}")
    return {"records_per_s": float(rows[-1][9])}
