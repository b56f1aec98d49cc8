"""The experiment of the NetDB'11 paper: one producer, one consumer, messages of 200 bytes.

As in the paper, the producer sends without waiting for acknowledgements. Unlike in the paper, it
waits at the end until all messages are acknowledged. An acknowledgement's guarantee differs by
system (``DURABLE``). ``produced_per_s`` counts until the last acknowledgement, without the first
second. ``consumed_per_s`` counts from the first message to the last, and each message must arrive
once.

In the variant *single messages*, Kafka's client sends each as a request, five in flight. So for
logbus and Kafka the rate follows from the round trip of a request, which for logbus includes a
flush; the other systems take a stream of messages.
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
from peers.queues import ActiveMq, Queue, RabbitMq, class_path
from peers.row import KAFKA, LOGBUS, Measures, Row, Side, Variant
from peers.servers import Servers

ACTIVEMQ, RABBITMQ = "activemq", "rabbitmq"
MESSAGE_BYTES = 200
SECONDS = 2.0
MESSAGES = 100_000
"""``SECONDS`` is the duration of a producer's run, ``MESSAGES`` its minimum number of messages.

The producer's first second does not count, because the JIT compiler runs in it. With fewer
messages, a consumer would measure mostly its first second.
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
    """Runs the Java programs that repeat the NetDB'11 paper's experiment, with one variant (set of
    settings)."""

    def __init__(self, bench: Bench, batch: int, folder: Path) -> None:
        self._batch = batch
        self._seconds = SECONDS * 0.75 if bench.quick else SECONDS
        self._least = bench.size(MESSAGES)
        self.classes = class_path(folder)
        self._lines = folder / "lines"
        self._lines.write_bytes(b"".join(bench.lines.sized(LINES, MESSAGE_BYTES)))

    def run(self, system: str, address: str, topic: str) -> Measures:
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
    """Start every installed system, and yield a ``Side`` for each system.

    The side of a missing system holds the reason why the system is missing.
    """
    batch = BATCHES[chosen.name]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-bench-")))
        paper = Paper(bench, batch, folder)

        def run_log(servers: Servers) -> Measures:
            with servers.topic() as topic:
                return paper.run("log", servers.bootstrap_servers, topic)

        def run_queue(system: str, queue: Queue) -> Measures:
            return paper.run(system, queue.address, "messages")

        sides = {each.peer: Side.of(each, run_log) for each in bench.both()}
        for name, kind in ((ACTIVEMQ, partial(ActiveMq, paper.classes)), (RABBITMQ, RabbitMq)):
            try:
                if name == RABBITMQ and batch > 1:
                    raise fetch.Cannot(NO_BATCHES)
                sides[name] = Side.of(stack.enter_context(kind()), partial(run_queue, name))
            except fetch.Cannot as why:
                sides[name] = Side.missing(why)
        yield sides


CLIENTS = (
    "each system's Java client (Kafka's own for logbus too); a producer has at most 1 MB in "
    "flight, in Kafka's client five requests; the consumer fetches up to 200 KB or 1,000 ahead"
)
ROWS = (
    Row(
        "netdb11",
        17,
        "the NetDB'11 paper's experiment: one producer, then one consumer, 200 bytes a message",
        goals=(),
        open=open_paper,
        variants=tuple(Variant(name, {"clients": CLIENTS}) for name in BATCHES),
        quick=False,
        apart=True,
    ),
)
