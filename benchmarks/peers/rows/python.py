"""Benchmarks 10 to 13: logbus's Python client and confluent-kafka, each with its own broker.

logbus's producer is idempotent by default, confluent-kafka's is not. Each side reads a topic that
its own client wrote (columns in logbus's log, rows in Kafka's). logbus's consumer is on the
broker's machine here and reads its files in place, except in *fetched* variants; it checks
checksums and structure in any case. Both programs compute the length of every value, logbus's by
column, confluent-kafka's in a loop. With its defaults, confluent-kafka waits for more than half of
the time (see cpu_s), so the ratio of processor times is smaller than that of rates: for batches, 5
to 6 in place and 3.4 fetched.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from peers.bare import BareServer
from peers.bench import Bench
from peers.row import FLOOR, KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant, words
from peers.servers import LogbusServers, Servers, send_all

RUN_SECONDS = 180
VALUES_MB = 20
CLIENTS = {LOGBUS: "logbus", KAFKA: "confluent"}
LZ4 = {LOGBUS: {"compression": "lz4"}, KAFKA: {"compression.type": "lz4"}}
TUNED_KAFKA = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "batch.num.messages": 50_000,
    "queue.buffering.max.messages": 1_000_000,
}
HASTY_READING = {
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1_048_576,
    "fetch.message.max.bytes": 8_388_608,
    "fetch.max.bytes": 67_108_864,
}
"""Settings with which confluent-kafka reads a backlog faster.

With its defaults, the client stops fetching for a second when 64 MB or 100,000 messages wait for
the program.
"""
HASTY_TURNS = {"socket.nagle.disable": True, "fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 1}
"""Settings with which confluent-kafka delivers a single record faster."""
FETCHED = {"local_reads": False}
"""Settings with which logbus's consumer fetches, as it would on another machine."""

Options = Mapping[str, Mapping[str, Any]]
"""The settings of each side's client, by side (logbus, Kafka)."""
SENDING: Mapping[str, Options] = {"defaults": {}, "tuned": {KAFKA: TUNED_KAFKA}, "lz4": LZ4}
READING: Mapping[str, Options] = {
    "defaults": {},
    "fetched": {LOGBUS: FETCHED},
    "lz4": {},
    "tuned": {KAFKA: HASTY_READING},
    "tuned, fetched": {LOGBUS: FETCHED, KAFKA: HASTY_READING},
}
TURNS: Mapping[str, Options] = {
    "defaults": {},
    "tuned": {LOGBUS: {"asyncio": True}, KAFKA: HASTY_TURNS},
}
"""Settings by variant of the benchmarks that send (``SENDING``), read a backlog (``READING``) or
pass single records (``TURNS``). In READING, *lz4* only reads compressed topics."""


def work(ask: Mapping[str, Any]) -> Measures:
    """Run ``python_work`` in a new process; return the measures that it prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "peers.python_work", json.dumps(ask)],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{ask['work']} by {ask['client']} failed: {done.stderr[-600:]}")
    found: Measures = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Task:
    """The work of both clients in a benchmark: the name of a function of ``python_work``, the size
    and number of the values that it sends or reads, and the settings of each variant."""

    name: str
    size: int
    count: int
    variants: Mapping[str, Options]


@contextlib.contextmanager
def open_task(bench: Bench, variant: Variant, *, task: Task) -> Iterator[Mapping[str, Side]]:
    """Yield the sides (systems) of the benchmark ``task``. Each run that sends uses a new topic."""
    options = task.variants[variant.name]
    # In benchmarks that only send, a "tuned" variant tunes the clients. The brokers keep their
    # defaults.
    is_tuned = variant.name.startswith("tuned") and task.variants is not SENDING
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="logbus-bench-")
        lines = Path(stack.enter_context(made)) / "values"
        values = bench.lines.sized(VALUES_MB * 1_000_000 // task.size, task.size)
        lines.write_bytes(b"\n".join(values))
        asked = {
            "work": task.name,
            "size": task.size,
            "count": bench.size(task.count),
            "values": str(lines),
        }

        def ask(client: str, side: str, servers: str = "", topic: str = "t") -> Measures:
            where = {"servers": servers, "topic": topic, "options": options.get(side, {})}
            return work({**asked, "client": client, **where})

        filled: dict[Servers, str] = {}

        def run(servers: Servers) -> Measures:
            known = servers in filled
            with contextlib.nullcontext(filled[servers]) if known else servers.topic() as topic:
                return ask(CLIENTS[servers.peer], servers.peer, servers.bootstrap_servers, topic)

        both = bench.both(tuned=is_tuned)
        if task.variants is READING:
            values = bench.lines.sized(asked["count"], task.size)
            for each in both:
                filled[each] = stack.enter_context(each.topic())
                fill(each, filled[each], values, variant.compression)
        sides = {each.peer: Side.of(each, run) for each in both}
        if task.name in ("send", "latency"):
            program, client = ("turns", "bare") if task.name == "latency" else ("silent", "logbus")
            bare = stack.enter_context(BareServer(program, partitions=1))
            sides[FLOOR] = Side.of(bare, lambda bare: ask(client, LOGBUS, bare.bootstrap_servers))
        elif task.name != "batches":
            sides[FLOOR] = Side(partial(ask, "bare", LOGBUS), settings="a loop without a broker")
        yield sides


def fill(servers: Servers, topic: str, values: list[bytes], compression: str) -> None:
    """Write all values to a topic: to logbus as columns with its client, to Kafka as rows with
    confluent-kafka."""
    if isinstance(servers, LogbusServers):
        with servers.bus.producer(compression=compression) as producer:
            producer.send_arrow(topic, pa.table({"value": pa.array(values, pa.binary())})).result()
        return
    sends = ({"topic": topic, "value": value} for value in values)
    send_all(servers.bootstrap_servers, sends, compression_type=compression, **TUNED_KAFKA)


def _row(
    name: str,
    number: int,
    task: Task,
    what: str,
    goals: tuple[Goal, ...],
    bound: str,
    *,
    quick: bool = True,
) -> Row:
    return Row(
        name,
        number,
        f"{what}, {task.size} B",
        goals,
        open=partial(open_task, task=task),
        variants=tuple(
            Variant(
                variant,
                {f"{CLIENTS[side]} client": words(of) for side, of in options.items()},
                "lz4" if variant == "lz4" else "none",
            )
            for variant, options in task.variants.items()
        ),
        bound=bound,
        quick=quick,
    )


SEND = "Python: send with its delivery callback / confluent-kafka's produce with its callback"
SEND_BOUND = (
    "the interpreter, which runs one thread at a time. *At most*: logbus's own client with a "
    "server that answers at once and stores nothing (the side floor)"
)
ROWS = (
    *(
        _row(
            f"python-send-{name}",
            10,
            Task("send", size, count, SENDING),
            SEND,
            (Goal("records_per_s", 1.0),),
            SEND_BOUND,
            quick=name == "100b",
        )
        for name, size, count in (("100b", 100, 500_000), ("1kb", 1000, 100_000))
    ),
    _row(
        "python-table",
        11,
        Task("table", 200, 500_000, SENDING),
        "Python: send_arrow of a table / confluent-kafka, row by row, without callbacks",
        (Goal("records_per_s", 10.0),),
        "the disk: logbus flushes the table, Kafka does not. *At most*: a loop that writes and "
        "flushes the same values (the side floor)",
    ),
    _row(
        "python-records",
        12,
        Task("records", 100, 1_000_000, READING),
        "Python: iterating / confluent-kafka's poll",
        (Goal("records_per_s", 3.0),),
        "the cost of a record in Python. *At most*: a loop that makes as many records of values in "
        "memory (the side floor)",
    ),
    _row(
        "python-batches",
        12,
        Task("batches", 100, 3_000_000, READING),
        "Python: poll_arrow / confluent-kafka's consume(500)",
        (Goal("records_per_s", 10.0),),
        "the client's processor time, most of it the socket's copies: broker and client take turns "
        "every 4 MB",
    ),
    _row(
        "python-latency",
        13,
        Task("latency", 100, 2000, TURNS),
        "Python: produce one record, poll it back, linger 0",
        (Goal("p50_ms", 2.0, "less"), Goal("p99_ms", 1.0, "less")),
        "Python code in client and broker, and eight hand-overs between threads; the flush is the "
        "smaller part. *At least*: a client and a server in Python that only send, write, flush "
        "and answer (the side floor)",
    ),
)
