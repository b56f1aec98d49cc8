"""Tests of the transaction APIs with kafka-python's messages, in every version.

The APIs are InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions and
ListTransactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.handler_world import ask, context_of, handler, struct, versions
from support.replica_world import broker_context
from support.transaction_world import OUT, TransactionCluster, run

from broker_lite.errors import ClusterAuthorizationError, LogbusError
from broker_lite.transactions.records import TransactionState
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, Call, decode_call, encode_call, parse_header
from broker_lite.wire.calls.group_transactions import AddGroupRequest, AddGroupResponse
from broker_lite.wire.calls.transaction_search import (
    FindTransactionsRequest,
    FoundTransaction,
    SearchedPartition,
)
from broker_lite.wire.calls.transactions import AddedPartition, AddedTopic
from broker_lite.wire.calls.verification import (
    AskedTopic,
    AskedTransaction,
    VerifiedTransaction,
    VerifyPartitionsRequest,
)


class Desk:
    """Sends requests to broker 1, as a client or as another broker."""

    def __init__(self, cluster: TransactionCluster) -> None:
        self.cluster = cluster
        self.parts = broker_context(
            cluster.world.nodes[1], registry=cluster, transactions=cluster.at[1]
        )

    async def ready(self) -> None:
        def is_loaded() -> bool:
            try:
                return bool(self.cluster.at[1].place_of("x"))
            except LogbusError:
                return False

        await self.cluster.world.until(is_loaded)

    async def ask(self, name: str, version: int, **fields: Any) -> Any:
        return await ask(self.parts, name, version, **fields)

    async def ask_as_broker(self, call: Call[Any]) -> Any:
        frame = memoryview(encode_call(call, 3, "logbus-broker-9"))[4:]
        context = context_of(call.API_KEY, call.VERSION, "logbus-broker-9")
        message = tables.decode(call.API_KEY, call.VERSION, frame, parse_header(frame).body_at)
        response = await handler(call.API_KEY)(self.parts, context, message)
        octets = tables.encode(call.API_KEY, call.VERSION, 3, response)
        return decode_call(call, memoryview(octets)[4:])

    async def init(self, version: int = 5, **fields: Any) -> Any:
        asked = {"transactional_id": "x", "transaction_timeout_ms": 60_000} | fields
        return await self.ask("InitProducerId", version, **asked)

    async def end(self, epoch: int, committed: bool = True, version: int = 5) -> Any:
        return await self.ask(
            "EndTxn",
            version,
            transactional_id="x",
            producer_id=5,
            producer_epoch=epoch,
            committed=committed,
        )

    async def add(self, version: int, epoch: int, topics: dict[str, Sequence[int]]) -> list[int]:
        """Add partitions as a client of transaction version 1; return their error codes."""
        rows = [
            struct("AddPartitionsToTxn", "AddPartitionsToTxnTopic", name=name, partitions=[*part])
            for name, part in topics.items()
        ]
        answer = await self.ask(
            "AddPartitionsToTxn",
            version,
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=5,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=rows,
        )
        return [
            part.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        ]


def with_desk(test: Any) -> None:
    async def body(cluster: TransactionCluster) -> None:
        desk = Desk(cluster)
        await desk.ready()
        await test(desk)

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_init_producer_id_returns_the_next_epoch_of_the_transactional_id(version: int) -> None:
    async def test(desk: Desk) -> None:
        first = await desk.init(version)
        assert (first.error_code, first.producer_id, first.producer_epoch) == (0, 5, 0)
        assert (await desk.init(version)).producer_epoch == 1

    with_desk(test)


def test_init_producer_id_without_a_transactional_id_returns_a_new_producer_id() -> None:
    async def test(desk: Desk) -> None:
        answers = [await desk.init(4, transactional_id=None) for _ in range(2)]
        assert [(each.producer_id, each.producer_epoch) for each in answers] == [(5, 0), (6, 0)]

    with_desk(test)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transaction_timeout_ms": 900_001}, 50),
        ({"transaction_timeout_ms": 0}, 50),
        ({"transactional_id": ""}, 42),
        ({"producer_id": 5}, 42),
        ({"producer_id": 5, "producer_epoch": 9}, 90),
        ({"producer_id": 99, "producer_epoch": 0}, 90),
    ],
)
def test_init_producer_id_refuses_a_wrong_timeout_or_producer_id_or_producer_epoch(
    fields: dict[str, Any], code: int
) -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        answer = await desk.init(**fields)
        assert (answer.error_code, answer.producer_id) == (code, -1)

    with_desk(test)


@pytest.mark.parametrize("version", range(4))
def test_repeated_end_txn_request_of_transaction_version_1_returns_no_error(version: int) -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        assert (await desk.end(0, version=version)).error_code == 48
        assert await desk.add(version, 0, {"out": (0, 1)}) == [0, 0]
        for _ in range(2):
            answer = await desk.end(0, version=version)
            assert answer.error_code == 0
        assert (await desk.end(0, committed=False, version=version)).error_code == 48
        await desk.cluster.becomes(TransactionState.COMPLETE_COMMIT)
        assert (await desk.end(0, version=version)).error_code == 0

    with_desk(test)


@pytest.mark.parametrize("version", range(4))
def test_add_partitions_to_txn_sent_by_a_client_adds_all_partitions_or_none(version: int) -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        assert await desk.add(version, 0, {"out": (0, 2)}) == [55, 3]
        assert await desk.add(version, 0, {"out": (0,), "gone": (0,)}) == [55, 3]
        assert await desk.add(version, 0, {"__transaction_state": (0,)}) == [17]
        state = desk.cluster.at[1].describe("x").state
        assert state is TransactionState.EMPTY

    with_desk(test)


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (3, 90)])
def test_fenced_producer_gets_an_error_code_of_its_api_version(version: int, code: int) -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        await desk.init()
        assert await desk.add(version, 0, {"out": (0,)}) == [code]
        assert (await desk.end(0, version=version)).error_code == code

    with_desk(test)


def test_end_txn_of_version_5_returns_the_next_producer_id_and_epoch() -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        await desk.add(3, 0, {"out": (0,)})
        answer = await desk.end(0)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 5, 1)
        again = await desk.end(0)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, 5, 1)
        assert (await desk.end(0, committed=False)).error_code == 48
        unknown = await desk.ask(
            "EndTxn", 5, transactional_id="y", producer_id=5, producer_epoch=0, committed=True
        )
        assert unknown.error_code == 49

    with_desk(test)


@pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
def test_add_offsets_to_txn_sent_by_a_client_adds_the_group(version: int) -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        asked = {"transactional_id": "x", "producer_id": 5, "producer_epoch": 0}
        assert (await desk.ask("AddOffsetsToTxn", version, group_id="g", **asked)).error_code == 0
        assert (await desk.ask("AddOffsetsToTxn", version, group_id="", **asked)).error_code == 24
        assert desk.cluster.at[1].describe("x").record.groups == {"g"}

    with_desk(test)


def test_add_offsets_to_txn_from_a_broker_adds_the_group_or_verifies_that_it_was_added() -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        verify = AddGroupRequest("x", 5, 0, "g", verify_only=True)
        assert await desk.ask_as_broker(verify) == AddGroupResponse(120)
        add = AddGroupRequest("x", 5, 0, "g", verify_only=False)
        assert await desk.ask_as_broker(add) == AddGroupResponse(0, 1, 0, 0)
        assert await desk.ask_as_broker(verify) == AddGroupResponse(0, 1, 0, 0)

    with_desk(test)


def broker_add(
    topics: Sequence[AskedTopic], *, verify_only: bool = False
) -> VerifyPartitionsRequest:
    return VerifyPartitionsRequest((AskedTransaction("x", 5, 0, verify_only, tuple(topics)),))


def test_broker_adds_partitions_to_a_transaction_or_verifies_that_they_were_added() -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        first = AskedTopic("out", (0,), OUT)
        both = AskedTopic("out", (0, 1), OUT)
        ok, missing = AddedPartition(0, 0), AddedPartition(1, 120)
        answer = await desk.ask_as_broker(broker_add([first]))
        assert answer.results_by_transaction == (
            VerifiedTransaction("x", (AddedTopic("out", (ok,)),), 1, 0, 0),
        )
        answer = await desk.ask_as_broker(broker_add([both], verify_only=True))
        assert answer.results_by_transaction == (
            VerifiedTransaction("x", (AddedTopic("out", (ok, missing)),), 1, 0, 0),
        )

    with_desk(test)


def test_partition_that_the_coordinators_metadata_lacks_gets_a_retriable_error() -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        other_id = "AAECAwQFBgcICQoLDA0OEA"
        for topic in (
            AskedTopic("new", (0,), OUT),
            AskedTopic("out", (0,), other_id),
        ):
            answer = await desk.ask_as_broker(broker_add([topic]))
            (row,) = answer.results_by_transaction[0].topic_results
            assert [each.partition_error_code for each in row.results_by_partition] == [51]

    with_desk(test)


def test_add_partitions_to_txn_of_version_4_is_refused_to_clients() -> None:
    async def test(desk: Desk) -> None:
        with pytest.raises(ClusterAuthorizationError, match="for brokers; send version 3"):
            await desk.ask("AddPartitionsToTxn", 4, transactions=[])

    with_desk(test)


def test_describe_transactions_shows_the_open_transaction() -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        await desk.add(3, 0, {"out": (1, 0)})
        answer = await desk.ask("DescribeTransactions", 0, transactional_ids=["x", "y"])
        row, unknown = answer.transaction_states
        assert (row.error_code, row.transaction_state, row.producer_id) == (0, "Ongoing", 5)
        assert row.transaction_timeout_ms == 60_000 and row.transaction_start_time_ms > 0
        assert [(topic.topic, topic.partitions) for topic in row.topics] == [("out", [0, 1])]
        assert (unknown.error_code, unknown.transactional_id) == (105, "y")

    with_desk(test)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
def test_list_transactions_filters_by_state_producer_duration_and_pattern(version: int) -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        await desk.init(transactional_id="other")
        await desk.add(3, 0, {"out": (0,)})

        async def listed(**fields: Any) -> list[str]:
            asked = {"state_filters": [], "producer_id_filters": []} | fields
            answer = await desk.ask("ListTransactions", version, **asked)
            assert answer.error_code == 0
            return sorted(row.transactional_id for row in answer.transaction_states)

        assert await listed() == ["other", "x"]
        assert await listed(state_filters=["Ongoing"]) == ["x"]
        assert await listed(producer_id_filters=[6]) == ["other"]
        if version >= 1:
            assert await listed(duration_filter=0) in ([], ["x"])
            assert await listed(duration_filter=60_000) == []
        if version >= 2:
            assert await listed(transactional_id_pattern="o.*r") == ["other"]
            assert await listed(transactional_id_pattern="the") == []

    with_desk(test)


def test_list_transactions_tells_a_broker_epochs_and_searched_partitions() -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        await desk.add(3, 0, {"out": (0,)})
        await desk.end(0, version=4)
        await desk.cluster.becomes(TransactionState.COMPLETE_COMMIT)
        for producer_id, row in ((5, FoundTransaction("x", 5, "CompleteCommit", 0)), (6, None)):
            call = FindTransactionsRequest(producer_id_filters=(producer_id,))
            answer = await desk.ask_as_broker(call)
            assert answer.transaction_states == (() if row is None else (row,))
            assert answer.searched == (SearchedPartition(0, 0),)

    with_desk(test)


def test_list_transactions_reports_unknown_states_and_invalid_patterns() -> None:
    async def test(desk: Desk) -> None:
        await desk.init()
        asked: dict[str, Any] = {"state_filters": ["Open"], "producer_id_filters": []}
        answer = await desk.ask("ListTransactions", 0, **asked)
        assert answer.unknown_state_filters == ["Open"] and answer.transaction_states == []
        asked = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": "("}
        assert (await desk.ask("ListTransactions", 2, **asked)).error_code == 128

    with_desk(test)
