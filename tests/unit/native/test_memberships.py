"""Tests of a group member's consumer, in Kafka and ZooKeeper-based groups, blocking and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.data_calls import rows_batch
from support.faces import Face

from broker_lite.client.consuming.changes import Assign, Lose
from broker_lite.client.consuming.reader_core import Joining, ReaderCore
from broker_lite.client.consuming.starting import StartPlan, Starts
from broker_lite.client.consuming.waits import Request
from broker_lite.client.fetch.fetch_engine import FetchedBatches
from broker_lite.client.membership.kafka_membership import KafkaMembership, in_group
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.config import ConsumerConfig
from broker_lite.errors import CoordinationUnavailableError, LogbusError, NotOwnerError
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.model import TopicPartition
from broker_lite.native.member import NativeShell
from broker_lite.native.membership import NativeMembership
from broker_lite.native.session import GroupSession, SessionDispatcher
from broker_lite.record.batch import read_header
from broker_lite.record.walker import LogBatch

NOWHERE = "127.0.0.1:1"
KEPT, GOING = TopicPartition("t", 0), TopicPartition("t", 1)
FOR_EVER, OVER = float("inf"), 0.0
SUBSCRIPTION = NativeSubscription((), ".*", 1)


def nothing_to_wait_for(_: Any) -> Iterator[Any]:
    """Replace ``join`` and ``leave`` of the membership; return at once, because the tests have no
    coordinator.
    """
    yield from ()


class KafkaCase:
    """The test case of a member of a Kafka group: its classes, its settings, and ``lease``, which
    sets until when it may return records. The consumer has not joined the group yet.
    """

    kind: type[Any] = KafkaMembership
    config: ConsumerConfig = MemberConfig(auto_commit=False)
    joining: Joining = staticmethod(in_group(("t",)))

    def lease(self, consumer: Any, until_ms: float) -> None:
        consumer.core.membership.member.lease_until_ms = until_ms


class NativeCase:
    """The test case of a member of a ZooKeeper-based group: its classes, its settings, and
    ``lease``, which sets until when it may return records. The consumer has not joined the group
    yet.
    """

    kind: type[Any] = NativeMembership
    config = ConsumerConfig(auto_commit=False)

    def __init__(self) -> None:
        loop = asyncio.new_event_loop()
        loop.close()
        self.session = GroupSession(lambda: NOWHERE, "g", "me", SUBSCRIPTION, 6000, loop=loop)
        self.session._member = NativeShell(
            "g",
            "me",
            SUBSCRIPTION,
            SessionDispatcher(()),
            make_store=lambda: pytest.fail("the test must not connect to ZooKeeper"),
            now_ms=lambda: 0.0,
        )

    def joining(self, reader: ReaderCore) -> NativeMembership:
        return NativeMembership(reader, session=self.session, topics=())

    def lease(self, consumer: Any, until_ms: float) -> None:
        assert self.session._member is not None
        self.session._member.machine.lease_until_ms = until_ms  # type: ignore[misc]


@pytest.fixture(params=[KafkaCase, NativeCase], ids=["kafka", "native"])
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = request.param()
    for name in ("join", "leave"):
        monkeypatch.setattr(made.kind, name, nothing_to_wait_for)
    return made


@pytest.fixture
def consumer(case: Any, face: Face) -> Iterator[Any]:
    made = face.make_consumer(NOWHERE, group="g", config=case.config, joining=case.joining)
    yield made
    made.close()


def arrive(core: ReaderCore) -> None:
    """Add a batch of three records to the consumer's queue, as if it had been fetched."""
    core.collector.begin({KEPT: 0})
    octets = memoryview(rows_batch([b"0", b"1", b"2"]))
    batch = LogBatch(read_header(octets), octets)
    generation = core.collector._generations[KEPT]
    core.engine.fetched.append(FetchedBatches(KEPT, generation, [batch], len(octets), None))


def values(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def test_member_returns_no_records_once_its_lease_has_ended(
    case: Any, face: Face, consumer: Any
) -> None:
    case.lease(consumer, OVER)
    face.call(arrive, consumer.core)
    assert consumer.poll() == []
    assert consumer.poll_arrow().num_rows == 0
    case.lease(consumer, FOR_EVER)
    assert values(consumer.poll(max_records=1)) == [b"0"]
    # The poll has decoded the batch, whose other two records now wait in the consumer.
    case.lease(consumer, OVER)
    assert consumer.poll() == []
    case.lease(consumer, FOR_EVER)
    assert values(consumer.poll()) == [b"1", b"2"]


def test_iteration_over_a_consumer_stops_when_the_members_lease_ends(
    case: Any, face: Face, consumer: Any
) -> None:
    case.lease(consumer, FOR_EVER)
    face.call(arrive, consumer.core)
    rows = consumer.core.each_record(lambda: False)
    assert next(rows).value == b"0"
    case.lease(consumer, OVER)
    assert list(rows) == []


def test_partition_that_is_revoked_while_its_start_offset_is_requested_is_not_read(
    case: Any, face: Face, consumer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = consumer.core.assignment.queue

    def beginnings(_: Any, pending: Any, __: float) -> Any:
        queue.append(Lose(frozenset((GOING,))))
        return StartPlan(Starts(dict.fromkeys(pending, 5), {}), {})
        yield

    monkeypatch.setattr(case.kind, "beginnings", beginnings)
    queue.append(Assign({KEPT: 1, GOING: 2}))
    assert consumer.poll() == []
    assert consumer.assignment() == [KEPT]
    assert not consumer.core.has_changes


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ({KEPT: CoordinationUnavailableError("down"), GOING: NotOwnerError("gone")}, "down"),
        ({GOING: NotOwnerError("gone")}, "gone"),
        ({KEPT: None}, ""),
    ],
)
def test_not_owner_error_of_a_commit_does_not_hide_another_error(
    case: Any,
    consumer: Any,
    monkeypatch: pytest.MonkeyPatch,
    errors: dict[TopicPartition, LogbusError | None],
    raised: str,
) -> None:
    """``close`` ignores NotOwnerError, which must not hide the error of another partition."""
    monkeypatch.setattr(case.kind, "commit", lambda *_: Request(lambda on_done: on_done(errors)))
    if not raised:
        consumer.commit({KEPT: 1})
        return
    with pytest.raises(LogbusError, match=raised):
        consumer.commit({KEPT: 1})
