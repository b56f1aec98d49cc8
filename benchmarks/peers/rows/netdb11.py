"""The experiment of the NetDB'11 paper: one producer, one consumer, messages of 200 bytes.

As in the paper, the producer sends without waiting for acknowledgements. Unlike in the paper, it
waits at the end until all messages are acknowledged. The settings define the guarantee of an
acknowledgement.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from peers import fetch
from peers.bench import Bench
from peers.queues import ActiveMq, RabbitMq, class_path
from peers.row import KAFKA, LOGBUS, Measures, Row, Side, Variant, missing
from peers.servers import KafkaServers, LogbusServers

ACTIVEMQ, RABBITMQ = "activemq", "rabbitmq"
MESSAGE_BYTES = 200
SECONDS = 2.0
MESSAGES = 100_000
"""Duration of a producer's run in seconds, and its minimum number of messages.

The first second does not count, because the JIT compiler runs in it. With fewer messages, a
consumer would measure mostly this second.
"""
WARM_UP_SECONDS = 1.0
RUN_SECONDS_MAX = 180
LINES = 20_000
BATCHES = {"single messages": 1, "batches of 50": 50}
NAMES = {LOGBUS: "logbus", KAFKA: "Kafka", ACTIVEMQ: "ActiveMQ", RABBITMQ: "RabbitMQ"}
DURABLE = {
    LOGBUS: "acks=all: flushed to disk before each acknowledgement",
    KAFKA: "acks=all: in the page cache, not flushed",
    ACTIVEMQ: "persistent; single messages: on their way to a synced journal, not awaited; "
    "50 a transaction: synced to disk before each commit ends",
    RABBITMQ: "persistent, each confirmed by the broker; it has no batches",
}
NO_BATCHES = "its protocol has no batches of messages; see single messages"


class Paper:
    """Runs the Java programs of one variant (set of settings) of the benchmark."""

    def __init__(self, bench: Bench, batch: int, folder: Path) -> None:
        self._batch = batch
        self._seconds = SECONDS * 0.75 if bench.quick else SECONDS
        self._least = bench.size(MESSAGES)
        self.classes = class_path(folder)
        self._lines = folder / "lines"
        self._lines.write_bytes(b"".join(bench.lines.sized(LINES, MESSAGE_BYTES)))

    def run(self, name: str, system: str, address: str, topic: str) -> Measures:
        """Produce for some seconds, then consume all messages; return the measures."""
        sent = self._java(system, "produce", address, topic, str(self._batch),
                          str(self._seconds), str(self._least), str(self._lines))  # fmt: skip
        got = self._java(system, "consume", address, topic, str(sent["messages"]))
        return {
            "produced_per_s": round(warm_rate(sent)),
            "consumed_per_s": round(got["messages"] / got["seconds"]),
            "messages": sent["messages"],
        }

    def _java(self, *arguments: str) -> dict[str, Any]:
        command = [fetch.java(), "-Xmx512M", "-cp", self.classes, "Paper", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments[:2])}: {done.stderr[-600:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def warm_rate(found: Mapping[str, Any]) -> float:
    """Return messages per second from the end of the first second to the last acknowledgement."""
    before = next(
        ((count, at) for count, at in found["samples"] if at >= WARM_UP_SECONDS), (0, 0.0)
    )
    messages, seconds = found["messages"] - before[0], found["seconds"] - before[1]
    return float(messages / seconds)


@contextlib.contextmanager
def open_paper(bench: Bench, chosen: Variant) -> Iterator[Mapping[str, Side]]:
    """Start every installed system, and yield one side for each system.

    The side of a missing system holds the reason why the system is missing.
    """
    batch = BATCHES[chosen.name]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-bench-")))
        paper = Paper(bench, batch, folder)

        def opened(name: str) -> Side:
            try:
                return _side(paper, name, bench, stack)
            except fetch.Cannot as why:
                return missing(why)

        sides = {name: opened(name) for name in NAMES if batch == 1 or name != RABBITMQ}
        yield sides if batch == 1 else sides | {RABBITMQ: missing(NO_BATCHES)}


def _side(paper: Paper, name: str, bench: Bench, stack: contextlib.ExitStack) -> Side:
    """Start one system, which runs until the stack closes. Raises Cannot if it is missing."""
    if name in (LOGBUS, KAFKA):
        servers = bench.logbus() if name == LOGBUS else bench.kafka()
        run, settings, processes = partial(_log, paper, name, servers), servers.settings, servers
    else:
        queue = stack.enter_context(ActiveMq(paper.classes) if name == ACTIVEMQ else RabbitMq())
        run = partial(paper.run, name, name, queue.address, "messages")
        settings, processes = queue.settings, queue
    return Side(
        run,
        processes.processes,
        f"{settings}; {DURABLE[name]}",
    )


def _log(paper: Paper, name: str, servers: LogbusServers | KafkaServers) -> Measures:
    topic = servers.new_topic()
    try:
        return paper.run(name, "log", servers.bootstrap_servers, topic)
    finally:
        servers.delete_topic(topic)


ROWS = (
    Row(
        "netdb11",
        17,
        "the NetDB'11 paper's experiment: one producer, then one consumer, 200 bytes a message",
        goals=(),
        open=open_paper,
        variants=tuple(
            Variant(
                name,
                settings={
                    "clients": "each system's Java client (Kafka's own for logbus too); "
                    "a producer has at most 1 MB under way, in Kafka's client five requests; "
                    "the consumer fetches up to 200 KB or 1,000 messages ahead",
                    "durability": "stated with each side",
                },
            )
            for name in BATCHES
        ),
        note="produced_per_s counts until the last acknowledgement, without the first second; "
        "consumed_per_s counts from the first message to the last, and each message must arrive "
        "once. With single messages, Kafka's client sends each message as a request, with five in "
        "flight. So for logbus and Kafka this is the round trip of a request, which for logbus "
        "includes a flush; the other systems take a stream of messages. RabbitMQ's protocol has "
        "no batches, so it has one line, as in the paper",
        quick=False,
        rounds=5,
        apart=True,
    ),
)
