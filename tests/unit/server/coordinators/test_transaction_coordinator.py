"""Tests of the transaction coordinator: state records, markers, responses and expiry."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from support.transaction_world import OUT_0, OUT_1, run
from support.transaction_world import TransactionCluster as Cluster

from broker_lite.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    PolicyViolationError,
    ProducerFencedError,
    ProtocolError,
    TransactionalIdAuthorizationError,
    TransactionalIdNotFoundError,
)
from broker_lite.model import UNNUMBERED, PartitionKey
from broker_lite.server.coordinators import transaction_coordinator, transaction_markers
from broker_lite.server.coordinators.sink_coordinator import FLAG_SINK
from broker_lite.server.coordinators.state_log import StateLog
from broker_lite.transactions import events as ev
from broker_lite.transactions import transaction
from broker_lite.transactions.records import TransactionState, decode_transaction
from broker_lite.transactions.sink_events import EndBatch, JoinBatch, KeepBatch
from broker_lite.transactions.sink_records import ProducerPair, SinkHead, encode_head, head_key


def test_commit_sends_markers_to_every_partition_and_group() -> None:
    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        assert pair == (5, 0)
        assert (await cluster.add(pair)).transaction == 1
        await cluster.add(pair, partitions=frozenset(), groups=frozenset({"g"}))
        assert await cluster.end(pair) == (5, 1)
        await cluster.becomes(TransactionState.COMPLETE_COMMIT)
        ((broker_id, marker),) = cluster.received
        assert broker_id == 3
        assert (marker.producer_id, marker.producer_epoch, marker.is_commit) == (5, 1, True)
        assert {number for row in marker.topics for number in row.partitions} == {0, 1}
        assert (marker.coordinator_epoch, marker.number, marker.state_partition) == (0, 1, 0)
        (ended,) = cluster.ended
        assert (ended.group_id, ended.producer_epoch, ended.committed) == ("g", 0, True)

    run(test)


def test_coordinator_sends_no_marker_before_its_decision_is_committed() -> None:
    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        await cluster.add(pair)
        cluster.world.nodes[1].cut_off()
        ending = asyncio.create_task(cluster.end(pair))
        node = cluster.world.nodes[1]
        await cluster.world.until(lambda: node.replica().log.log_end_offset == 3)
        await asyncio.sleep(0.01)
        assert not ending.done() and not cluster.received
        node.reached = True
        assert await ending == (5, 1)
        await cluster.becomes(TransactionState.COMPLETE_COMMIT)

    run(test)


def test_next_coordinator_resends_the_markers_of_a_transaction_that_is_not_completed() -> None:
    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        await cluster.add(pair)
        cluster.unreachable = True
        assert await cluster.end(pair, commit=False) == (5, 1)
        cluster.world.elect(2)
        cluster.unreachable = False
        await cluster.becomes(TransactionState.COMPLETE_ABORT, 2)
        assert {(marker.coordinator_epoch, marker.is_commit) for _, marker in cluster.received} == {
            (1, False)
        }
        with pytest.raises(NotCoordinatorError, match="broker 1 does not coordinate"):
            await cluster.at[1].ask("x", ev.Init(UNNUMBERED, 1000))
        # The producer repeats its EndTxn at the new coordinator, and begins its next transaction.
        assert await cluster.end(pair, commit=False, number=2) == (5, 1)
        assert (await cluster.add((5, 1), number=2)).transaction == 2

    run(test)


@pytest.mark.parametrize("is_fenced", [False, True])
def test_former_coordinator_returns_not_coordinator_for_a_successors_transaction(
    is_fenced: bool,
) -> None:
    """Regression: the former coordinator refused the commit of a transaction that it did not
    know, because the transaction had begun at the successor. The producer then aborted the
    transaction."""

    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        manager = cluster.world.nodes[1].manager
        apply = manager.apply
        manager.apply = lambda snapshot: None  # type: ignore[method-assign]
        cluster.world.elect(2, isr=(2, 3))
        await cluster.add(pair, number=2)
        if is_fenced:
            pair = await cluster.end(pair, number=2)
            await cluster.add(pair, number=2)
        ending = asyncio.create_task(
            cluster.at[1].ask("x", ev.End(UNNUMBERED, *pair, is_commit=True))
        )
        await asyncio.sleep(0.01)
        assert not ending.done()
        apply(cluster.world.snapshot)
        with pytest.raises(NotCoordinatorError):
            await ending
        assert (await cluster.end(pair, number=2))[1] == pair[1] + 1

    run(test)


def test_replaced_transaction_coordinator_does_not_refuse_a_restarted_spark_query() -> None:
    """Regression: the former coordinator knew only the query's earlier run. It refused the commit
    of the run that had begun at its successor."""

    async def test(cluster: Cluster) -> None:
        async def join(number: int, run: str) -> frozenset[ProducerPair]:
            request = JoinBatch(UNNUMBERED, "s", run, 0, 0, 0, 60_000, frozenset())
            found = await cluster.at[number].ask_sink("s", request)
            return frozenset((ProducerPair(found.producer_id, found.epoch),))

        await cluster.init()
        await join(1, "first")
        manager = cluster.world.nodes[1].manager
        apply = manager.apply
        manager.apply = lambda snapshot: None  # type: ignore[method-assign]
        cluster.world.elect(2, isr=(2, 3))
        await cluster.init(2)
        commit = EndBatch(UNNUMBERED, "s", "second", 0, True, await join(2, "second"), 1)
        ending = asyncio.create_task(cluster.at[1].ask_sink("s", commit))
        await asyncio.sleep(0.01)
        assert not ending.done()
        apply(cluster.world.snapshot)
        with pytest.raises(NotCoordinatorError):
            await ending
        await cluster.at[2].ask_sink("s", commit)

    run(test)


@pytest.mark.parametrize("is_sink", [False, True])
def test_coordinator_that_cannot_confirm_its_leadership_returns_a_retriable_error(
    is_sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_coordinator, "CONFIRM_S", 0.01)

    async def test(cluster: Cluster) -> None:
        await cluster.init()
        cluster.world.nodes[1].cut_off()
        with pytest.raises(CoordinatorNotAvailableError, match="confirm that it leads"):
            if is_sink:
                keep = KeepBatch(UNNUMBERED, "s", "run", 0)
                await cluster.at[1].ask_sink("s", keep)
            else:
                await cluster.at[1].ask("x", ev.End(UNNUMBERED, 77, 0, is_commit=True))

    run(test)


def test_waiting_requests_fail_when_the_coordinator_loses_leadership() -> None:
    """Regression: requests failed, but asyncio logged "Future exception was never retrieved"."""

    async def test(cluster: Cluster) -> None:
        logged: list[dict[str, object]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: logged.append(context))
        pair = await cluster.init()
        cluster.world.nodes[1].cut_off()
        adding = asyncio.create_task(
            cluster.at[1].ask("x", ev.Add(UNNUMBERED, *pair, frozenset((OUT_0,))))
        )
        parked = asyncio.create_task(cluster.at[1].ask("x", ev.Init(UNNUMBERED, 1000)))
        node = cluster.world.nodes[1]
        await cluster.world.until(lambda: node.replica().log.log_end_offset == 2)
        cluster.world.elect(2)
        for waiting in (adding, parked):
            result = await waiting
            assert isinstance(result.error, NotCoordinatorError)
        gc.collect()
        assert logged == []

    run(test)


def test_marker_is_resent_until_the_partition_leader_accepts_it() -> None:
    async def test(cluster: Cluster) -> None:
        refusals = [6, 19, 3]
        cluster.code = lambda partition: refusals.pop() if partition and refusals else 0
        pair = await cluster.init()
        await cluster.add(pair)
        await cluster.end(pair)
        await cluster.becomes(TransactionState.COMPLETE_COMMIT)
        sent = [row.partitions for _, marker in cluster.received for row in marker.topics]
        assert [set(each) for each in sent] == [{0, 1}, {1}, {1}, {1}]

    run(test)


def test_marker_requests_to_one_broker_are_sent_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(cluster: Cluster) -> None:
        monkeypatch.setattr(transaction_markers, "PARTITIONS_PER_CALL", 1)
        under_way = most = 0
        send = cluster.send

        async def counted(broker_id: int, call: Any, timeout_ms: float = 0) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            answer = await send(broker_id, call, timeout_ms)
            under_way -= 1
            return answer

        monkeypatch.setattr(cluster, "send", counted)
        pair = await cluster.init()
        await cluster.add(pair)
        await cluster.end(pair)
        await cluster.becomes(TransactionState.COMPLETE_COMMIT)
        assert len(cluster.received) == 2
        assert most == 1

    run(body)


def test_open_task_attempts_of_a_spark_sink_are_listed_until_their_batch_ends() -> None:
    """An open attempt may be a hanging transaction, so administrators must find it in the
    coordinator's list."""

    async def body(cluster: Cluster) -> None:
        coordinator = cluster.at[1]

        async def join(task: int, *partitions: PartitionKey) -> ProducerPair:
            request = JoinBatch(UNNUMBERED, "s", "run", 0, task, 0, 60_000, frozenset(partitions))
            found = await coordinator.ask_sink("s", request)
            return ProducerPair(found.producer_id, found.epoch)

        def listed() -> set[tuple[str, int, str]]:
            return {(row.name, row.record.producer_id, row.state.label) for row in views}

        await cluster.init()
        pairs = [await join(0, OUT_0), await join(1, OUT_1)]
        views = [view async for view in coordinator.views()]
        assert listed() == {
            *(("s", pair.producer_id, "Ongoing") for pair in pairs),
            ("x", coordinator.describe("x").record.producer_id, "Empty"),
        }
        sink = coordinator.describe("s")
        assert (sink.state, sink.record.partitions) == (TransactionState.ONGOING, {OUT_0, OUT_1})
        winners = frozenset(pairs)
        await coordinator.ask_sink("s", EndBatch(UNNUMBERED, "s", "run", 0, True, winners, 2))
        await cluster.world.until(lambda: coordinator.describe("s").record.state.label == "Empty")
        views = [view async for view in coordinator.views()]
        assert {name for name, _, _ in listed()} == {"x"}
        assert coordinator.describe("s").record.partitions == frozenset()

    run(body)


def test_search_finds_the_last_transactions_of_producers_and_open_task_attempts() -> None:
    async def body(cluster: Cluster) -> None:
        coordinator = cluster.at[1]

        async def found(*producer_ids: int) -> dict[int, tuple[int, str]]:
            views, leader_epochs = await coordinator.find(frozenset(producer_ids))
            assert leader_epochs == {0: 0}
            pairs = [(view.record.written_by, view.state.label) for view in views]
            return {producer_id: (epoch, state) for (producer_id, epoch), state in pairs}

        pair = await cluster.init()
        join = JoinBatch(UNNUMBERED, "s", "run", 0, 0, 0, 60_000, frozenset((OUT_0,)))
        attempt = await coordinator.ask_sink("s", join)
        opened = {attempt.producer_id: (attempt.epoch, "Ongoing")}
        # The transactional id has had no transaction yet.
        assert await found(pair[0], attempt.producer_id) == opened
        await cluster.add(pair)
        assert await found(pair[0], attempt.producer_id) == opened | {pair[0]: (0, "Ongoing")}
        await cluster.end(pair)
        await cluster.becomes(TransactionState.COMPLETE_COMMIT)
        assert await found(pair[0]) == {pair[0]: (0, "CompleteCommit")}
        assert await found(99) == {}
        await coordinator.ask_sink("s", EndBatch(UNNUMBERED, "s", "run", 0, False))
        await cluster.world.until(lambda: coordinator.describe("s").record.state.label == "Empty")
        assert await found(attempt.producer_id) == {}

    run(body)


@pytest.mark.parametrize("is_deposed", [False, True])
def test_coordinator_that_cannot_confirm_its_leadership_has_searched_no_partition(
    is_deposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced coordinator does not know the transactions that began at its successor."""
    monkeypatch.setattr(transaction_coordinator, "CONFIRM_S", 0.01)

    async def test(cluster: Cluster) -> None:
        await cluster.init()
        if is_deposed:
            manager = cluster.world.nodes[1].manager
            manager.apply = lambda snapshot: None  # type: ignore[method-assign]
            cluster.world.elect(2, isr=(2, 3))
        else:
            cluster.world.nodes[1].cut_off()
        assert (await cluster.at[1].find(frozenset((99,)))).leader_epochs == {}

    run(test)


def test_coordinator_that_loses_a_partition_during_a_search_has_not_searched_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.init()
        coordinator = cluster.at[1]
        confirm = coordinator._is_confirmed

        async def confirm_and_lose(led: Any) -> bool:
            is_confirmed = await confirm(led)
            cluster.world.elect(2)
            return is_confirmed

        monkeypatch.setattr(coordinator, "_is_confirmed", confirm_and_lose)
        assert (await coordinator.find(frozenset((99,)))).leader_epochs == {}

    run(test)


def test_producer_is_refused_a_transactional_id_while_a_spark_sink_registers_it() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.init()
        join = JoinBatch(UNNUMBERED, "s", "run", 0, 0, 0, 60_000, frozenset())
        joining = asyncio.ensure_future(cluster.at[1].ask_sink("s", join))
        await asyncio.sleep(0)
        assert not joining.done()
        with pytest.raises(InvalidRequestError, match="id of a Spark sink"):
            await cluster.at[1].ask("s", ev.Init(UNNUMBERED, 60_000))
        await joining

    run(body)


def test_coordinator_that_cannot_read_the_state_of_a_spark_sink_refuses_its_requests() -> None:
    """The record holds the sink's last committed batch. A coordinator that ignored the record would
    let Spark write this batch again."""

    async def body(cluster: Cluster) -> None:
        join = JoinBatch(UNNUMBERED, "s", "run", 0, 0, 0, 60_000, frozenset())
        await cluster.init()
        later_version = b"\x00\x01" + encode_head(SinkHead("run", batch=0))[2:]
        await cluster.at[1].append_state(0, head_key("s"), later_version, FLAG_SINK)
        cluster.world.elect(2)
        await cluster.init(2)
        with pytest.raises(ProtocolError, match="version 1; this broker reads 0: upgrade"):
            await cluster.at[2].ask_sink("s", join)
        # A search would not find the sink's open attempts.
        assert (await cluster.at[2].find(frozenset((99,)))).leader_epochs == {}

    run(body)


def test_spark_sink_with_a_timeout_above_the_broker_limit_is_refused() -> None:
    async def body(cluster: Cluster) -> None:
        join = JoinBatch(UNNUMBERED, "s", "run", 0, 0, 0, 900_001, frozenset())
        with pytest.raises(InvalidTransactionTimeoutError, match="lower the option or raise"):
            await cluster.at[1].ask_sink("s", join)

    run(body)


def test_coordinator_with_the_maximum_of_transactional_ids_refuses_new_ids_and_new_spark_sinks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(cluster: Cluster) -> None:
        coordinator = cluster.at[1]

        def join(run: str) -> JoinBatch:
            return JoinBatch(UNNUMBERED, "s", run, 0, 0, 0, 60_000, frozenset())

        await cluster.init()
        await coordinator.ask_sink("s", join("first"))
        monkeypatch.setattr(transaction_coordinator, "IDS_MAX", 1)
        with pytest.raises(PolicyViolationError, match="the maximum; reuse transactional ids"):
            await coordinator.ask_sink("t", join("first"))
        with pytest.raises(PolicyViolationError, match="the maximum; reuse transactional ids"):
            await coordinator.ask("y", ev.Init(UNNUMBERED, 60_000))
        # The commit of a batch without rows creates no sink.
        await coordinator.ask_sink("t", EndBatch(UNNUMBERED, "t", "first", 0, True))
        # Ids and sinks that the coordinator knows already are not limited.
        await cluster.init()
        await coordinator.ask_sink("s", join("second"))

    run(body)


def test_marker_for_a_partition_of_a_deleted_topic_is_skipped() -> None:
    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        await cluster.add(pair)
        cluster.has_out = False
        await cluster.end(pair)
        await cluster.becomes(TransactionState.COMPLETE_COMMIT)
        assert not cluster.received

    run(test)


@pytest.mark.parametrize("is_deleted", [False, None])
def test_marker_waits_until_the_coordinators_metadata_contains_the_topic(
    is_deleted: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that the metadata lack may be new, not deleted. Without the marker, read_committed
    readers would never get its committed records."""
    monkeypatch.setattr(transaction_markers, "RETRY_S", (0.001, 0.002))

    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        await cluster.add(pair)
        cluster.has_out, cluster.is_out_deleted = False, is_deleted
        await cluster.end(pair)
        await asyncio.sleep(0.1)
        assert cluster.at[1].describe("x").state is TransactionState.PREPARE_COMMIT
        cluster.has_out = True
        await cluster.becomes(TransactionState.COMPLETE_COMMIT)
        sent = {number for _, marker in cluster.received for number in marker.topics[0].partitions}
        assert sent == {0, 1}

    run(test)


def test_fenced_coordinator_does_not_resend_its_transaction_marker() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.code = lambda partition: 52
        pair = await cluster.init()
        await cluster.add(pair)
        await cluster.end(pair)
        await cluster.world.until(lambda: bool(cluster.received))
        await asyncio.sleep(0.05)
        assert len(cluster.received) == 1
        assert cluster.at[1].describe("x").state is TransactionState.PREPARE_COMMIT

    run(test)


def test_init_producer_id_aborts_the_open_transaction_before_it_returns() -> None:
    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        await cluster.add(pair)
        assert await cluster.init() == (5, 2)
        assert [marker.is_commit for _, marker in cluster.received] == [False]
        with pytest.raises(ProducerFencedError, match="has producer id 5 and epoch 2"):
            await cluster.end(pair)

    run(test)


def test_init_producer_id_that_times_out_does_not_raise_the_producer_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        await cluster.add(pair)
        cluster.unreachable = True
        await cluster.end(pair)
        with monkeypatch.context() as patch:
            patch.setattr(transaction_coordinator, "PARK_S", 0.05)
            with pytest.raises(ConcurrentTransactionsError, match="try again"):
                await cluster.init()
        cluster.unreachable = False
        await cluster.becomes(TransactionState.COMPLETE_COMMIT)
        # The failed InitProducerId raised no epoch.
        assert await cluster.init() == (5, 2)

    run(test)


def test_transaction_timeout_survives_a_change_of_the_coordinator() -> None:
    async def test(cluster: Cluster) -> None:
        pair = await cluster.init(timeout_ms=100)
        await cluster.add(pair)
        await cluster.becomes(TransactionState.COMPLETE_ABORT)
        await cluster.add((5, 1))
        cluster.world.elect(2)
        await cluster.becomes(TransactionState.COMPLETE_ABORT, 2)
        assert [marker.number for _, marker in cluster.received] == [1, 2]

    run(test)


def test_retried_append_of_a_commit_is_not_logged_as_a_transaction_timeout(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: each retry was logged as a timeout, although the transaction had committed."""
    monkeypatch.setattr(transaction, "RETRY_MS", 5)
    caplog.set_level("INFO", "logbus.transactions")
    append = StateLog.append
    refusals = 0

    def refuse_end(
        log: StateLog, partition: int, key: bytes, value: bytes | None, flags: int = 0
    ) -> asyncio.Future[None]:
        nonlocal refusals
        assert value is not None
        is_end = decode_transaction(value).state is TransactionState.COMPLETE_COMMIT
        if not is_end or refusals == 2:
            return append(log, partition, key, value, flags)
        refusals += 1
        future = asyncio.get_running_loop().create_future()
        future.set_exception(NotEnoughReplicasError("1 replica is in sync"))
        return future

    monkeypatch.setattr(StateLog, "append", refuse_end)

    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        await cluster.add(pair)
        await cluster.end(pair)
        await cluster.world.until(lambda: not cluster.at[1]._led[0].transactions)
        assert refusals == 2

    run(test)
    assert "timed out" not in caplog.text


def test_idle_transactional_id_expires_and_one_with_an_open_transaction_stays() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.init()
        coordinator = cluster.at[1]
        await asyncio.sleep(0.02)
        other = await cluster.ask(ev.Init(UNNUMBERED, 60_000), name="y")
        pair = other.producer_id, other.epoch
        await cluster.ask(ev.Add(UNNUMBERED, *pair, frozenset((OUT_0,))), name="y")
        await asyncio.sleep(0.02)
        await coordinator.expire()
        with pytest.raises(
            TransactionalIdNotFoundError, match="expired, or no producer has used it"
        ):
            while coordinator.describe("x"):
                await asyncio.sleep(0.001)
        assert coordinator.describe("y").state is TransactionState.ONGOING
        assert [view.name async for view in coordinator.views()] == ["y"]

    run(test, transactional_id_expiration_ms=10)


def test_completed_transaction_leaves_no_state_machine_in_the_memory_of_the_coordinator() -> None:
    async def test(cluster: Cluster) -> None:
        pair = await cluster.init()
        await cluster.add(pair)
        await cluster.end(pair)
        await cluster.world.until(lambda: not cluster.at[1]._led[0].transactions)
        assert cluster.at[1].describe("x").state is TransactionState.COMPLETE_COMMIT

    run(test)


@pytest.mark.parametrize("name", ["", "x" * 1025])
def test_transactional_id_of_a_wrong_length_is_refused(name: str) -> None:
    async def test(cluster: Cluster) -> None:
        with pytest.raises(InvalidRequestError, match="give 1 to 1024 bytes"):
            await cluster.at[1].ask(name, ev.Init(UNNUMBERED, 1000))

    run(test)


def test_transactional_ids_are_refused_while_a_broker_lacks_the_transaction_feature() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.features = {}
        with pytest.raises(TransactionalIdAuthorizationError, match="upgrade it"):
            await cluster.at[1].ask("x", ev.Init(UNNUMBERED, 1000))

    run(test)


def test_metrics_count_open_and_ended_transactions() -> None:
    async def test(cluster: Cluster) -> None:
        metrics = cluster.metrics[1]

        def gauges() -> dict[str, object]:
            names = ("open_transactions", "oldest_transaction_age_seconds")
            found = {one.metric.name: one.values for one in metrics.samples()}
            return {name: found[name] for name in names}

        assert gauges() == {
            "open_transactions": {(): 0},
            "oldest_transaction_age_seconds": {(): 0},
        }
        pair = await cluster.init()
        for commit in (True, False):
            await cluster.add(pair)
            assert gauges()["open_transactions"] == {(): 1}
            pair = await cluster.end(pair, commit)
            await cluster.becomes(
                TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
            )
        await cluster.world.until(lambda: metrics.value("transactions", "aborted") == 1)
        assert metrics.value("transactions", "committed") == 1
        assert gauges()["open_transactions"] == {(): 0}

    run(test)


def test_metrics_count_spark_sink_batches_by_outcome() -> None:
    async def test(cluster: Cluster) -> None:
        coordinator, metrics = cluster.at[1], cluster.metrics[1]

        async def join(batch: int, run: str = "run") -> frozenset[ProducerPair]:
            found = await coordinator.ask_sink(
                "s", JoinBatch(UNNUMBERED, "s", run, batch, 0, 0, 60_000)
            )
            return frozenset((ProducerPair(found.producer_id, found.epoch),))

        async def end(batch: int, winners: frozenset[ProducerPair], *, commit: bool) -> None:
            await coordinator.ask_sink(
                "s", EndBatch(UNNUMBERED, "s", "run", batch, commit, winners, 1)
            )

        def opened() -> object:
            return {row.metric.name: row.values for row in metrics.samples()}["open_transactions"]

        def counted() -> tuple[float, ...]:
            outcomes = ("committed", "repeated", "aborted")
            return tuple(metrics.value("spark_sink_batches", each) for each in outcomes)

        winners = await join(0)
        assert (opened(), counted()) == ({(): 1}, (0, 0, 0))
        assert coordinator.describe("s").record.start_ms > 0
        await end(0, winners, commit=True)
        await cluster.world.until(lambda: opened() == {(): 0})
        assert counted() == (1, 0, 0)
        await end(0, frozenset(), commit=True)
        assert counted() == (1, 1, 0)
        await join(1)
        await end(1, frozenset(), commit=False)
        assert counted() == (1, 1, 1)
        await join(1)
        await join(1, "next run")
        assert counted() == (1, 1, 2)

    run(test)
