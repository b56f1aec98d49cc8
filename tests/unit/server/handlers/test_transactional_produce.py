"""Tests of Produce with transactional batches.

The leader asks the transaction coordinator to *verify* the first batch of each transaction: the
transaction must be open and include the partition.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from kafka.protocol.producer import AddPartitionsToTxnRequest
from support.data_calls import Place, produce_request, rows_batch
from support.handler_world import received
from support.replica_world import TOPIC_ID, Node, World, broker_context, part_bytes, run

from broker_lite.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidRequiredAcksError,
    InvalidTxnStateError,
    LogbusError,
    NetworkError,
    NotEnoughReplicasError,
    NotLeaderError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
)
from broker_lite.metadata.cache import TRANSACTION_FEATURE, MetadataSnapshot
from broker_lite.model import TRANSACTION_STATE, LeaderAndIsr, PartitionView, TopicView
from broker_lite.record import format as fmt
from broker_lite.record.control import Marker
from broker_lite.record.crc32c import crc32c
from broker_lite.server.coordinators import transaction_verifier
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.transaction_verifier import TransactionVerifier
from broker_lite.server.handlers import produce
from broker_lite.server.partitions import purgatory
from broker_lite.wire import produce as wire
from broker_lite.wire import tables
from broker_lite.wire.api import Call, decode_call, encode_call, parse_header
from broker_lite.wire.calls.transactions import AddedPartition, AddedTopic
from broker_lite.wire.calls.verification import (
    AskedTopic,
    AskedTransaction,
    VerifiedPartitions,
    VerifiedTransaction,
    VerifyPartitionsRequest,
)

T = TypeVar("T")
STATE_EPOCH = 4
BY_CLIENT, BY_BROKER = 11, 13
"""Versions of Produce in which the client, or the broker, adds partitions."""


class Coordinator:
    """The transaction coordinator on broker 2, which takes its responses from ``answers``."""

    def __init__(self) -> None:
        self.requests: list[VerifyPartitionsRequest] = []
        self.answers: list[LogbusError | None] = []
        """The errors of the next responses, where None is success. The last one repeats."""
        self.epoch = STATE_EPOCH
        self.held: asyncio.Event | None = None

    async def send(self, broker_id: int, call: Call[T], timeout_ms: float = 0) -> T:
        assert broker_id == 2
        asked = cast(VerifyPartitionsRequest, call)
        self.requests.append(asked)
        if self.held is not None:
            await self.held.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, NetworkError):
            raise answer
        code = 0 if answer is None else answer.code
        return cast(T, VerifiedPartitions(0, [self._row(row, code) for row in asked.transactions]))

    def _row(self, row: AskedTransaction, code: int) -> VerifiedTransaction:
        topics = [
            AddedTopic(topic.name, tuple(AddedPartition(p, code) for p in topic.partitions))
            for topic in row.topics
        ]
        partition = crc32c(row.transactional_id.encode()) % 6
        return VerifiedTransaction(row.transactional_id, topics, 1, partition, self.epoch)


class TransactionalProducer:
    """The client's side of a transactional producer's connection to broker 1, the leader."""

    def __init__(self, node: Node, *answers: LogbusError | None) -> None:
        self.coordinator = Coordinator()
        self.coordinator.answers += answers or (None,)
        self.snapshot = with_state_topic(node.snapshot)
        epochs = CoordinatorEpochs(lambda: self.snapshot)
        verifier = TransactionVerifier(
            calls=self.coordinator, snapshot=lambda: self.snapshot, epochs=epochs
        )
        self.parts = broker_context(
            node,
            registry=self,
            calls=self.coordinator,
            coordinator_epochs=epochs,
            verifier=verifier,
        )

    async def send(
        self,
        sequence: int,
        version: int = BY_BROKER,
        *,
        partition: int = 0,
        acks: int = -1,
        transactional_id: str | None = "id",
    ) -> int:
        """Send a batch of a transaction; return the error code of the response."""
        batch = rows_batch(
            [b"x"], producer_id=7, producer_epoch=0, base_sequence=sequence,
            attributes=fmt.ATTRIBUTE_TRANSACTIONAL,
        )  # fmt: skip
        sent = produce_request(
            Place("t", TOPIC_ID, 1, ""), batch, version=version, acks=acks, partition=partition,
            transactional_id=transactional_id,
        )  # fmt: skip
        frame = memoryview(bytearray(sent))[4:]
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answer(parts: Any) -> None:
            octets = b"".join(part_bytes(part) for part in parts)
            response = wire.decode_response(memoryview(octets)[4:], version)
            done.set_result(response.topics[0].partitions[0].error_code)

        reply = cast(Any, SimpleNamespace(answer=answer))
        produce.handle(self.parts, received(frame, self.parts.clock), frame, reply)
        return await done


def with_state_topic(snapshot: MetadataSnapshot, epoch: int = STATE_EPOCH) -> MetadataSnapshot:
    """Return the metadata with transaction.version 2, and with __transaction_state led by
    broker 2."""
    state = LeaderAndIsr(2, epoch, (), 1)
    views = tuple(PartitionView(p, (2,), state) for p in range(6))
    topics = dict(snapshot.topics) | {TRANSACTION_STATE: TopicView(TRANSACTION_STATE, "x", views)}
    return dataclasses.replace(snapshot, topics=topics, features={TRANSACTION_FEATURE: 2})


async def started(world: World, *answers: LogbusError | None) -> TransactionalProducer:
    return TransactionalProducer(await world.serves(1), *answers)


def test_only_the_first_batch_of_a_transaction_is_verified_with_the_coordinator() -> None:
    async def test(world: World) -> None:
        producer = await started(world)
        assert [await producer.send(n) for n in range(3)] == [0, 0, 0]
        (request,) = producer.coordinator.requests
        (row,) = request.transactions
        assert (row.transactional_id, row.producer_id, row.producer_epoch) == ("id", 7, 0)
        assert [(topic.name, topic.partitions) for topic in row.topics] == [("t", (0,))]
        assert row.verify_only is False

    run(test)


def test_produce_below_version_12_only_verifies_that_its_partition_is_in_the_transaction() -> None:
    async def test(world: World) -> None:
        producer = await started(world)
        assert await producer.send(0, BY_CLIENT) == 0
        assert producer.coordinator.requests[0].transactions[0].verify_only is True

    run(test)


def test_batches_wait_in_order_for_the_verification_of_their_transaction() -> None:
    async def test(world: World) -> None:
        producer = await started(world)
        producer.coordinator.held = asyncio.Event()
        sending = [asyncio.ensure_future(producer.send(n)) for n in range(5)]
        await world.until(lambda: bool(producer.coordinator.requests))
        assert world.nodes[1].replica().log.log_end_offset == 0
        producer.coordinator.held.set()
        assert await asyncio.gather(*sending) == [0] * 5
        assert len(producer.coordinator.requests) == 1

    run(test)


def test_concurrent_batches_of_a_transaction_are_verified_in_one_request() -> None:
    async def test(world: World) -> None:
        await world.serves(1, 1)
        producer = await started(world)
        sent = await asyncio.gather(*(producer.send(0, partition=p) for p in (0, 1)))
        assert sent == [0, 0]
        (request,) = producer.coordinator.requests
        assert request.transactions[0].topics[0].partitions == (0, 1)

    run(test, partitions=2)


def test_transactional_produce_succeeds_although_its_append_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purgatory, "SWEEP_MS", 1)

    async def test(world: World) -> None:
        node = await world.serves(1)
        producer, gate = TransactionalProducer(node), threading.Event()
        node.disk.call(node.replica().key, gate.wait, lambda *_: None)
        sent = asyncio.ensure_future(producer.send(0))
        deadlines = node.manager._produces._deadlines
        await world.until(lambda: len(deadlines) == 1)
        timer = deadlines._timer
        await world.until(lambda: deadlines._timer is not timer)
        gate.set()
        assert await sent == 0

    run(test)


@pytest.mark.parametrize(
    ("answer", "version", "code"),
    [
        (ProducerFencedError(), BY_BROKER, InvalidProducerEpochError.code),
        (InvalidTxnStateError(), BY_BROKER, InvalidTxnStateError.code),
        (TransactionAbortableError(), BY_BROKER, TransactionAbortableError.code),
        (TransactionAbortableError(), 10, InvalidTxnStateError.code),
    ],
)
def test_batch_is_refused_if_the_coordinator_refuses_the_transaction(
    answer: LogbusError, version: int, code: int
) -> None:
    async def test(world: World) -> None:
        producer = await started(world, answer)
        assert await producer.send(0, version) == code
        assert len(producer.coordinator.requests) == 1
        assert world.nodes[1].replica().log.log_end_offset == 0

    run(test)


def test_transaction_verification_is_retried_after_retriable_errors() -> None:
    async def test(world: World) -> None:
        producer = await started(world, ConcurrentTransactionsError(), NetworkError("cut"), None)
        assert await producer.send(0) == 0
        assert len(producer.coordinator.requests) == 3

    run(test)


@pytest.mark.parametrize(
    ("answer", "version", "code"),
    [
        (ConcurrentTransactionsError(), BY_BROKER, ConcurrentTransactionsError.code),
        (ConcurrentTransactionsError(), BY_CLIENT, NotEnoughReplicasError.code),
        (NetworkError("cut"), BY_BROKER, NotEnoughReplicasError.code),
    ],
)
def test_unavailable_coordinator_gives_the_producer_a_retriable_error(
    answer: LogbusError, version: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_verifier, "VERIFY_TIMEOUT_S", 0.02)

    async def test(world: World) -> None:
        producer = await started(world, answer)
        assert await producer.send(0, version) == code
        producer.coordinator.answers = [None]
        assert await producer.send(0, version) == 0

    run(test)


def test_transaction_verification_that_arrives_after_the_transactions_end_is_ignored() -> None:
    async def test(world: World) -> None:
        producer = await started(world)
        producer.coordinator.held = asyncio.Event()
        sending = asyncio.ensure_future(producer.send(0))
        await world.until(lambda: bool(producer.coordinator.requests))
        assert world.nodes[1].replica().participant.end(7, 1)
        producer.coordinator.held.set()
        assert await sending == InvalidProducerEpochError.code
        assert world.nodes[1].replica().log.log_end_offset == 0

    run(test)


def test_marker_with_a_bumped_epoch_does_not_end_the_next_transaction() -> None:
    """The end of a transaction bumps the producer epoch, so its marker has the epoch of the next
    transaction.

    The marker may arrive while the next transaction's first batch is being verified.
    """

    async def test(world: World) -> None:
        producer = await started(world)
        producer.coordinator.held = asyncio.Event()
        sending = asyncio.ensure_future(producer.send(0))
        await world.until(lambda: bool(producer.coordinator.requests))
        node = world.nodes[1]
        former = Marker(7, 0, 1, is_commit=True, raises_epoch=True)
        assert await node.manager.append_markers(node.replica(), [former], 1_000) == [None]
        producer.coordinator.held.set()
        assert await sending == 0

    run(test)


def test_transaction_verification_from_an_earlier_leader_epoch_is_ignored() -> None:
    async def test(world: World) -> None:
        producer = await started(world)
        producer.coordinator.held = asyncio.Event()
        sending = asyncio.ensure_future(producer.send(0))
        await world.until(lambda: bool(producer.coordinator.requests))
        world.elect(1)
        producer.coordinator.held.set()
        assert await sending == NotLeaderError.code
        await world.serves(1)
        assert await producer.send(0) == 0
        assert len(producer.coordinator.requests) == 2, "each leader epoch verifies again"

    run(test)


def test_transaction_verification_by_a_deposed_coordinator_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_verifier, "VERIFY_TIMEOUT_S", 0.02)

    async def test(world: World) -> None:
        producer = await started(world)
        producer.snapshot = with_state_topic(world.nodes[1].snapshot, STATE_EPOCH + 1)
        assert await producer.send(0) == NotEnoughReplicasError.code
        assert world.nodes[1].replica().log.log_end_offset == 0
        producer.coordinator.epoch = STATE_EPOCH + 1
        assert await producer.send(0) == 0

    run(test)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"acks": 1}, InvalidRequiredAcksError.code),
        ({"transactional_id": None}, TransactionalIdAuthorizationError.code),
    ],
)
def test_transactional_batch_needs_a_transactional_id_and_acks_all(
    fields: dict[str, Any], code: int
) -> None:
    async def test(world: World) -> None:
        producer = await started(world)
        assert await producer.send(0, **fields) == code
        assert not producer.coordinator.requests

    run(test)


def test_transactional_batch_is_refused_while_a_broker_does_not_support_transactions() -> None:
    async def test(world: World) -> None:
        producer = await started(world)
        producer.snapshot = dataclasses.replace(producer.snapshot, features={})
        assert await producer.send(0) == InvalidTxnStateError.code

    run(test)


def test_transaction_verification_request_and_response_round_trip() -> None:
    rows = [AskedTransaction("id", 7, 3, True, (AskedTopic("t", (0, 5), TOPIC_ID),))]
    frame = memoryview(encode_call(VerifyPartitionsRequest(rows), 9, "c"))[4:]
    header = parse_header(frame)
    assert (header.api_key, header.api_version) == (24, 5)
    (row,) = AddPartitionsToTxnRequest.decode(bytes(frame), version=5, header=True).transactions
    assert (row.transactional_id, row.producer_id, row.producer_epoch) == ("id", 7, 3)
    assert (row.verify_only, row.topics[0].partitions) == (True, [0, 5])
    answer = VerifiedPartitions(
        0, (VerifiedTransaction("id", (AddedTopic("t", (AddedPartition(5, 51),)),), 8, 2, 4),)
    )
    octets = tables.encode(24, 5, 9, answer)
    assert decode_call(VerifyPartitionsRequest, memoryview(octets)[4:]) == answer
