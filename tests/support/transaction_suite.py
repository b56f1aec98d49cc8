"""Tests of the client's transactions that run on logbus and on Apache Kafka.

librdkafka reads the visible records. A module that imports these tests must define the fixtures
``servers`` (bootstrap servers) and ``bus``.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker_lite.bus import Bus, aconnect
from broker_lite.client.consuming.changes import MemberIdentity
from broker_lite.client.consuming.membership import MemberOffsets
from broker_lite.client.producing.aio_producer import AsyncProducer
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    FencedError,
    IllegalGenerationError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    LogbusError,
    MessageTooLargeError,
    TransactionAbortedError,
    UnknownMemberIdError,
)
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.record import arrow
from support import row_batches
from support.faces import Face

TESTS = Path(__file__).parents[1]
WAIT_SECONDS = 30

HALF = """
import sys
from broker_lite.bus import connect

if sys.argv[4] == "rows":
    from support import row_batches
    from broker_lite.record import arrow

    arrow.encode = row_batches.encode_rows
producer = connect(sys.argv[1]).producer(transactional_id=sys.argv[3])
producer.begin()
producer.send(sys.argv[2], "of the killed client").result()
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def topic(servers: str) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    return name


def batches() -> str:
    """Return "columns" or "rows": the batch format that producers of this process write. Apache
    Kafka stores only rows.
    """
    return "columns" if arrow.encode is row_batches.encode_columns else "rows"


def visible(servers: str, topic: str, count: int = 0) -> list[str]:
    """Return all values that librdkafka reads with isolation level read_committed, sorted.

    Wait until there are ``count`` values at least: Kafka answers a commit before it has written the
    markers, which make the records visible.
    """
    reader = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([ck.TopicPartition(topic, each, 0) for each in (0, 1)])
    ended: set[int] = set()
    found = []
    while len(ended) < 2 or len(found) < count:
        message = reader.poll(WAIT_SECONDS)
        assert message is not None, found
        if message.error() is None:
            found.append(message.value().decode())
        else:
            assert message.error().code() == ck.KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
    reader.close()
    return sorted(found)


def committed(servers: str, group: str, topic: str) -> dict[int, int]:
    reader = ck.Consumer({"bootstrap.servers": servers, "group.id": group})
    asked = [ck.TopicPartition(topic, each) for each in (0, 1)]
    found = {row.partition: row.offset for row in reader.committed(asked, WAIT_SECONDS)}
    reader.close()
    return found


@pytest.fixture
def face_bus(face: Face, servers: str) -> Iterator[Any]:
    """A client of the kind ``face``: blocking or asyncio."""
    with face.connect(servers) as connected:
        yield connected


def test_records_of_committed_transactions_are_visible_and_of_aborted_ones_not(
    face_bus: Bus, servers: str, topic: str
) -> None:
    with pytest.raises(ZeroDivisionError), face_bus.transaction("x-" + topic) as txn:
        txn.send(topic, "aborted").result()
        raise ZeroDivisionError
    for turn in range(3):
        with face_bus.transaction("x-" + topic) as txn:
            for partition in (0, 1):
                txn.send(topic, f"{turn} {partition}", partition=partition)
            txn.send_arrow(topic, pa.table({"value": [f"{turn} arrow"]}), partition=0)
    with pytest.raises(InvalidTxnStateError, match="this transaction has ended"):
        txn.send(topic, "late")
    with face_bus.transaction("x-" + topic):
        pass
    want = [f"{turn} {what}" for turn in range(3) for what in ("0", "1", "arrow")]
    assert visible(servers, topic, len(want)) == sorted(want)


def test_back_to_back_transactions_show_only_committed_records(
    bus: Bus, servers: str, topic: str
) -> None:
    """The markers of a transaction may arrive after the first batches of the next transaction."""
    for turn in range(20):
        with bus.transaction("x-" + topic) as txn:
            for each in range(4):
                txn.send(topic, f"{turn:02} {each}", partition=each % 2)
            if turn % 2:
                txn.abort()
    want = [f"{turn:02} {each}" for turn in range(0, 20, 2) for each in range(4)]
    assert visible(servers, topic, len(want)) == want


def test_offsets_of_a_transaction_are_committed_with_it(
    face_bus: Bus, servers: str, topic: str
) -> None:
    group = "g-" + topic
    with face_bus.transaction("in-" + topic) as txn:
        txn.send(topic, "1", partition=0)
        txn.send(topic, "2", partition=0)
    with (
        face_bus.consumer(topic, group=group, start="earliest", auto_commit=False) as consumer,
        face_bus.producer(transactional_id="out-" + topic) as producer,
    ):
        got = consumer.poll(20.0)
        while len(got) < 2:
            got += consumer.poll(20.0)
        producer.begin()
        producer.send(topic, "copy", partition=1)
        producer.send_offsets(consumer)
        producer.abort()
        assert committed(servers, group, topic)[0] == ck.OFFSET_INVALID
        producer.begin()
        producer.send(topic, "copied", partition=1)
        producer.send_offsets(consumer)
        producer.commit()
    assert committed(servers, group, topic)[0] >= 2
    assert visible(servers, topic, 3) == ["1", "2", "copied"]


def test_offsets_given_by_partition_are_committed_for_the_named_group(
    face_bus: Bus, servers: str, topic: str
) -> None:
    with face_bus.transaction("x-" + topic) as txn:
        txn.send_offsets({TopicPartition(topic, 1): 7}, group="rows-" + topic)
    assert committed(servers, "rows-" + topic, topic)[1] == 7


def test_a_newer_producer_fences_the_older_one(bus: Bus, servers: str, topic: str) -> None:
    name = "x-" + topic
    first, second = (bus.producer(transactional_id=name) for _ in range(2))
    first.begin()
    first.send(topic, "of the first").result()
    second.begin()
    second.send(topic, "of the second").result()
    with pytest.raises(FencedError, match=f"transactional id '{name}' cannot continue"):
        first.commit()
    second.commit()
    with pytest.raises(FencedError):
        first.begin()
    first.close()
    second.close()
    assert visible(servers, topic, 1) == ["of the second"]


def test_a_transaction_of_a_killed_client_is_aborted_by_its_successor(
    bus: Bus, servers: str, topic: str
) -> None:
    name = "x-" + topic
    child = subprocess.Popen(
        [sys.executable, "-c", HALF, servers, topic, name, batches()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"sent\n"
    finally:
        child.kill()
        child.communicate()
    with bus.transaction(name) as txn:
        txn.send(topic, "of the successor")
    assert visible(servers, topic, 1) == ["of the successor"]


def test_empty_transaction_aborts_the_open_one_with_the_same_transactional_id(
    bus: Bus, servers: str, topic: str
) -> None:
    """Regression: after a program was killed and restarted, its consumer waited until the
    transaction of the killed process timed out."""
    name, group = "x-" + topic, "g-" + topic
    with bus.producer() as producer:
        producer.send(topic, "1", partition=0)
    left = bus.producer(transactional_id=name, transaction_timeout_ms=600_000)
    left.begin()
    left.send(topic, "copy", partition=1)
    left.send_offsets({TopicPartition(topic, 0): 1}, group=group)
    with bus.transaction(name):
        pass
    with bus.consumer(topic, group=group, start="earliest", auto_commit=False) as consumer:
        assert [row.value for row in consumer.poll(60.0)] == [b"1"]
    with pytest.raises(FencedError):
        left.commit()
    left.close()


def test_producer_can_continue_after_its_transaction_timed_out(
    bus: Bus, servers: str, topic: str
) -> None:
    """The coordinator aborts the transaction. Kafka's coordinator looks for expired transactions
    only every 10 s.

    The abort may bump the epoch and so fence the producer. In this case only a new producer can
    continue.
    """
    producer = bus.producer(transactional_id="x-" + topic, transaction_timeout_ms=1_000)
    producer.begin()
    producer.send(topic, "late").result()
    reader = ck.Consumer(
        {"bootstrap.servers": servers, "group.id": "w", "auto.offset.reset": "earliest"}
    )
    reader.assign([ck.TopicPartition(topic, each, 0) for each in (0, 1)])
    low_high: list[Any] = []
    for _ in range(300):
        low_high = [reader.get_watermark_offsets(ck.TopicPartition(topic, each)) for each in (0, 1)]
        if sum(high for _, high in low_high) == 2:  # The record and the abort marker are there.
            break
        reader.poll(0.1)
    reader.close()
    with pytest.raises((TransactionAbortedError, FencedError)) as caught:
        producer.commit()
    if isinstance(caught.value, FencedError):
        producer.close()
        producer = bus.producer(transactional_id="x-" + topic)
    producer.begin()
    producer.send(topic, "second")
    producer.commit()
    producer.close()
    assert visible(servers, topic, 1) == ["second"]


def test_transaction_timeout_above_the_brokers_maximum_is_refused(bus: Bus) -> None:
    with (
        pytest.raises(
            InvalidTransactionTimeoutError, match="lower the producer's setting, or raise"
        ),
        bus.transaction("x", timeout_ms=1 << 30),
    ):
        pass


def test_offsets_of_an_outdated_group_member_are_refused(
    bus: Bus, servers: str, topic: str
) -> None:
    group = "g-" + topic
    with (
        bus.consumer(topic, group=group, start="earliest", auto_commit=False) as consumer,
        bus.producer(transactional_id="x-" + topic) as producer,
    ):
        consumer.poll(1.0)
        found = consumer.group_offsets()
        member_id, generation, _ = found.identity
        producer.begin()
        for wrong, error in (
            (MemberIdentity(member_id, generation + 1, None), IllegalGenerationError),
            (MemberIdentity("nobody", generation, None), UnknownMemberIdError),
        ):
            rows = {TopicPartition(topic, 0): CommittedOffset(0)}
            stale = found._replace(identity=wrong, offsets=rows)
            with pytest.raises(error, match="read on from the group's committed offsets"):
                producer.send_offsets(Stale(consumer.config, stale))
            producer.abort()
            producer.begin()
        producer.abort()


class Stale(NamedTuple):
    """Stands for a consumer whose member id or generation is outdated."""

    config: ConsumerConfig
    offsets: MemberOffsets

    def group_offsets(self) -> MemberOffsets:
        return self.offsets


def test_asyncio_commit_fails_if_a_record_of_the_transaction_was_refused(
    servers: str, topic: str
) -> None:
    """A caller that awaits only the commit must learn that a record was refused."""

    async def run() -> None:
        async with await aconnect(servers, max_request_bytes=1 << 20) as bus:
            with pytest.raises(TransactionAbortedError, match=r"max\.request\.size"):
                async with bus.transaction("x-" + topic) as txn:
                    before = txn.send(topic, "sent before")
                    refused = txn.send(topic, "v" * 2_000_000)
            await asyncio.wait([before])
            assert before.exception() is None or isinstance(before.exception(), LogbusError)
            assert isinstance(refused.exception(), MessageTooLargeError)
            async with bus.transaction("x-" + topic) as txn:
                txn.send(topic, "next")

    asyncio.run(run())
    assert visible(servers, topic, 1) == ["next"]


def test_asyncio_producer_drops_waiting_records_when_their_transaction_aborts(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record waits for buffer space while its transaction is aborted."""
    watch_space = AsyncProducer._watch_space

    def watch_late(producer: AsyncProducer) -> None:
        asyncio.get_running_loop().call_later(0.3, watch_space, producer)

    monkeypatch.setattr(AsyncProducer, "_watch_space", watch_late)

    async def run() -> None:
        async with await aconnect(servers, buffer_bytes=1 << 20) as bus:
            with pytest.raises(ZeroDivisionError):
                async with bus.transaction("x-" + topic) as txn:
                    waiting = [txn.send(topic, "v" * 100_000) for _ in range(30)]
                    raise ZeroDivisionError
            async with bus.transaction("x-" + topic) as txn:
                await asyncio.sleep(0.5)
                txn.send(topic, "next")
            assert {type(each.exception()) for each in waiting} <= {
                TransactionAbortedError,
                InvalidTxnStateError,
            }

    asyncio.run(run())
    assert visible(servers, topic, 1) == ["next"]


def test_a_record_for_a_missing_topic_aborts_the_transaction(
    bus: Bus, servers: str, topic: str
) -> None:
    producer = bus.producer(transactional_id="x-" + topic)
    producer.begin()
    producer.send(topic, "lost with the other").result()
    lost = producer.send("missing-" + topic, "lost")
    with pytest.raises(TransactionAbortedError, match=r"does not exist.*begin\(\) again"):
        producer.commit()
    with pytest.raises(LogbusError, match="does not exist"):
        lost.result()
    producer.begin()
    producer.send(topic, "kept")
    producer.commit()
    producer.close()
    assert visible(servers, topic, 1) == ["kept"]


def test_commands_list_describe_and_abort_hanging_transactions(
    bus: Bus, servers: str, topic: str
) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "broker_lite", "transactions", *words, "-b", servers]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr

    name = "x-" + topic
    producer = bus.producer(transactional_id=name)
    producer.begin()
    producer.send(topic, "held back", partition=1).result()
    assert any(name in line and "Ongoing" in line for line in run("list", "--open").splitlines())
    assert f"{topic}-1" in run("describe", name)
    assert "no coordinator knows the transactional id 'none'" in run("describe", "none")
    assert "no transaction hangs in 2 partitions" in run("hanging", "-t", topic, "--idle", "0")
    tp = (topic, "1", "--start-offset", "0")
    assert "does not hang" in run("abort", *tp, "--yes")
    assert "--yes answers the question" in run("abort", *tp, "--force")
    assert "aborted" in run("abort", *tp, "--force", "--yes")
    assert visible(servers, topic) == []
    assert "no open transaction that begins at offset 0" in run("abort", *tp, "--yes")
    producer.end()
