"""Tests of calls that transactional producers refuse before they send any request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from support.faces import Face

from broker_lite.bus import Bus
from broker_lite.client.consuming.changes import MemberIdentity
from broker_lite.client.consuming.membership import MemberOffsets
from broker_lite.client.operations.transaction_requests import OffsetsToCommit
from broker_lite.client.transactions.events import BeginCall
from broker_lite.client.transactions.idle import IDLE_MAX, IdleProducers
from broker_lite.client.transactions.producer import TransactionalProducer, checked_offsets
from broker_lite.config import ConsumerConfig, ProducerConfig
from broker_lite.errors import (
    InvalidConfigError,
    InvalidTxnStateError,
    LogbusError,
    RequestTimedOutError,
)
from broker_lite.model import CommittedOffset, TopicPartition

NOBODY = "127.0.0.1:9"
AT = TopicPartition("t", 0)


@pytest.fixture
def bus() -> Bus:
    return Bus(NOBODY, client_id="test", options={"max_block_ms": 50})


@pytest.fixture
def face_bus(face: Face) -> Iterator[Any]:
    with face.make_bus(NOBODY, client_id="test", options={"max_block_ms": 50}) as made:
        yield made


def test_error_for_a_send_outside_of_a_transaction_says_to_call_begin(face_bus: Bus) -> None:
    with face_bus.producer(transactional_id="x") as producer:
        table = pa.table({"value": ["v"]})
        for send in (lambda: producer.send("t", "v"), lambda: producer.send_arrow("t", table)):
            with pytest.raises(InvalidTxnStateError, match=r"call begin\(\) before send\(\)"):
                send()
        for call in (producer.commit, lambda: producer.send_offsets({AT: 1}, group="g")):
            with pytest.raises(InvalidTxnStateError, match=r"call begin\(\) first"):
                call()
        producer.abort()
        producer.close()


def test_with_block_does_not_run_if_the_transaction_cannot_begin(face_bus: Bus) -> None:
    transaction = face_bus.transaction("x")
    with pytest.raises(LogbusError, match=r"no broker|cannot connect"), transaction:
        raise AssertionError("the block ran")
    with pytest.raises(InvalidTxnStateError, match=r"bus\.transaction"):
        transaction.send("t", "v")


def test_close_with_a_timeout_does_not_wait_for_a_call_that_is_still_running() -> None:
    """Regression: ``close`` waited until the running call ended, for example a commit that a
    KeyboardInterrupt had interrupted, whatever its timeout was."""
    config = ProducerConfig(transactional_id="x", max_block_ms=1 << 40, has_answered=True)
    producer = TransactionalProducer(NOBODY, config)
    producer.runner.call(BeginCall(), lambda _: None)  # No broker answers it.
    with pytest.raises(RequestTimedOutError, match="an earlier call may still run"):
        producer.close(0.1)
    assert producer.is_closed


@pytest.mark.parametrize("given", ["", None, 5])
def test_transactional_id_must_be_text(bus: Bus, given: object) -> None:
    with pytest.raises(InvalidConfigError, match="transactional_id"):
        bus.transaction(given)  # type: ignore[arg-type]


def test_transaction_of_a_client_with_acks_1_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="needs acks=all"):
        Bus(NOBODY, client_id="test", options={"acks": 1}).transaction("x")


class Positions(NamedTuple):
    """Stands for a consumer; has only the members that ``send_offsets`` uses."""

    config: ConsumerConfig

    def group_offsets(self) -> MemberOffsets:
        return MemberOffsets("g", MemberIdentity("me", 1, None), {AT: CommittedOffset(7)})


def test_offsets_of_a_consumer_that_commits_automatically_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match="auto_commit=False"):
        checked_offsets(Positions(ConsumerConfig()), None)


def test_send_offsets_takes_a_consumer_or_offsets_with_a_group_name() -> None:
    rows = {AT: CommittedOffset(7)}
    consumer = Positions(ConsumerConfig(auto_commit=False))
    assert checked_offsets({AT: 7}, "g") == OffsetsToCommit("g", rows)
    assert checked_offsets(consumer, None) == OffsetsToCommit("g", rows, ("me", 1, None))
    with pytest.raises(InvalidConfigError, match="give group="):
        checked_offsets({AT: 7}, None)
    with pytest.raises(InvalidConfigError, match="leave out the group"):
        checked_offsets(consumer, "g")


def test_limited_number_of_idle_transactional_producers_is_kept_for_reuse() -> None:
    idle: IdleProducers[TransactionalProducer] = IdleProducers()
    producers = [
        TransactionalProducer(NOBODY, ProducerConfig(transactional_id=f"x{each}"))
        for each in range(IDLE_MAX + 1)
    ]
    assert [idle.release(each) for each in producers[:-1]] == [[]] * IDLE_MAX
    assert idle.release(producers[-1]) == [producers[0]]
    assert idle.acquire(producers[0].config) is None
    assert idle.acquire(producers[1].config) is producers[1]
    twin = TransactionalProducer(NOBODY, producers[2].config)
    assert idle.release(twin) == [twin]
    producers[3].end()
    assert idle.acquire(producers[3].config) is None
    for each in (producers[0], producers[1], twin, *idle.drain()):
        each.end()
    assert idle.release(twin) == [twin], "the caller must close an unusable producer"
