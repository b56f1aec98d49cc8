"""Tests of the runner of a producer's transactions, against scripted brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.client_world import ONE, TOPIC_ID, TWO, Asked, World

from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.transaction_requests import OffsetsToCommit
from broker_lite.client.options import build
from broker_lite.client.producing.accumulator import OpenRows
from broker_lite.client.producing.sender import Sender
from broker_lite.client.transactions import events as ev
from broker_lite.client.transactions.runner import TransactionRunner
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    FencedError,
    InvalidConfigError,
    InvalidTxnStateError,
    LogbusError,
    MessageTooLargeError,
    NetworkError,
    TransactionAbortedError,
    UnknownOutcomeError,
)
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.record.batch import read_header
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.cluster import (
    ApiVersionsResponse,
    FeatureRange,
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from broker_lite.wire.calls.groups import (
    CommittedPartition,
    CommittedTopic,
    FindCoordinatorResponse,
    FoundCoordinator,
    OffsetCommitResponse,
)
from broker_lite.wire.calls.producers import InitProducerIdResponse
from broker_lite.wire.calls.transactions import (
    AddedPartition,
    AddedTopic,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
)

BROKERS = (MetadataBroker(1, "one", 1, None), MetadataBroker(2, "two", 2, None))
PARTITIONS = tuple(MetadataPartition(0, each, 1, 5, (1,), (1,), ()) for each in (0, 1))
METADATA = MetadataResponse(
    0, BROKERS, "cluster", 1, (MetadataTopic(0, "t", TOPIC_ID, False, PARTITIONS),)
)
AT = TopicPartition("t", 0)
LATE_MS = 61_000
INVALID_EPOCH, OTHER_PRODUCER_ID, CONCURRENT, FENCED, ILLEGAL_GENERATION = 47, 49, 51, 90, 22


class Bench:
    """A transaction runner, its sender and two brokers: the partition leader ONE and the
    transaction coordinator TWO."""

    def __init__(self, version: int = 2) -> None:
        self.world = World()
        self.epoch = 0
        self.answers: list[LogbusError | None] = []
        self.shut: LogbusError | None = None
        features = (FeatureRange("transaction.version", version, version),)
        for key, make in {
            ApiKey.METADATA: lambda _: METADATA,
            ApiKey.FIND_COORDINATOR: self.coordinator,
            ApiKey.API_VERSIONS: lambda _: ApiVersionsResponse(0, (), 0, (), 1, features),
            ApiKey.INIT_PRODUCER_ID: self.identity,
        }.items():
            self.world.automatic[key] = self.automatic(make)
        config = ProducerConfig(transactional_id="x", linger_ms=0)
        cluster = Cluster((ONE,), self.world.now_ms)
        self.sender = Sender(
            self.world, cluster, config, on_released=lambda _: None, on_finished=lambda _: None
        )
        self.runner = TransactionRunner(
            self.world, cluster, config, self.sender, on_shut=self.set_shut
        )

    def set_shut(self, error: LogbusError | None) -> None:
        self.shut = error

    def automatic(self, make: Callable[[Any], Any]) -> Callable[[Asked], None]:
        return lambda asked: self.reply(asked, make(asked.message))

    def reply(self, asked: Asked, answer: Any) -> None:
        """Answer a request with a response object, without encoding the response."""
        self.world.asked.remove(asked)
        self.world.call_soon(lambda: asked.on_answer(answer))

    def coordinator(self, message: Any) -> FindCoordinatorResponse:
        key = message.coordinator_keys[0]
        assert (message.key_type, key) in ((1, "x"), (0, "g"))
        return FindCoordinatorResponse(0, (FoundCoordinator(key, 2, "two", 2, 0, None),))

    def identity(self, message: Any) -> InitProducerIdResponse:
        self.epoch = max(self.epoch, message.producer_epoch + 1)
        return InitProducerIdResponse(0, 0, 7, self.epoch)

    def call(self, event: ev.Call, offsets: OffsetsToCommit | None = None) -> None:
        self.runner.call(event, self.answers.append, offsets=offsets)
        self.world.run()

    def begin(self) -> None:
        self.call(ev.BeginCall())
        assert self.answers.pop() is None
        assert self.shut is None

    def send(self, partition: int = 0) -> OpenRows:
        rows = OpenRows("t", threading.Condition(), lambda _: None, 1 << 20)
        rows.timestamp_ms = 5
        rows.values.append(b"v")
        rows.keys.append(None)
        rows.set_optional_fields(0, None, partition, None)
        rows.size_bytes = 10
        rows.is_open = False
        self.sender.inbox.append(rows)
        self.sender.wake()
        self.world.run()
        return rows

    def produced(self) -> tuple[int, int, int, bool]:
        """Return (producer id, epoch, sequence, is transactional) of the only pending Produce
        request."""
        message = self.world.the(ApiKey.PRODUCE).message
        assert message.transactional_id == "x"
        header = read_header(message.topics[0].partitions[0].records)
        return (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.is_transactional,
        )

    def acknowledge(self, **rows: Any) -> None:
        self.world.the(ApiKey.PRODUCE).produced(**(rows or {"p0": (0, 0)}))
        self.world.run()

    def end(self, answer: EndTxnResponse | LogbusError) -> bool:
        """Answer the only EndTxn request; return whether the request commits (or else aborts)."""
        asked = self.world.the(ApiKey.END_TXN)
        assert asked.endpoint == TWO
        self.reply(asked, answer)
        self.world.run()
        return bool(asked.message.committed)

    def answer(self) -> LogbusError | None:
        """Return the error of the only finished call; None if the call succeeded."""
        (found,) = self.answers
        self.answers.clear()
        return found


def test_each_transaction_has_a_new_epoch_and_begins_at_sequence_zero() -> None:
    bench = Bench()
    for epoch in (0, 1, 2):
        bench.begin()
        bench.send()
        assert bench.produced() == (7, epoch, 0, True)
        bench.acknowledge()
        bench.call(ev.CommitCall())
        assert bench.end(EndTxnResponse(0, 0, 7, epoch + 1))
        assert bench.answer() is None


def test_commit_waits_until_every_batch_is_acknowledged() -> None:
    bench = Bench()
    bench.begin()
    bench.send()
    bench.call(ev.CommitCall())
    assert isinstance(bench.shut, InvalidTxnStateError)
    assert not [asked for asked in bench.world.asked if asked.api_key == ApiKey.END_TXN]
    bench.acknowledge()
    assert bench.end(EndTxnResponse(0, 0, 7, 1))
    assert bench.answer() is None


def test_transaction_version_1_adds_a_partition_before_its_first_batch() -> None:
    bench = Bench(version=1)
    bench.begin()
    bench.send()
    added = bench.world.the(ApiKey.ADD_PARTITIONS_TO_TXN)
    assert not [asked for asked in bench.world.asked if asked.api_key == ApiKey.PRODUCE]
    assert added.message.topics == (("t", (0,)),)
    result = AddPartitionsToTxnResponse(0, (AddedTopic("t", (AddedPartition(0, 0),)),))
    bench.reply(added, result)
    bench.world.run()
    message = bench.world.the(ApiKey.PRODUCE).message
    assert message.topics[0].name == "t", (
        "Produce 12 and later, with topic ids, add partitions implicitly"
    )


def add_answer(code: int = 0) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(0, (AddedTopic("t", (AddedPartition(0, code),)),))


@pytest.mark.parametrize("code", [0, CONCURRENT])
def test_abort_in_transaction_version_1_waits_for_the_add_partitions_to_txn_response(
    code: int,
) -> None:
    """Regression: the request that adds partitions was repeated after EndTxn. Kafka's coordinator
    then began a transaction with the same epoch, and fenced the producer at its next ``begin``."""
    bench = Bench(version=1)
    bench.begin()
    bench.send()
    bench.send(partition=1)
    bench.call(ev.AbortCall())
    (added,) = bench.world.asked
    assert added.api_key == ApiKey.ADD_PARTITIONS_TO_TXN
    bench.reply(added, add_answer(code))
    bench.world.run(1000.0)
    assert [asked.api_key for asked in bench.world.asked] == [ApiKey.END_TXN]
    assert not bench.end(EndTxnResponse(0, 0))
    assert bench.answer() is None


def test_abort_ends_the_retries_of_add_partitions_to_txn_in_transaction_version_1() -> None:
    bench = Bench(version=1)
    bench.begin()
    bench.send()
    bench.reply(bench.world.the(ApiKey.ADD_PARTITIONS_TO_TXN), add_answer(CONCURRENT))
    bench.world.run()
    assert not bench.world.asked
    bench.call(ev.AbortCall())
    bench.world.run(1000.0)
    assert [asked.api_key for asked in bench.world.asked] == [ApiKey.END_TXN]
    assert not bench.end(EndTxnResponse(0, 0))
    assert bench.answer() is None


def test_transaction_version_1_bumps_the_epoch_before_each_transaction() -> None:
    bench = Bench(version=1)
    for epoch in (0, 1):
        bench.begin()
        offsets = OffsetsToCommit("g", {AT: CommittedOffset(3)})
        bench.call(ev.OffsetsCall("g"), offsets)
        bench.reply(bench.world.the(ApiKey.ADD_OFFSETS_TO_TXN), AddOffsetsToTxnResponse(0, 0))
        bench.world.run()
        asked = bench.world.the(ApiKey.TXN_OFFSET_COMMIT)
        assert (asked.message.VERSION, asked.message.producer_epoch) == (4, epoch)
        topics = (CommittedTopic("t", (CommittedPartition(0, 0),)),)
        bench.reply(asked, OffsetCommitResponse(0, topics))
        bench.world.run()
        assert bench.answer() is None
        bench.call(ev.CommitCall())
        assert bench.end(EndTxnResponse(0, 0))
        assert bench.answer() is None


def test_offsets_in_a_transaction_carry_the_consumers_generation() -> None:
    bench = Bench()
    bench.begin()
    offsets = OffsetsToCommit("g", {AT: CommittedOffset(3)}, ("me", 4, "static"))
    bench.call(ev.OffsetsCall("g"), offsets)
    message = bench.world.the(ApiKey.TXN_OFFSET_COMMIT).message
    assert (message.member_id, message.generation_id, message.group_instance_id) == (
        "me",
        4,
        "static",
    )
    assert message.VERSION == 5
    topics = (CommittedTopic("t", (CommittedPartition(0, ILLEGAL_GENERATION),)),)
    bench.reply(bench.world.the(ApiKey.TXN_OFFSET_COMMIT), OffsetCommitResponse(0, topics))
    bench.world.run()
    error = bench.answer()
    assert error is not None
    assert "read on from the group's committed offsets" in error.message
    bench.call(ev.CommitCall())
    assert not bench.end(EndTxnResponse(0, 0, 7, 1))
    assert isinstance(bench.answer(), TransactionAbortedError)


@pytest.mark.parametrize("code", [INVALID_EPOCH, OTHER_PRODUCER_ID])
def test_adding_offsets_to_a_transaction_that_the_coordinator_ended_raises_an_error(
    code: int,
) -> None:
    """When it ended the transaction, the coordinator assigned a new producer epoch or id, so the
    group coordinator refuses the offsets. The error is TransactionAbortedError."""
    bench = Bench()
    bench.begin()
    bench.call(ev.OffsetsCall("g"), OffsetsToCommit("g", {AT: CommittedOffset(3)}))
    topics = (CommittedTopic("t", (CommittedPartition(0, code),)),)
    bench.reply(bench.world.the(ApiKey.TXN_OFFSET_COMMIT), OffsetCommitResponse(0, topics))
    bench.world.run()
    assert isinstance(bench.answer(), TransactionAbortedError)


def test_refused_batch_aborts_its_transaction_and_discards_waiting_batches() -> None:
    bench = Bench()
    bench.begin()
    bench.send()
    other = bench.send()  # This batch waits until the producer id's first batch is acknowledged.
    bench.acknowledge(p0=(INVALID_EPOCH, -1))
    assert isinstance(other.error, TransactionAbortedError)
    assert isinstance(bench.shut, TransactionAbortedError)
    bench.call(ev.CommitCall())
    assert not bench.end(EndTxnResponse(0, 0, 7, 1))
    assert isinstance(bench.answer(), TransactionAbortedError)
    bench.begin()
    bench.send()
    assert bench.produced() == (7, 1, 0, True)


def test_late_response_to_an_aborted_transaction_does_not_affect_the_next_transaction() -> None:
    bench = Bench()
    bench.begin()
    bench.send()
    late = bench.world.the(ApiKey.PRODUCE)
    bench.call(ev.AbortCall())
    assert not bench.end(EndTxnResponse(0, 0, 7, 1))
    assert bench.answer() is None
    bench.begin()
    rows = bench.send()
    late.produced(p0=(INVALID_EPOCH, -1))
    bench.world.run()
    assert bench.produced() == (7, 1, 0, True)
    assert not rows.done
    bench.acknowledge()
    assert rows.error is None


def test_batch_is_retried_while_brokers_write_the_markers_of_the_previous_transaction() -> None:
    bench = Bench()
    bench.begin()
    rows = bench.send()
    bench.acknowledge(p0=(CONCURRENT, -1))
    assert not rows.done
    bench.world.run(100.0)
    assert bench.produced() == (7, 0, 0, True)
    bench.acknowledge()
    assert rows.error is None


def test_commit_without_a_response_is_repeated_with_the_same_producer_epoch() -> None:
    bench = Bench()
    bench.begin()
    bench.send()
    bench.acknowledge()
    bench.call(ev.CommitCall())
    for _ in range(3):
        assert bench.end(NetworkError("cut"))
        bench.world.run(1000.0)
    bench.world.run(LATE_MS)
    assert isinstance(bench.answer(), UnknownOutcomeError)
    bench.call(ev.CommitCall())
    message = bench.world.the(ApiKey.END_TXN).message
    assert (message.producer_id, message.producer_epoch, message.committed) == (7, 0, True)
    assert bench.end(EndTxnResponse(0, 0, 7, 1))
    assert bench.answer() is None


def test_transactional_producer_is_idle_only_between_transactions() -> None:
    """The client reuses idle transactional producers.

    A producer whose ``begin`` was interrupted must not be reused.
    """
    bench = Bench()
    assert bench.runner.is_resting
    bench.runner.call(ev.BeginCall(), bench.answers.append)
    bench.world.run()
    assert not bench.runner.is_resting
    bench.send()
    bench.acknowledge()
    bench.call(ev.CommitCall())
    assert not bench.runner.is_resting
    bench.end(EndTxnResponse(0, 0, 7, 1))
    assert bench.runner.is_resting


def test_record_refused_by_send_aborts_only_the_open_transaction() -> None:
    bench = Bench()
    bench.runner.lose(MessageTooLargeError("no transaction is open"))
    bench.begin()
    bench.send()
    bench.acknowledge()
    bench.runner.lose(MessageTooLargeError("5 MB"))
    bench.call(ev.CommitCall())
    assert not bench.end(EndTxnResponse(0, 0, 7, 1))
    error = bench.answers.pop()
    assert isinstance(error, TransactionAbortedError) and "5 MB" in error.message
    bench.answers.clear()
    bench.begin()
    bench.send()
    bench.acknowledge()
    bench.call(ev.CommitCall())
    assert bench.end(EndTxnResponse(0, 0, 7, 2))
    assert bench.answer() is None


def test_fenced_producer_sends_no_init_producer_id() -> None:
    """On InitProducerId, Kafka's coordinator would abort the transaction of the producer that
    fenced this one."""
    bench = Bench()
    bench.begin()
    bench.send()
    bench.acknowledge()
    del bench.world.automatic[ApiKey.INIT_PRODUCER_ID]
    bench.call(ev.CommitCall())
    assert bench.end(EndTxnResponse(0, FENCED))
    assert not bench.end(EndTxnResponse(0, FENCED))
    assert isinstance(bench.answer(), FencedError)
    assert not bench.world.asked
    bench.call(ev.BeginCall())
    assert isinstance(bench.answer(), FencedError)


def test_begin_during_a_commit_waits_until_the_commit_is_done() -> None:
    bench = Bench()
    bench.begin()
    bench.send()
    bench.call(ev.CommitCall())
    bench.call(ev.BeginCall())
    assert bench.answers == []
    bench.acknowledge()
    assert bench.end(EndTxnResponse(0, 0, 7, 1))
    assert bench.answers == [None, None]


def test_waiting_and_later_calls_fail_once_the_transaction_runner_is_closed() -> None:
    bench = Bench()
    bench.begin()
    bench.send()
    bench.call(ev.CommitCall())
    bench.call(ev.BeginCall())
    end = NetworkError("closed")
    bench.runner.close(end)
    bench.call(ev.AbortCall())
    assert bench.answers == [end, end, end]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"acks": 1}, "acks=1"), ({"acks": 0}, "acks=0"),
     ({"idempotence": False}, "enable.idempotence=false")],
)  # fmt: skip
def test_producer_with_a_transactional_id_must_have_acks_all_and_idempotence(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidConfigError, match=f"transactional.id='x' with {named}"):
        build(ProducerConfig, {"transactional_id": "x", **options}, {})
