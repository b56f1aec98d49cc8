"""Benchmarks 10 to 13: logbus's Python client and confluent-kafka, each with its own broker."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pyarrow as pa

from broker_lite.bus import connect
from peers.bare import BareServer
from peers.bench import Bench
from peers.row import FLOOR, KAFKA, LOGBUS, Goal, Measures, Row, Side, Variant
from peers.rows.produce import FLUSH_NOTE
from peers.servers import KafkaServers, LogbusServers

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
Options = Mapping[str, Mapping[str, Any]]
Servers = LogbusServers | KafkaServers
Ask = Callable[..., Measures]
LOOP = "a loop that writes the same values and flushes them, in pieces of 4 MB; no broker"
MAKING = "records made of values that are in memory, as logbus's consumer makes them; no broker"


def work(ask: Mapping[str, Any]) -> Measures:
    """Run ``python_work`` in a new process; return its measures."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "peers.python_work", json.dumps(ask)],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{ask['work']} by {ask['client']}: {done.stderr[-600:]}")
    found: Measures = json.loads(done.stdout)
    return found


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
OPTIONS: Mapping[str, Options] = {
    "defaults": {LOGBUS: {}, KAFKA: {}},
    "tuned": {LOGBUS: {}, KAFKA: TUNED_KAFKA},
    "lz4": LZ4,
}


def _variant(name: str) -> Variant:
    options = OPTIONS[name]
    words = {
        f"{CLIENTS[side]} client": ", ".join(f"{k}={v}" for k, v in options[side].items())
        or "its defaults"
        for side in CLIENTS
    }
    compression = "lz4" if name == "lz4" else "none"
    return Variant(name, words, {LOGBUS: compression, KAFKA: compression})


@dataclass(frozen=True)
class Task:
    """The work of both clients in a benchmark: the name of a function of ``python_work``, and the
    size and number of the values that it sends or reads."""

    name: str
    size: int
    count: int

    def asked(self, bench: Bench, client: str, **more: Any) -> Mapping[str, Any]:
        """Return the arguments of ``python_work`` for a client."""
        count = bench.size(self.count)
        return {"work": self.name, "client": client, "size": self.size, "count": count, **more}


@contextlib.contextmanager
def open_writing(bench: Bench, variant: Variant, *, task: Task) -> Iterator[Mapping[str, Side]]:
    options = OPTIONS[variant.name]
    both: list[Servers] = [bench.logbus(), bench.kafka()]
    with contextlib.ExitStack() as stack:
        ask = stack.enter_context(_asking(bench, task))
        if task.name == "table":
            floor = Side(partial(ask, "bare", options=options[LOGBUS]), settings=LOOP)
        else:
            bare = stack.enter_context(BareServer("silent", partitions=1))
            floor = _beside(bare, ask, client=CLIENTS[LOGBUS], options=options[LOGBUS])
        yield _in_turns(both, ask, options) | {FLOOR: floor}


@contextlib.contextmanager
def open_turns(bench: Bench, variant: Variant, *, task: Task) -> Iterator[Mapping[str, Side]]:
    """Open the benchmark in which a client repeatedly sends one record and then polls it."""
    is_tuned = variant.name == "tuned"
    options: Options = {
        LOGBUS: {"asyncio": True} if is_tuned else {},
        KAFKA: HASTY_TURNS if is_tuned else {},
    }
    both: list[Servers] = [bench.logbus(), bench.kafka(tuned=is_tuned)]
    with BareServer("turns") as bare, _asking(bench, task) as ask:
        yield _in_turns(both, ask, options) | {FLOOR: _beside(bare, ask, client="bare", options={})}


@contextlib.contextmanager
def _asking(bench: Bench, task: Task) -> Iterator[Ask]:
    """Yield a function that runs the work of ``task`` once, with the client that its argument
    names. The values to send come from a file."""
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder:
        lines = Path(folder) / "values"
        values = bench.lines.sized(VALUES_MB * 1_000_000 // task.size, task.size)
        lines.write_bytes(b"\n".join(values))

        def ask(client: str, **more: Any) -> Measures:
            return work(task.asked(bench, client, values=str(lines), **more))

        yield ask


def _in_turns(both: Sequence[Servers], ask: Ask, options: Options) -> dict[str, Side]:
    """Return a side for each client. Each run uses a topic of its own."""

    def run(servers: Servers) -> Measures:
        topic, peer = servers.new_topic(), servers.peer
        where = {"servers": servers.bootstrap_servers, "topic": topic}
        try:
            return ask(CLIENTS[peer], **where, options=options[peer])
        finally:
            servers.delete_topic(topic)

    return {each.peer: Side(partial(run, each), each.processes, each.settings) for each in both}


def _beside(bare: BareServer, ask: Ask, *, client: str, options: Mapping[str, Any]) -> Side:
    """Return the side of a client that uses a minimal server instead of a broker."""
    where = {"servers": bare.bootstrap_servers, "topic": "t"}
    run = partial(ask, client, **where, options=options)
    whose = "logbus's own client; " if client != "bare" else ""
    return Side(run, bare.processes, f"{whose}{bare.settings}")


OWN = "each side's own client (columns in logbus's log, rows in Kafka's)"
HASTY_WORDS = ", ".join(f"{key}={value}" for key, value in HASTY_READING.items())
READ = {
    "defaults": {"written by": OWN},
    "fetched": {"written by": OWN, "logbus client": "local_reads=False, as on another machine"},
    "lz4": {"written by": f"{OWN}, lz4"},
    "tuned": {"written by": OWN, "logbus client": "its defaults", "confluent client": HASTY_WORDS},
    "tuned, fetched": {
        "written by": OWN,
        "logbus client": "local_reads=False, as on another machine",
        "confluent client": HASTY_WORDS,
    },
}
IN_PLACE_NOTE = (
    "logbus's consumer is on the broker's machine here and reads its files in place, unless "
    "fetched; checksums and structure are checked by it in any case; both programs ask for the "
    "length of every value, one by a column, the other by a loop; confluent-kafka's processes "
    "wait for more than half of their time on its defaults (cpu_s), so by processor time alone "
    "the ratio is smaller: for batches 5 to 6 in place, 3.4 fetched"
)


def fill(servers: Servers, topic: str, values: list[bytes], *, packed: bool) -> None:
    """Write all values to a topic: to logbus as columns with its client, to Kafka as rows with
    confluent-kafka."""
    if servers.peer == LOGBUS:
        with (
            connect(servers.bootstrap_servers) as bus,
            bus.producer(**(LZ4[LOGBUS] if packed else {})) as producer,
        ):
            producer.send_arrow(topic, pa.table({"value": pa.array(values, pa.binary())})).result()
        return
    options: dict[str, Any] = {**TUNED_KAFKA, **(LZ4[KAFKA] if packed else {})}
    producer = ck.Producer({"bootstrap.servers": servers.bootstrap_servers, **options})
    for value in values:
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    assert not producer.flush(RUN_SECONDS)


@contextlib.contextmanager
def open_reading(bench: Bench, variant: Variant, *, task: Task) -> Iterator[Mapping[str, Side]]:
    values = bench.lines.sized(bench.size(task.count), task.size)
    sides: dict[str, Side] = {}
    topics = []
    is_tuned = variant.name.startswith("tuned")
    options: Options = {
        LOGBUS: {"local_reads": False} if variant.name.endswith("fetched") else {},
        KAFKA: HASTY_READING if is_tuned else {},
    }
    for each in (bench.logbus(), bench.kafka(tuned=is_tuned)):
        topic = each.new_topic()
        fill(each, topic, values, packed=variant.name == "lz4")
        where = {"servers": each.bootstrap_servers, "topic": topic}
        asked = task.asked(bench, CLIENTS[each.peer], **where, options=options[each.peer])
        topics.append((each, topic))
        sides[each.peer] = Side(partial(work, asked), each.processes, each.settings)
    with contextlib.ExitStack() as stack:
        if task.name == "records":
            ask = stack.enter_context(_asking(bench, task))
            sides[FLOOR] = Side(partial(ask, "bare"), settings=MAKING)
        yield sides
    for each, topic in topics:
        each.delete_topic(topic)


def _reading_variant(name: str) -> Variant:
    compression = "lz4" if name == "lz4" else "none"
    return Variant(name, READ[name], {LOGBUS: compression, KAFKA: compression})


def _writing(name: str, number: int, task: Task, what: str, *, goal: float, bound: str) -> Row:
    return Row(
        name,
        number,
        f"{what}, {task.size} B",
        goals=(Goal("records_per_s", goal),),
        open=partial(open_writing, task=task),
        variants=tuple(map(_variant, OPTIONS)),
        note=f"{FLUSH_NOTE}; logbus's producer is idempotent by default, confluent-kafka's is not",
        bound=bound,
        quick=name != "python-send-1kb",
    )


def _reading(name: str, task: Task, what: str, *, goal: float, bound: str, **more: Any) -> Row:
    return Row(
        name,
        12,
        f"{what}, {task.size} B",
        goals=(Goal("records_per_s", goal),),
        open=partial(open_reading, task=task),
        variants=tuple(map(_reading_variant, READ)),
        note=IN_PLACE_NOTE,
        bound=bound,
        **more,
    )


def _latency() -> Row:
    return Row(
        "python-latency",
        13,
        "Python: produce one record, poll it back, linger 0, 100 B",
        goals=(Goal("p50_ms", 2.0, "less"), Goal("p99_ms", 1.0, "less")),
        open=partial(open_turns, task=Task("latency", 100, 2000)),
        variants=(
            Variant(settings={"clients": "linger 0, all else their defaults"}),
            Variant(
                "tuned",
                {
                    "logbus client": "linger 0, its asyncio face",
                    "confluent client": "linger 0, "
                    + ", ".join(f"{key}={value}" for key, value in HASTY_TURNS.items()),
                },
            ),
        ),
        note=FLUSH_NOTE,
        bound=(
            "Python code in client and broker, and eight hand-overs between threads; the flush is "
            "the smaller part. *At least*: a client and a server in Python that only send, write, "
            "flush and answer (the side floor)"
        ),
    )


SEND = "Python: send with its delivery callback / confluent-kafka's produce with its callback"
TABLE = "Python: send_arrow of a table / confluent-kafka, row by row, without callbacks"
SEND_BOUND = (
    "the interpreter, which runs one thread at a time. *At most*: logbus's own client with a "
    "server that answers at once and stores nothing (the side floor)"
)
TABLE_BOUND = (
    "the disk: logbus flushes the table, Kafka does not. *At most*: a loop that writes and flushes "
    "the same values (the side floor)"
)
RECORDS_BOUND = (
    "the cost of a record in Python. *At most*: a loop that makes as many records of values in "
    "memory (the side floor)"
)
BATCHES_BOUND = (
    "the client's processor time, most of it the socket's copies: broker and client take turns "
    "every 4 MB"
)
ROWS = (
    _writing("python-send-100b", 10, Task("send", 100, 500_000), SEND, goal=1.0, bound=SEND_BOUND),
    _writing("python-send-1kb", 10, Task("send", 1000, 100_000), SEND, goal=1.0, bound=SEND_BOUND),
    _writing("python-table", 11, Task("table", 200, 500_000), TABLE, goal=10.0, bound=TABLE_BOUND),
    _reading(
        "python-records",
        Task("records", 100, 1_000_000),
        "Python: iterating / confluent-kafka's poll",
        goal=3.0,
        bound=RECORDS_BOUND,
    ),
    _reading(
        "python-batches",
        Task("batches", 100, 3_000_000),
        "Python: poll_arrow / confluent-kafka's consume(500)",
        goal=10.0,
        bound=BATCHES_BOUND,
    ),
    _latency(),
)
