"""The Python programs of benchmarks 10 to 13, with logbus's client or confluent-kafka.

    python -P -m peers.python_work '{"work": "send", "client": "logbus", …}'

Each run is a new process, which prints its measures as one JSON object. Times begin when the client
is connected and end when all records are acknowledged or read.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pyarrow as pa
import pyarrow.compute as pc

from broker_lite.bus import aconnect, connect
from broker_lite.client import Record
from broker_lite.storage.files import OsFiles
from peers import bare
from peers.figures import percentile, timed

WAIT_SECONDS = 60
POLL_EVERY = 500
LATENCY_WARM_UP = 100
PIECE_BYTES = 4 << 20
PIECES_A_FLUSH = 16
ROWS_AT_ONCE = 4_000
"""``PIECE_BYTES`` is the size of a write of the floors (loops that do only the necessary work), and
``PIECES_A_FLUSH`` the number of writes before a flush. With these values a loop of writes is
fastest.

``ROWS_AT_ONCE`` is the number of records in a consumer's buffer.
"""


def rates(count: int, seconds: float) -> dict[str, float]:
    return {"records_per_s": round(count / seconds)}


def endless(ask: dict[str, Any], more: int = 0) -> Iterator[bytes]:
    values = Path(ask["values"]).read_bytes().splitlines()
    return itertools.islice(itertools.cycle(values), ask["count"] + more)


def column(ask: dict[str, Any]) -> pa.Array:
    return pa.array(endless(ask), pa.binary())


@contextmanager
def logbus_producer(ask: dict[str, Any]) -> Iterator[Any]:
    with connect(ask["servers"]) as bus, bus.producer(**ask["options"]) as producer:
        producer.send(ask["topic"], b"first").result()
        yield producer


def send_logbus(ask: dict[str, Any]) -> dict[str, float]:
    """Send records with logbus; each delivery calls a callback."""
    done = 0

    def delivered(future: Any) -> None:
        nonlocal done
        if future.exception() is None:
            done += 1

    with logbus_producer(ask) as producer:
        lines = list(endless(ask))
        topic, send = ask["topic"], producer.send
        began = time.perf_counter()
        for line in lines:
            send(topic, line).add_done_callback(delivered)
        producer.flush()
        took = time.perf_counter() - began
    assert done == len(lines), (done, len(lines))
    return rates(done, took)


def _produced(
    ask: dict[str, Any], lines: Iterable[bytes], on_delivery: Callable[..., None] | None
) -> float:
    """Produce lines with confluent-kafka; return the seconds until all are acknowledged."""
    failed: list[Any] = []
    options = {"error_cb": failed.append, **ask["options"]}
    producer = ck.Producer({"bootstrap.servers": ask["servers"], **options})
    topic = ask["topic"]
    producer.produce(topic, b"first")
    producer.flush(WAIT_SECONDS)
    began = time.perf_counter()
    for number, line in enumerate(lines):
        while True:
            try:
                producer.produce(topic, line, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.01)
        if on_delivery is not None and not number % POLL_EVERY:
            producer.poll(0)
    left = producer.flush(WAIT_SECONDS)
    took = time.perf_counter() - began
    assert not left and not failed, (left, failed)
    return took


def send_confluent(ask: dict[str, Any]) -> dict[str, float]:
    done = 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal done
        if error is None:
            done += 1

    lines = list(endless(ask))
    took = _produced(ask, lines, delivered)
    assert done == len(lines), (done, len(lines))
    return rates(done, took)


def table_logbus(ask: dict[str, Any]) -> dict[str, float]:
    table = pa.table({"value": column(ask)})
    with logbus_producer(ask) as producer:
        return rates(ask["count"], timed(lambda: producer.send_arrow(ask["topic"], table).result()))


def table_confluent(ask: dict[str, Any]) -> dict[str, float]:
    table = pa.table({"value": column(ask)})
    lines = (line for batch in table.to_batches() for line in batch.column(0).to_pylist())
    return rates(ask["count"], _produced(ask, lines, None))


def table_bare(ask: dict[str, Any]) -> dict[str, float]:
    """Write and flush the values in a loop, without client, broker or checks.

    This thread compresses the values; another writes and flushes.
    """
    values, codec = memoryview(column(ask).buffers()[2]), ask["options"].get("compression")
    with (
        tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder,
        ThreadPoolExecutor(1) as disk,
    ):
        file = OsFiles().create(f"{folder}/log")
        began = time.perf_counter()
        written = []
        for number, at in enumerate(range(0, len(values), PIECE_BYTES), 1):
            piece = values[at : at + PIECE_BYTES]
            packed = pa.compress(piece, codec) if codec else piece
            written.append(disk.submit(file.append, [packed], keep=False))
            if number % PIECES_A_FLUSH == 0:
                written.append(disk.submit(file.datasync))
        written.append(disk.submit(file.datasync))
        for each in written:
            each.result()
        took = time.perf_counter() - began
    return rates(ask["count"], took)


def records_bare(ask: dict[str, Any]) -> dict[str, float]:
    """Create records from values in memory, as logbus's consumer does; return the rate."""
    values = column(ask)
    size, repeat = 0, itertools.repeat
    began = time.perf_counter()
    for at in range(0, ask["count"], ROWS_AT_ONCE):
        taken = values.slice(at, ROWS_AT_ONCE).to_pylist()
        offsets, headers = range(at, at + len(taken)), ([] for _ in taken)
        rows = zip(repeat("t"), repeat(0), offsets, repeat(1), repeat(None), taken, headers)
        for record in map(Record._make, rows):
            size += len(record.value)
    return rates(ask["count"], time.perf_counter() - began)


@contextmanager
def logbus_consumer(ask: dict[str, Any]) -> Iterator[Any]:
    with (
        connect(ask["servers"]) as bus,
        bus.consumer(ask["topic"], start="earliest", **ask["options"]) as consumer,
    ):
        yield consumer


@contextmanager
def confluent_consumer(ask: dict[str, Any], start: int = 0) -> Iterator[Any]:
    """Yield a confluent-kafka consumer of partition 0 that has already read the record at offset
    ``start``."""
    settings = {"group.id": "bench", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = ck.Consumer({"bootstrap.servers": ask["servers"], **settings, **ask["options"]})
    consumer.assign([ck.TopicPartition(ask["topic"], 0, start)])
    _polled(consumer)
    try:
        yield consumer
    finally:
        consumer.close()


def _polled(consumer: Any) -> Any:
    message = consumer.poll(WAIT_SECONDS)
    assert message is not None and message.error() is None, message
    return message


def records_logbus(ask: dict[str, Any]) -> dict[str, float]:
    with logbus_consumer(ask) as consumer:
        records = iter(consumer)
        next(records)
        count, size = ask["count"] - 1, 0
        began = time.perf_counter()
        for record in itertools.islice(records, count):
            size += len(record.value)
        return rates(count, time.perf_counter() - began)


def records_confluent(ask: dict[str, Any]) -> dict[str, float]:
    with confluent_consumer(ask) as consumer:
        poll, count, size = consumer.poll, ask["count"] - 1, 0
        began = time.perf_counter()
        for _ in range(count):
            message = poll(WAIT_SECONDS)
            if message.error() is not None:
                raise ck.KafkaException(message.error())
            size += len(message.value())
        return rates(count, time.perf_counter() - began)


def batches_logbus(ask: dict[str, Any]) -> dict[str, float]:
    with logbus_consumer(ask) as consumer:
        count = left = ask["count"] - consumer.poll_arrow(WAIT_SECONDS).num_rows
        size = 0
        began = time.perf_counter()
        while left > 0:
            batch = consumer.poll_arrow(WAIT_SECONDS)
            assert batch.num_rows
            size += pc.sum(pc.binary_length(batch.column("value"))).as_py()
            left -= batch.num_rows
        return rates(count, time.perf_counter() - began)


def batches_confluent(ask: dict[str, Any]) -> dict[str, float]:
    with confluent_consumer(ask) as consumer:
        count = left = ask["count"] - 1
        size = 0
        began = time.perf_counter()
        while left > 0:
            messages = consumer.consume(min(500, left), WAIT_SECONDS)
            assert messages
            for message in messages:
                if message.error() is not None:
                    raise ck.KafkaException(message.error())
                size += len(message.value())
            left -= len(messages)
        return rates(count, time.perf_counter() - began)


def _ranked(seconds: list[float]) -> dict[str, float]:
    counted = [1000 * each for each in seconds[LATENCY_WARM_UP:]]
    return {f"p{each}_ms": round(percentile(counted, each), 3) for each in (50, 99)}


def _latency(once: Callable[[bytes], None], ask: dict[str, Any]) -> dict[str, float]:
    return _ranked([timed(once, line) for line in endless(ask, LATENCY_WARM_UP)])


def latency_logbus(ask: dict[str, Any]) -> dict[str, float]:
    if ask["options"].get("asyncio"):
        return asyncio.run(_latency_asyncio(ask))
    topic = ask["topic"]
    with (
        connect(ask["servers"]) as bus,
        bus.producer(linger_ms=0) as producer,
        bus.consumer(topic) as consumer,
    ):
        producer.send(topic, b"first").result()
        while not consumer.poll(1.0):
            pass

        def once(line: bytes) -> None:
            future = producer.send(topic, line)
            while not (found := consumer.poll(1.0)):
                pass
            assert found[0].value == line
            future.result()

        return _latency(once, ask)


async def _latency_asyncio(ask: dict[str, Any]) -> dict[str, float]:
    """Measure the latency of the asyncio client, which passes no records between threads."""
    topic, taken = ask["topic"], []
    async with (
        await aconnect(ask["servers"]) as bus,
        bus.producer(linger_ms=0) as producer,
        bus.consumer(topic) as consumer,
    ):
        await producer.send(topic, b"first")
        while not await consumer.poll(1.0):
            pass
        for line in endless(ask, LATENCY_WARM_UP):
            began = time.perf_counter()
            sent = producer.send(topic, line)
            while not (found := await consumer.poll(1.0)):
                pass
            assert found[0].value == line
            await sent
            taken.append(time.perf_counter() - began)
    return _ranked(taken)


def latency_confluent(ask: dict[str, Any]) -> dict[str, float]:
    topic = ask["topic"]
    common = {key: value for key, value in ask["options"].items() if not key.startswith("fetch.")}
    producer = ck.Producer({"bootstrap.servers": ask["servers"], "linger.ms": 0, **common})
    where: list[Any] = []
    producer.produce(topic, b"first", on_delivery=lambda _, message: where.append(message))
    producer.flush(WAIT_SECONDS)
    with confluent_consumer(ask, where[0].offset()) as consumer:

        def once(line: bytes) -> None:
            producer.produce(topic, line)
            assert _polled(consumer).value() == line
            producer.poll(0)

        found = _latency(once, ask)
        producer.flush(WAIT_SECONDS)
    return found


def latency_bare(ask: dict[str, Any]) -> dict[str, float]:
    """Measure the latency of a record through a minimal server, over two sockets and without a
    client."""
    host, _, port = ask["servers"].rpartition(":")
    with (
        socket.create_connection((host, int(port))) as sender,
        socket.create_connection((host, int(port))) as reader,
    ):
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def once(line: bytes) -> None:
            sender.sendall(bare.framed(line))
            assert bare.received(reader) == line
            assert bare.received(sender)

        return _latency(once, ask)


def main() -> None:
    ask = json.loads(sys.argv[1])
    print(json.dumps(globals()[f"{ask['work']}_{ask['client']}"](ask)))


if __name__ == "__main__":
    main()
