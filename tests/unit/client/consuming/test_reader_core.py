"""Tests of ``ReaderCore``, the logic of every consumer: calls that are cancelled while they apply
an assignment change. The test runs the calls step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest
from support.client_world import ONE, World, view

from broker_lite.client.callbacks import Callbacks
from broker_lite.client.consuming.changes import Assign, Revoke
from broker_lite.client.consuming.no_membership import NoMembership
from broker_lite.client.consuming.reader_core import ReaderCore
from broker_lite.client.consuming.starting import StartPlan, Starts
from broker_lite.client.consuming.waits import RunOperation
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import Operation
from broker_lite.config import ConsumerConfig
from broker_lite.model import CommittedOffset, TopicPartition

T0 = TopicPartition("t", 0)


def _never() -> Operation[Any]:
    raise AssertionError("the test answers the step")
    yield


class Member(NoMembership):
    """A membership whose assignment changes come from the test."""

    def beginnings(self, pending: Any, deadline_ms: float) -> Operation[StartPlan]:
        return _never()

    def commit(self, rows: Any, grants: Any, deadline_ms: float) -> RunOperation:
        return RunOperation(_never())


class Bench:
    """The reader of a consumer, and the list of the callbacks that it has called."""

    def __init__(self) -> None:
        self.world = World()
        self.called: list[str] = []

        def note(name: str) -> Callable[..., None]:
            return lambda _, tps: self.called.append(name)

        self.reader = ReaderCore(
            None,
            self.world,
            Cluster((ONE,), self.world.now_ms, view=view()),
            ConsumerConfig(),
            group="g",
            joining=lambda reader: Member(reader, topics=("t",), partitions=()),
            callbacks=Callbacks(note("assign"), note("revoke"), note("lost")),
            notify=lambda: None,
        )

    def begin(self) -> Generator[Any, Any, None]:
        """Assign a partition. Return the task that applies the assignment, stopped while it commits
        the partition's start offset."""
        self.reader.assignment.queue.append(Assign({T0: 1}))
        task = self.reader.take_changes()
        next(task)
        commits = {T0: CommittedOffset(7)}
        assert isinstance(task.send(StartPlan(Starts({T0: 7}, {}), commits)), RunOperation)
        return task

    def finish(self, task: Generator[Any, Any, None], result: Any) -> None:
        with pytest.raises(StopIteration):
            task.send(result)
            task.send(None)


def cancel(task: Generator[Any, Any, None]) -> None:
    """Cancel the task and run it until it ends with CancelledError."""
    with pytest.raises(asyncio.CancelledError):
        task.throw(asyncio.CancelledError())
        while True:
            task.send(None)


def test_cancelled_commit_of_a_start_offset_is_retried_before_the_partition_is_read() -> None:
    """Regression: after the cancelled commit, the reader read the partition, but never called
    ``on_assign`` for it."""
    bench = Bench()
    cancel(bench.begin())
    assert bench.reader.collector.assignment() == bench.called == []
    assert bench.reader.has_changes
    bench.finish(bench.begin(), {T0: None})
    assert bench.reader.collector.assignment() == [T0]
    assert bench.called == ["assign"]


def test_on_revoke_is_called_even_if_the_preceding_commit_is_cancelled() -> None:
    """Regression: the reader gave the partition up without a call of ``on_revoke``."""
    bench = Bench()
    bench.finish(bench.begin(), {T0: None})
    bench.reader.assignment.queue.append(Revoke(1, frozenset({T0})))
    task = bench.reader.take_changes()
    next(task)  # The step after the callback for lost partitions.
    assert isinstance(task.send(None), RunOperation)
    cancel(task)
    assert bench.called == ["assign", "revoke"]
    assert bench.reader.collector.assignment() == []


def test_close_calls_on_revoke_even_if_its_last_commit_is_cancelled() -> None:
    """Regression: neither a cancelled nor a failed last commit was followed by ``on_revoke``."""
    bench = Bench()
    bench.finish(bench.begin(), {T0: None})
    task = bench.reader.close(is_done=True)
    assert isinstance(next(task), RunOperation)
    cancel(task)
    assert bench.called == ["assign", "revoke"]
