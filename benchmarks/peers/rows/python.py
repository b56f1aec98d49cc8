"""Rows 10 to 13: logbus's Python client beside confluent-kafka, each against its own broker."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pyarrow as pa

from broker_lite.client import connect
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


def work(ask: Mapping[str, Any]) -> Measures:
    """Let a Python process do it; what it measured."""
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
"""What a user of confluent-kafka changes who reads a backlog: on its defaults it stops to fetch
for a second whenever 64 MB or 100,000 messages wait for the program."""
HASTY_TURNS = {"socket.nagle.disable": True, "fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 1}
"""The same for who waits for single records."""
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


def _servers(bench: Bench) -> list[Servers]:
    return [bench.logbus(), bench.kafka()]


@contextlib.contextmanager
def open_writing(
    bench: Bench, variant: Variant, *, task: str, size: int, count: int
) -> Iterator[Mapping[str, Side]]:
    options = OPTIONS[variant.name]
    with _asked(
        bench, _servers(bench), task=task, size=size, count=count, options=options
    ) as sides:
        yield sides


@contextlib.contextmanager
def _asked(
    bench: Bench,
    both: Sequence[Servers],
    *,
    task: str,
    size: int,
    count: int,
    options: Options,
    floor: BareServer | None = None,
) -> Iterator[Mapping[str, Side]]:
    """Each run in a topic of its own, with values from a file."""
    count = bench.size(count)
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder:
        lines = Path(folder) / "values"
        lines.write_bytes(b"\n".join(bench.lines.sized(VALUES_MB * 1_000_000 // size, size)))

        def ask(client: str, servers: str, topic: str, chosen: Mapping[str, Any]) -> Measures:
            return work(
                {
                    "work": task,
                    "client": client,
                    "servers": servers,
                    "topic": topic,
                    "values": str(lines),
                    "count": count,
                    "size": size,
                    "options": chosen,
                }
            )

        def run(servers: Servers) -> Measures:
            topic, peer = servers.new_topic(), servers.peer
            try:
                return ask(CLIENTS[peer], servers.bootstrap_servers, topic, options[peer])
            finally:
                servers.delete_topic(topic)

        sides = {
            each.peer: Side(partial(run, each), each.processes, each.settings) for each in both
        }
        if floor is not None:
            once = partial(ask, "bare", floor.bootstrap_servers, "", {})
            sides[FLOOR] = Side(once, floor.processes, floor.settings)
        yield sides


@contextlib.contextmanager
def open_turns(bench: Bench, variant: Variant, *, count: int) -> Iterator[Mapping[str, Side]]:
    """One record there and back, again and again."""
    is_tuned = variant.name == "tuned"
    options: Options = {
        LOGBUS: {"asyncio": True} if is_tuned else {},
        KAFKA: HASTY_TURNS if is_tuned else {},
    }
    both: list[Servers] = [bench.logbus(), bench.kafka(tuned=is_tuned)]
    with (
        BareServer("turns") as bare,
        _asked(
            bench,
            both,
            task="latency",
            size=100,
            count=count,
            options=options,
            floor=bare,
        ) as sides,
    ):
        yield sides


OWN = "each side's own client (columns in logbus's log, rows in Kafka's)"
HASTY_WORDS = ", ".join(f"{key}={value}" for key, value in HASTY_READING.items())
READ = {
    "defaults": {"written by": OWN},
    "fetched": {"written by": OWN, "logbus client": "local_reads=False, as on another machine"},
    "rows in both": {"written by": "confluent-kafka to both (rows in both logs)"},
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


def fill(servers: Servers, topic: str, values: list[bytes], *, rows: bool, packed: bool) -> None:
    """All values into a topic, by logbus's own client or by confluent-kafka."""
    if servers.peer == LOGBUS and not rows:
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
def open_reading(
    bench: Bench, variant: Variant, *, task: str, size: int, megabytes: int
) -> Iterator[Mapping[str, Side]]:
    values = bench.lines.sized(bench.size(megabytes * 1_000_000 // size), size)
    sides: dict[str, Side] = {}
    topics = []
    is_tuned = variant.name.startswith("tuned")
    options: Options = {
        LOGBUS: {"local_reads": False} if variant.name.endswith("fetched") else {},
        KAFKA: HASTY_READING if is_tuned else {},
    }
    for each in (bench.logbus(), bench.kafka(tuned=is_tuned)):
        topic = each.new_topic()
        fill(each, topic, values, rows=variant.name == "rows in both",
             packed=variant.name == "lz4")  # fmt: skip
        ask = {
            "work": task,
            "client": CLIENTS[each.peer],
            "servers": each.bootstrap_servers,
            "topic": topic,
            "count": len(values),
            "size": size,
            "options": options[each.peer],
        }
        topics.append((each, topic))
        sides[each.peer] = Side(partial(work, ask), each.processes, each.settings)
    yield sides
    for each, topic in topics:
        each.delete_topic(topic)


def _reading_variant(name: str) -> Variant:
    compression = "lz4" if name == "lz4" else "none"
    return Variant(name, READ[name], {LOGBUS: compression, KAFKA: compression})


def _writing(name: str, number: int, task: str, size: int, megabytes: int, what: str,
             goal: float, variants: tuple[str, ...], bound: str = "") -> Row:  # fmt: skip
    return Row(
        name,
        number,
        f"{what}, {size} B",
        goals=(Goal("records_per_s", goal),),
        open=partial(open_writing, task=task, size=size, count=megabytes * 1_000_000 // size),
        variants=tuple(map(_variant, variants)),
        note=f"{FLUSH_NOTE}; logbus's producer is idempotent by default, confluent-kafka's is not",
        bound=bound,
        quick=name != "python-send-1kb",
    )


def _reading(name: str, task: str, what: str, goal: float, megabytes: int) -> Row:
    return Row(
        name,
        12,
        f"{what}, 100 B",
        goals=tuple(
            Goal("records_per_s", None if name == "rows in both" else goal, variant=name)
            for name in READ
        ),
        open=partial(open_reading, task=task, size=100, megabytes=megabytes),
        variants=tuple(map(_reading_variant, READ)),
        note=IN_PLACE_NOTE,
        bound=(
            "a tuned confluent-kafka reads ahead in threads of its own, so that its poll takes 1.5 "
            "us a record: a third of that is 0.49, of which Python takes 0.25 to make a record and "
            "to leave the position with it; logbus's iteration is at 0.6. Of batches that are "
            "fetched, the client's own processor time, 0.72 ms a MB (poll_sent in "
            "results/client.json), most of it the socket's copies: 1.4 GB/s, 6.8 times a tuned "
            "confluent-kafka; it makes 0.8, for broker and client take turns every 4 MB (README, "
            "the Python client's rows)"
        ),
    )


def _latency() -> Row:
    return Row(
        "python-latency",
        13,
        "Python: produce one record, poll it back, linger 0, 100 B",
        goals=(Goal("p50_ms", 2.0, "less"), Goal("p99_ms", 1.0, "less")),
        open=partial(open_turns, count=2000),
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
            "Python code in client and broker, 0.33 ms of it a record in caches that are cold, and "
            "eight ways from one thread to the next, 0.2 ms. The flush, 0.25 ms, is the lesser "
            "part: *at least* is a client and a server in Python that send, write, flush, answer "
            "and check nothing (the side floor), in the range of Kafka, which waits for no flush. "
            "The slowest are the journal's (README, one record there and back)"
        ),
    )


SEND = "Python: send with its delivery callback / confluent-kafka's produce with its callback"
TABLE = "Python: send_arrow of a table / confluent-kafka, row by row, without callbacks"
SEND_BOUND = (
    "the interpreter, which runs one thread at a time: 0.9 to 1.0 us a record for the call, its "
    "column and its report, while librdkafka's own threads work beside it (README, the Python "
    "client's rows)"
)
SENT = ("defaults", "tuned", "lz4")
ROWS = (
    _writing("python-send-100b", 10, "send", 100, 50, SEND, 1.0, SENT, SEND_BOUND),
    _writing("python-send-1kb", 10, "send", 1000, 100, SEND, 1.0, SENT, SEND_BOUND),
    _writing(
        "python-table",
        11,
        "table",
        200,
        100,
        TABLE,
        10.0,
        ("defaults", "tuned", "lz4"),
        "what a flushed write makes: confluent-kafka sends 140 MB/s, unflushed, so ten times would "
        "be 1,400, and the disk takes 640 to 720 at the best, five times, from a loop of pwrite "
        "and fdatasync (README, what bounds spark_write); send_arrow makes 735 in "
        "results/client.json, in larger runs than these 100 MB; with lz4 the client's compression, "
        "430 MB/s on a core",
    ),
    _reading("python-records", "records", "Python: iterating / confluent-kafka's poll", 3.0, 100),
    _reading(
        "python-batches",
        "batches",
        "Python: poll_arrow / confluent-kafka's consume(500)",
        10.0,
        300,
    ),
    _latency(),
)
