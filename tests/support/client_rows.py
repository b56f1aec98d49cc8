"""Adapters with which tests write and read rows of partition 0 through third-party clients.

This module has the adapters of Python clients; ``program_rows`` has those of clients that are
programs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import NamedTuple

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition

WAIT_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Header = tuple[str, bytes | None]


class Row(NamedTuple):
    """A record. ``timestamp_ms`` is None if the client cannot set or return timestamps."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None


T0 = 1_700_000_000_000
SPECIAL = [
    Row(b"k1", b"value " * 50, (("h", b"1"), ("h", b"2")), T0),
    Row(None, b"no key", (), T0 + 1),
    Row(b"gone", None, (), T0 + 2),
    Row(None, None, (), T0 + 3),
    Row(b"", b"", (), T0 + 4),
    Row(b"k2", b"\x00\xff", (("binary", b"\x00\xff"), ("null", None)), T0 + 5),
    Row(b"k3", b"three", (("a", b"1"), ("b", b"2")), T0 + 6),
]
ROWS = SPECIAL + [Row(b"k%d" % n, b"row %d" % n, (), T0 + 10 + n) for n in range(100)]


class RowClient(ABC):
    """The adapter of one client.

    ``codecs`` are the compression codecs that the client supports. ``name`` is its key in the
    result of ``client_programs.names``.
    """

    name: str
    codecs: tuple[str, ...] = CODECS

    def __init__(self, servers: str) -> None:
        self.servers = servers

    def writable(self, rows: list[Row]) -> list[Row]:
        """Return those of the rows that this client is able to write."""
        return rows

    def seen(self, row: Row) -> Row:
        """Return a stored row as the client returns it to its user."""
        return row

    @abstractmethod
    def write(self, topic: str, rows: list[Row], codec: str) -> None:
        """Write rows; return when all are acknowledged."""

    @abstractmethod
    def read(self, topic: str, start: int, count: int) -> list[Row]:
        """Read ``count`` rows of partition 0 from offset ``start``."""


class Librdkafka(RowClient):
    name = "librdkafka"

    def write(self, topic: str, rows: list[Row], codec: str) -> None:
        failed: list[object] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.servers, "compression.type": codec, "linger.ms": 20}
        )
        for row in rows:
            producer.produce(
                topic, row.value, row.key, 0, timestamp=row.timestamp_ms or 0,
                headers=list(row.headers),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(WAIT_S) == 0 and not failed, failed

    def read(self, topic: str, start: int, count: int) -> list[Row]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.servers, "group.id": "not-used", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        first = consumer.poll(WAIT_S)
        assert first is not None and first.offset() == 0
        consumer.seek(confluent_kafka.TopicPartition(topic, 0, start))
        rows: list[Row] = []
        while len(rows) < count:
            message = consumer.poll(WAIT_S)
            assert message is not None and message.error() is None, message
            headers = tuple(message.headers() or ())
            rows.append(Row(message.key(), message.value(), headers, message.timestamp()[1]))
        consumer.close()
        return rows


class KafkaPython(RowClient):
    """kafka-python. It refuses null headers, and, like aiokafka, records without key and value."""

    name = "kafka-python"
    codecs = tuple(
        codec for codec in CODECS
        if codec == "none" or getattr(kafka.codec, f"has_{codec}")()
    )  # fmt: skip
    """The codecs whose optional packages are installed."""

    def writable(self, rows: list[Row]) -> list[Row]:
        whole = [row for row in rows if row.key is not None or row.value is not None]
        return [row for row in whole if all(value is not None for _, value in row.headers)]

    def write(self, topic: str, rows: list[Row], codec: str) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.servers,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
        )
        sent = [
            producer.send(
                topic, row.value, row.key, list(row.headers), partition=0,
                timestamp_ms=row.timestamp_ms,
            )
            for row in rows
        ]  # fmt: skip
        assert [future.get(WAIT_S).offset for future in sent] == list(range(len(rows)))
        producer.close()

    def read(self, topic: str, start: int, count: int) -> list[Row]:
        tp = kafka.TopicPartition(topic, 0)
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.servers)
        consumer.assign([tp])
        consumer.seek(tp, start)
        rows: list[Row] = []
        while len(rows) < count:
            found = consumer.poll(timeout_ms=int(WAIT_S * 1000)).get(tp, [])
            assert found
            rows += [Row(r.key, r.value, tuple(r.headers), r.timestamp) for r in found]
        consumer.close()
        return rows[:count]


class Aiokafka(RowClient):
    name = "aiokafka"

    def writable(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if row.key is not None or row.value is not None]

    def write(self, topic: str, rows: list[Row], codec: str) -> None:
        asyncio.run(self._write(topic, rows, codec))

    async def _write(self, topic: str, rows: list[Row], codec: str) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.servers,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            acks="all",
        )
        async with producer:
            sent = [
                await producer.send(
                    topic, row.value, row.key, partition=0, timestamp_ms=row.timestamp_ms,
                    headers=list(row.headers),
                )
                for row in rows
            ]  # fmt: skip
            await asyncio.wait_for(asyncio.gather(*sent), WAIT_S)

    def read(self, topic: str, start: int, count: int) -> list[Row]:
        return asyncio.run(self._read(topic, start, count))

    async def _read(self, topic: str, start: int, count: int) -> list[Row]:
        tp = AioTopicPartition(topic, 0)
        consumer = AIOKafkaConsumer(bootstrap_servers=self.servers)
        consumer.assign([tp])
        rows: list[Row] = []
        async with consumer, asyncio.timeout(WAIT_S):
            consumer.seek(tp, start)
            while len(rows) < count:
                for r in (await consumer.getmany(tp, timeout_ms=500)).get(tp, []):
                    rows.append(Row(r.key, r.value, tuple(r.headers), r.timestamp))
        return rows[:count]
