"""Tests of the search for hanging transactions, over replicas with logs in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.marker_client import MarkerClient, marker, write
from support.replica_world import Node, World, run

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError, NetworkError, NotEnoughReplicasError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import (
    NO_BROKER,
    TRANSACTION_STATE,
    LeaderAndIsr,
    PartitionView,
    TopicView,
)
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.hanging_transactions import HangingTransactions
from broker_lite.server.coordinators.state_log import state_partition
from broker_lite.wire.calls.transaction_search import (
    FindTransactionsRequest,
    FoundTransaction,
    FoundTransactions,
    SearchedPartition,
)

LIMIT_MS = 60_000
STATE_ID = "AAECAwQFBgcICQoLDA0ODw"
LEADERS = (1, 2, 2)
"""The leader of each partition of ``__transaction_state``."""
HOME = state_partition(b"etl", len(LEADERS))
SAYS = "logbus.transactions"


class Search:
    """The search of broker 1, with a clock and coordinators that the test sets."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.leaders = LEADERS
        self.asked: list[tuple[int, tuple[int, ...]]] = []
        self.rows: tuple[FoundTransaction, ...] = ()
        self.epochs = dict.fromkeys(range(len(LEADERS)), 4)
        self.failures: dict[int, LogbusError] = {}
        self.before: Callable[[], Coroutine[Any, Any, Any]] | None = None
        """A function that runs before each answer of a coordinator."""
        self.now_ms = 1_000
        self._hanging = HangingTransactions(
            BrokerConfig(transaction_max_timeout_ms=LIMIT_MS // 2),
            cast(Any, self),
            node.manager,
            clock=cast(Any, SimpleNamespace(monotonic_ms=lambda: self.now_ms)),
            calls=self,
            epochs=CoordinatorEpochs(lambda: self.snapshot),
            metrics=node.metrics,
        )

    @property
    def snapshot(self) -> MetadataSnapshot:
        partitions = tuple(
            PartitionView(number, (leader,), LeaderAndIsr(leader, 4, (), 1))
            for number, leader in enumerate(self.leaders)
        )
        state = TopicView(TRANSACTION_STATE, STATE_ID, partitions, {})
        found = self.node.snapshot
        return dataclasses.replace(found, topics={**found.topics, TRANSACTION_STATE: state})

    async def send(self, broker_id: int, call: Any, timeout_ms: float = 0) -> Any:
        assert isinstance(call, FindTransactionsRequest)
        self.asked.append((broker_id, call.producer_id_filters))
        if self.before is not None:
            await self.before()
        if broker_id in self.failures:
            raise self.failures[broker_id]
        searched = tuple(
            SearchedPartition(number, self.epochs[number])
            for number, leader in enumerate(LEADERS)
            if leader == broker_id and number in self.epochs
        )
        rows = self.rows if broker_id == LEADERS[HOME] else ()
        return FoundTransactions(0, (), rows, searched)

    async def end(self, after_ms: int = LIMIT_MS) -> int:
        """Search, and search again when all transactions have been silent for ``after_ms``. Return
        the last stable offset."""
        await self._hanging.end()
        self.now_ms += after_ms
        await self._hanging.end()
        return self.stable

    @property
    def stable(self) -> int:
        log = self.node.replica().log
        return log.reader.last_stable_offset(log.log_end_offset)


def searching(test: Callable[[Search], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def body(world: World) -> None:
        await test(Search(await world.serves(1)))

    run(body, **({"brokers": 1} | options))


def row(state: str, epoch: int = 0) -> FoundTransaction:
    return FoundTransaction("etl", 7, state, epoch)


@pytest.mark.parametrize(
    ("rows", "readable", "said"),
    [
        ((row("CompleteCommit"),), [0], "committed, as its coordinator has decided"),
        ((row("CompleteAbort"),), [], "aborted, as its coordinator has decided"),
        ((row("CompleteCommit", 1),), [], "aborted, because no coordinator knows its outcome"),
        ((), [], "aborted, because no coordinator knows its outcome"),
    ],
)
def test_hanging_transaction_ends_as_the_coordinators_know_it(
    rows: tuple[FoundTransaction, ...],
    readable: list[int],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", SAYS)

    async def test(search: Search) -> None:
        await write(search.node)
        search.rows = rows
        assert await search.end(LIMIT_MS - 1) == 0 and search.asked == []
        search.now_ms += 1
        assert await search.end(0) == 2
        assert search.asked == [(1, (7,)), (2, (7,))]
        assert await MarkerClient(search.node).read() == readable
        assert search.node.metrics.value("transactions", "hanging") == 1
        await search.end()
        assert len(search.asked) == 2, "without open transactions, no coordinator is asked"

    searching(test)
    start = "t-0: the transaction of producer 7 in epoch 0, open from offset 0"
    assert f"{start}, hung and is now {said}" in caplog.text


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_transaction_that_its_coordinator_will_end_stays_open(state: str) -> None:
    async def test(search: Search) -> None:
        await write(search.node)
        search.rows = (row(state),)
        assert await search.end() == 0
        assert search.node.replica().log.log_end_offset == 1

    searching(test)


def silent(search: Search) -> None:
    search.failures[2] = NetworkError("unreachable")


def refusing(search: Search) -> None:
    search.failures[1] = search.failures[2] = NotEnoughReplicasError("a refusal")


def not_leading(search: Search) -> None:
    del search.epochs[0]


def deposed(search: Search) -> None:
    search.epochs[0] = 3


def leaderless(search: Search) -> None:
    search.leaders = (NO_BROKER, *LEADERS[1:])


@pytest.mark.parametrize(
    ("fault", "missing"),
    [
        (silent, [1, 2]),
        (refusing, [0, 1, 2]),
        (not_leading, [0]),
        (deposed, [0]),
        (leaderless, [0]),
    ],
)
def test_transaction_that_is_unknown_stays_open_until_every_coordinator_has_answered(
    fault: Callable[[Search], None], missing: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(search: Search) -> None:
        await write(search.node)
        fault(search)
        assert await search.end() == 0
        assert search.node.replica().log.log_end_offset == 1
        start = "t-0: the transaction of producer 7 in epoch 0, open from offset 0, is unknown to"
        end = f"these partitions of {TRANSACTION_STATE} answer, too: {missing}"
        assert start in caplog.text and caplog.text.rstrip().endswith(end)
        search.failures = {}
        search.leaders = LEADERS
        search.epochs = dict.fromkeys(range(3), 4)
        assert await search.end(0) == 2

    searching(test)


def test_answer_of_a_deposed_coordinator_decides_nothing() -> None:
    async def test(search: Search) -> None:
        await write(search.node)
        search.rows = (row("CompleteCommit"),)
        search.epochs[HOME] = 3
        assert await search.end() == 0

    searching(test)


def test_transaction_with_a_new_batch_does_not_end_by_an_earlier_answer() -> None:
    """In transaction version 1, the batch may belong to the producer's next transaction."""

    async def test(search: Search) -> None:
        await write(search.node)

        async def write_again() -> None:
            search.before = None
            await write(search.node, sequence=1)

        search.before = write_again
        assert await search.end() == 0
        assert await search.end(LIMIT_MS - 1) == 0 and len(search.asked) == 2
        assert await search.end(1) == 3

    searching(test)


def test_new_leader_waits_the_full_time_before_it_asks() -> None:
    async def test(search: Search) -> None:
        await write(search.node)
        assert await search.end(LIMIT_MS - 1) == 0
        search.node.world.elect(1)
        await search.node.world.serves(1)
        assert await search.end(LIMIT_MS - 1) == 0 and search.asked == []
        assert await search.end(1) == 2

    searching(test)


def test_follower_ends_no_transactions() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write(leader)
        await world.until(lambda: world.nodes[2].replica().log.log_end_offset == 1)
        follower = Search(world.nodes[2])
        assert await follower.end() == 0
        assert follower.asked == []

    run(body, brokers=2)


def test_transaction_that_ends_during_the_search_gets_no_second_marker() -> None:
    async def test(search: Search) -> None:
        await write(search.node)

        async def mark() -> None:
            search.before = None
            assert set((await MarkerClient(search.node).mark(marker())).values()) == {0}

        search.before = mark
        assert await search.end() == 2
        assert search.node.replica().log.log_end_offset == 2
        assert await MarkerClient(search.node).read() == [0]

    searching(test)


def test_marker_that_the_isr_does_not_confirm_is_written_by_the_next_search() -> None:
    async def test(search: Search) -> None:
        world = search.node.world
        await write(search.node)
        world.config["min.insync.replicas"] = "2"
        world.take_out(2)
        assert await search.end() == 0
        world.config["min.insync.replicas"] = "1"
        world.publish()
        assert await search.end(0) == 2

    searching(test, brokers=2)
