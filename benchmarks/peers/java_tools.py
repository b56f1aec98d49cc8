"""Run Kafka's own command line tools against either broker and parse their measurements."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from peers.row import Measures
from peers.servers import kafka_java

RUN_SECONDS = 300
IDLE_MS = 60_000
"""Milliseconds without a record after which ConsumerPerformance stops."""
HEAP = "-Xmx512M"
"""The heap option with which Kafka's own scripts start its tools."""

_SENT = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), "
    r"([\d.]+) ms avg latency, .* (\d+) ms 50th, .* (\d+) ms 99th",
    re.M,
)


class ToolFailed(Exception):
    """Raised when a Kafka tool fails; the message is the tool's output."""


def run(tool: str, *arguments: str) -> str:
    command = [*kafka_java(HEAP), f"org.apache.kafka.tools.{tool}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)
    if done.returncode:
        raise ToolFailed(f"{tool}: {(done.stderr.strip() or done.stdout.strip())[-600:]}")
    return done.stdout


def produce(
    servers: str, topic: str, *, count: int, payloads: Path, settings: Mapping[str, str]
) -> Measures:
    """Run ProducerPerformance at full speed, with values from a file."""
    pairs = [f"{key}={value}" for key, value in settings.items()]
    said = run(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--throughput", "-1"),
        *("--payload-file", str(payloads)),
        *("--producer-props", f"bootstrap.servers={servers}", "acks=all", *pairs),
    )
    return read_sent(said, count)


def read_sent(said: str, count: int) -> Measures:
    """Parse the last line of ProducerPerformance, which covers the whole run."""
    found = _SENT.findall(said)
    if not found or int(found[-1][0]) != count:
        raise ToolFailed(f"ProducerPerformance did not send {count} records: {said[-600:]}")
    _, rate, mb, latency, median, tail = found[-1]
    return {
        "records_per_s": float(rate),
        "mb_per_s": round(float(mb) * 1.048576, 2),
        "latency_avg_ms": float(latency),
        "latency_p50_ms": float(median),
        "latency_p99_ms": float(tail),
    }


def consume(
    servers: str,
    topic: str,
    *,
    count: int,
    fetch_bytes: int = 0,
    settings: Mapping[str, str] | None = None,
) -> Measures:
    """Run ConsumerPerformance from the start of a topic; return its fetch rate.

    ``fetch_bytes`` is the maximum size of a partition in a response; 0 is the tool's default, 1 MB.
    """
    said = run(
        "ConsumerPerformance",
        *("--bootstrap-server", servers, "--topic", topic),
        *("--num-records", str(count), "--timeout", str(IDLE_MS), "--hide-header"),
        *(("--fetch-size", str(fetch_bytes)) if fetch_bytes else ()),
        *(
            word
            for key, value in (settings or {}).items()
            for word in ("--command-property", f"{key}={value}")
        ),
    )
    return read_consumed(said, count)


def read_consumed(said: str, count: int) -> Measures:
    """Parse the line of numbers that ConsumerPerformance prints."""
    fields = _last_row(said)
    if len(fields) < 10 or int(fields[4]) < count:
        raise ToolFailed(f"ConsumerPerformance did not read {count} records: {said[-600:]}")
    return {
        "records_per_s": float(fields[9]),
        "mb_per_s": round(float(fields[8]) * 1.048576, 2),
        "records_per_s_with_joining": float(fields[5]),
    }


def _last_row(said: str) -> Sequence[str]:
    rows = [line.split(", ") for line in said.splitlines() if line.count(", ") >= 9]
    return rows[-1] if rows else ()
