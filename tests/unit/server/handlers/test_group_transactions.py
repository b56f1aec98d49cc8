"""Tests of group offsets that are committed in transactions, through the request handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.handler_members import Member, gathered
from support.handler_world import World, handler, received, run, struct, versions

from broker_lite.errors import (
    ClusterAuthorizationError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
    NetworkError,
    NotCoordinatorError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionCoordinatorFencedError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.cache import TRANSACTION_FEATURE
from broker_lite.metadata.store import Create
from broker_lite.server.cluster.registry import SUPPORTED_FEATURES
from broker_lite.server.coordinators.state_log import state_partition
from broker_lite.server.dispatch import HANDLERS
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, decode_call, encode_call
from broker_lite.wire.calls.group_transactions import (
    AddGroupRequest,
    AddGroupResponse,
    EndGroupOffsetsRequest,
)
from broker_lite.wire.calls.groups import OffsetCommitTopic, OffsetToCommit
from broker_lite.wire.calls.transactions import TxnOffsetCommitRequest

FEATURES = {**SUPPORTED_FEATURES, TRANSACTION_FEATURE: 2}
PARTITION = state_partition(b"copier", 6)
OK = AddGroupResponse(0, 1, PARTITION, 0)


class Coordinator:
    """A transaction coordinator that returns prepared responses in order, and then repeats the
    last."""

    def __init__(self, *answers: AddGroupResponse | Exception) -> None:
        self.answers = list(answers) or [OK]
        self.asked: list[AddGroupRequest] = []
        self.before: Callable[[], Any] | None = None
        """A callback that runs once, before the next response."""

    async def send(self, broker_id: int, call: Any, timeout_ms: float = 0) -> Any:
        assert isinstance(call, AddGroupRequest)
        self.asked.append(call)
        await asyncio.sleep(0.002)
        if self.before is not None:
            before, self.before = self.before, None
            await before()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def start(world: World, *answers: Any, count: int = 1, **settings: Any) -> Coordinator:
    await world.start(count, FEATURES, **settings)
    await world.make_topic("t", 2)
    await world.ask("FindCoordinator", 4, key_type=1, coordinator_keys=["copier"])
    coordinator = Coordinator(*answers)
    world.calls.send = coordinator.send  # type: ignore[method-assign]
    return coordinator


async def commit(world: World, offset: int, version: int = 5, **fields: Any) -> int:
    """Commit an offset of t-0 in the transaction of producer 1000; return the error code."""
    path = "TxnOffsetCommitRequestTopic"
    row = struct(
        "TxnOffsetCommit",
        f"{path}.TxnOffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata=None,
    )
    topic = struct("TxnOffsetCommit", path, name="t", partitions=[row])
    values = {"group_id": "g", "transactional_id": "copier", "producer_id": 1000,
              "producer_epoch": 0, "topics": [topic], "generation_id": -1, "member_id": "",
              **fields}  # fmt: skip
    answer = await world.ask("TxnOffsetCommit", version, **values)
    return int(answer.topics[0].partitions[0].error_code)


async def end(world: World, *, is_commit: bool = True, broker: int = 1, **fields: Any) -> int:
    """Send EndGroupOffsets (a logbus API) as another broker; return the error code."""
    values = {"group_id": "g", "producer_id": 1000, "producer_epoch": 0, "number": 1,
              "state_partition": PARTITION, "coordinator_epoch": 0, "committed": is_commit,
              **fields}  # fmt: skip
    return await sent(world, EndGroupOffsetsRequest(**values), broker=broker)


async def sent(
    world: World, call: Any, *, broker: int = 1, client_id: str = "logbus-broker-9"
) -> int:
    frame = memoryview(encode_call(call, 3, client_id))[4:]
    context = received(frame)
    message = tables.decode(context.api_key, 0, frame, context.body_at)
    answer = await HANDLERS[context.api_key](world.brokers[broker], context, message)
    octets = tables.encode(context.api_key, 0, 3, answer)
    return int(decode_call(call, memoryview(octets)[4:]).error_code)


async def fetch(world: World, version: int = 8, *, is_stable: bool = True) -> tuple[int, int]:
    """Return the error code and the offset of t-0 that a read_committed consumer fetches."""
    stable = {"require_stable": is_stable} if version >= 7 else {}
    if version >= 8:
        path = "OffsetFetchRequestGroup"
        topic = struct("OffsetFetch", f"{path}.OffsetFetchRequestTopics", name="t",
                       partition_indexes=[0])  # fmt: skip
        group = struct("OffsetFetch", path, group_id="g", topics=[topic])
        answer = (await world.ask("OffsetFetch", version, groups=[group], **stable)).groups[0]
    else:
        topic = struct("OffsetFetch", "OffsetFetchRequestTopic", name="t", partition_indexes=[0])
        answer = await world.ask("OffsetFetch", version, group_id="g", topics=[topic], **stable)
    row = answer.topics[0].partitions[0]
    return row.error_code, row.committed_offset


async def parts(world: World) -> list[str]:
    return await world.stores[1].children(znodes.pending_path("g")) or []


@pytest.mark.parametrize("version", versions(ApiKey.TXN_OFFSET_COMMIT))
def test_offset_fetch_with_require_stable_fails_until_the_transaction_ends(
    version: int,
) -> None:
    async def body(world: World) -> None:
        coordinator = await start(world)
        assert await commit(world, 5, version) == 0
        assert await commit(world, 6, version) == 0
        request = AddGroupRequest("copier", 1000, 0, "g", verify_only=version < 5)
        assert coordinator.asked == [request], (
            "the second commit of a transaction needs no verification"
        )
        assert await fetch(world) == (UnstableOffsetCommitError.code, -1)
        assert await fetch(world, is_stable=False) == (0, -1)
        assert await end(world) == 0
        assert await fetch(world) == (0, 6)
        assert await end(world) == 0

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_offset_fetch_with_require_stable_fails_while_offsets_of_a_transaction_are_pending(
    version: int,
) -> None:
    async def body(world: World) -> None:
        await start(world)
        await commit(world, 5)
        unstable = (UnstableOffsetCommitError.code, -1)
        assert await fetch(world, version) == (unstable if version >= 7 else (0, -1))
        await end(world, is_commit=False)
        assert await fetch(world, version) == (0, -1)

    run(body)


def test_txn_offset_commit_has_an_error_for_each_partition() -> None:
    async def body(world: World) -> None:
        await start(world)
        good, bad = OffsetToCommit(0, 5), OffsetToCommit(9, 5)
        topics = (
            OffsetCommitTopic("t", (good, bad)),
            OffsetCommitTopic("t", (OffsetToCommit(1, 7),), "B" * 21 + "A"),
        )
        call = TxnOffsetCommitRequest("copier", "g", 1000, 0, topics)
        frame = memoryview(encode_call(call, 3, "c"))[4:]
        context = received(frame)
        message = tables.decode(context.api_key, 5, frame, context.body_at)
        answer = await handler(context.api_key)(world.brokers[1], context, message)
        codes = [[row.error_code for row in topic.partitions] for topic in answer.topics]
        assert codes == [[0, UnknownTopicOrPartitionError.code], [UnknownTopicIdError.code]]
        assert len(await parts(world)) == 1

    run(body)


def test_only_the_current_generation_commits_in_a_transaction() -> None:
    """The rule is from KIP-447.

    Requests below version 3 have no member fields, so their commits are accepted unchecked.
    """

    async def body(world: World) -> None:
        await start(world)
        (one,) = await gathered(world, 1)
        member = {"member_id": one.id, "generation_id": one.generation}
        assert await commit(world, 5, **member) == 0
        codes = [
            await commit(world, 6, **{**member, **other})
            for other in (
                {"member_id": "nobody"},
                {"generation_id": one.generation - 1},
                {"generation_id": one.generation + 1},
                {"group_instance_id": "i"},
            )
        ]
        unknown, illegal = UnknownMemberIdError.code, IllegalGenerationError.code
        assert codes == [unknown, illegal, illegal, unknown]
        assert await commit(world, 7, 2) == 0
        assert await commit(world, 8, **member, version=3) == 0

    run(body)


def test_txn_offset_commit_of_a_replaced_static_member_is_fenced() -> None:
    async def body(world: World) -> None:
        await start(world)
        old = Member(world)
        assert await old.join(group_instance_id="i") == 0
        await old.sync(**{old.id: b"\0"})
        new = Member(world)
        assert await new.join(group_instance_id="i") == 0
        fields = {"generation_id": old.generation, "group_instance_id": "i"}
        assert await commit(world, 5, member_id=old.id, **fields) == FencedInstanceIdError.code
        assert await commit(world, 5, member_id=new.id, **fields) == 0

    run(body)


def test_txn_offset_commit_of_a_member_that_leaves_meanwhile_is_refused() -> None:
    async def body(world: World) -> None:
        coordinator = await start(world)
        (one,) = await gathered(world, 1)
        coordinator.before = one.leave
        member = {"member_id": one.id, "generation_id": one.generation}
        assert await commit(world, 5, **member) == UnknownMemberIdError.code
        assert await parts(world) == []

    run(body)


@pytest.mark.parametrize(
    ("version", "answer", "code"),
    [
        (5, TransactionAbortableError, TransactionAbortableError.code),
        (4, TransactionAbortableError, TransactionAbortableError.code),
        (3, TransactionAbortableError, InvalidTxnStateError.code),
        (5, InvalidProducerIdMappingError, InvalidProducerIdMappingError.code),
        (5, ProducerFencedError, InvalidProducerEpochError.code),
        (5, InvalidTxnStateError, InvalidTxnStateError.code),
        (5, ConcurrentTransactionsError, ConcurrentTransactionsError.code),
        (4, ConcurrentTransactionsError, CoordinatorNotAvailableError.code),
        (5, NotCoordinatorError, CoordinatorNotAvailableError.code),
    ],
)
def test_txn_offset_commit_returns_error_codes_that_exist_in_the_version_of_the_request(
    version: int, answer: Any, code: int
) -> None:
    async def body(world: World) -> None:
        coordinator = await start(world, AddGroupResponse(answer.code))
        assert await commit(world, 5, version) == code
        assert await parts(world) == []
        # The refusal is not stored, so the next request is verified again.
        coordinator.answers = [OK]
        assert await commit(world, 5, version) == 0

    run(body)


def test_txn_offset_commit_retries_the_transaction_check_after_a_retriable_error() -> None:
    async def body(world: World) -> None:
        busy = AddGroupResponse(ConcurrentTransactionsError.code)
        coordinator = await start(world, busy, NetworkError("broken"), busy, OK)
        assert await commit(world, 5) == 0
        assert len(coordinator.asked) == 4

    run(body)


def test_concurrent_txn_offset_commits_of_a_transaction_verify_it_once() -> None:
    async def body(world: World) -> None:
        coordinator = await start(world)
        assert await asyncio.gather(*(commit(world, n) for n in range(5))) == [0] * 5
        assert len(coordinator.asked) == 1
        assert len(await parts(world)) == 5

    run(body)


def test_txn_offset_commit_fails_if_the_transaction_ends_during_verification() -> None:
    """The group coordinator asks the transaction coordinator whether the transaction is open. The
    late response must not add the offsets to the producer's next transaction.
    """

    async def body(world: World) -> None:
        coordinator = await start(world)
        coordinator.before = lambda: end(world, is_commit=False)
        assert await commit(world, 5) == CoordinatorNotAvailableError.code
        assert await parts(world) == []

    run(body)


def test_group_coordinator_verifies_each_transaction_before_accepting_its_offsets() -> None:
    async def body(world: World) -> None:
        coordinator = await start(world, OK, OK._replace(number=2))
        assert await commit(world, 5, 4) == 0
        assert await end(world) == 0
        assert await commit(world, 6, 4) == 0
        assert await parts(world) == ["1000-0-2-0"]
        assert len(coordinator.asked) == 2

    run(body)


def test_txn_offset_commit_of_a_fenced_producer_epoch_is_refused() -> None:
    async def body(world: World) -> None:
        await start(world)
        assert await commit(world, 5, producer_epoch=3) == 0
        code = InvalidProducerEpochError.code
        assert await commit(world, 6, producer_epoch=2) == code

    run(body)


def test_deposed_transaction_coordinator_cannot_commit_pending_offsets() -> None:
    async def body(world: World) -> None:
        await start(world, OK._replace(coordinator_epoch=4), OK)
        assert await commit(world, 5) == 0
        fenced = TransactionCoordinatorFencedError.code
        assert await end(world, coordinator_epoch=3) == fenced
        assert await parts(world) == ["1000-0-1-0"]
        # The deposed coordinator's verification is not accepted for another producer either.
        code = CoordinatorNotAvailableError.code
        assert await commit(world, 5, producer_id=2000) == code
        assert await end(world, coordinator_epoch=4) == 0

    run(body)


def test_request_that_ends_pending_offsets_is_refused_from_a_client() -> None:
    async def body(world: World) -> None:
        await start(world)
        assert await commit(world, 5) == 0
        call = EndGroupOffsetsRequest("g", 1000, 0, 1, PARTITION, 9, True)
        assert await sent(world, call, client_id="anyone") == InvalidRequestError.code
        assert len(await parts(world)) == 1

    run(body)


def test_transactional_offset_requests_to_a_broker_other_than_the_coordinator_are_refused() -> None:
    async def body(world: World) -> None:
        await start(world, count=3)
        view = world.brokers[1].groups.coordinator_of("g")
        assert view is not None
        others = [broker for broker in (1, 2, 3) if broker != view.broker_id]
        assert await commit(world, 5) in (0, NotCoordinatorError.code)
        assert [await end(world, broker=each) for each in others] == [NotCoordinatorError.code] * 2
        assert await end(world, broker=view.broker_id) == 0

    run(body)


def test_zk_based_group_refuses_offsets_of_transactions() -> None:
    async def body(world: World) -> None:
        await start(world)
        native = znodes.encode_group(znodes.KIND_NATIVE)
        await world.stores[1].write([Create(znodes.group_path("g"), native)])
        assert await commit(world, 5) == InconsistentGroupProtocolError.code
        assert await parts(world) == []

    run(body)


@pytest.mark.parametrize(
    ("answer", "is_ended"),
    [
        (OK, False),
        (OK._replace(number=2), True),
        (AddGroupResponse(TransactionAbortableError.code), True),
        (AddGroupResponse(InvalidProducerIdMappingError.code), True),
        (AddGroupResponse(ProducerFencedError.code), True),
        (AddGroupResponse(ConcurrentTransactionsError.code), False),
        (AddGroupResponse(ClusterAuthorizationError.code), False),
        (NetworkError("unreachable"), False),
    ],
)
def test_overdue_pending_offsets_are_dropped_only_if_their_transaction_has_ended(
    answer: Any, is_ended: bool
) -> None:
    async def body(world: World) -> None:
        limit_ms = 60_000
        coordinator = await start(world, transaction_max_timeout_ms=limit_ms)
        assert await commit(world, 5) == 0
        coordinator.answers = [answer]
        overdue = world.brokers[1].group_transactions.end_overdue
        await asyncio.sleep(2 * limit_ms / 1000 - 1)
        await overdue()
        assert len(coordinator.asked) == 1, "the coordinator is asked only about overdue offsets"
        await asyncio.sleep(2)
        await overdue()
        assert coordinator.asked[1:] == [AddGroupRequest("copier", 1000, 0, "g", True)]
        assert len(await parts(world)) == (0 if is_ended else 1)
        assert await fetch(world, is_stable=False) == (0, -1)

    run(body)
