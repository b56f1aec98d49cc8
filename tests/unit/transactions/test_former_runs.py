"""Tests of the bound on the former runs that a sink remembers."""

from __future__ import annotations

from broker_lite.errors import ProducerFencedError
from broker_lite.transactions import sink_events as ev
from broker_lite.transactions.sink_records import FORMER_RUNS_MAX, SinkHead
from broker_lite.transactions.sinks import SinkPartition
from broker_lite.transactions.transaction import Now


def test_sink_remembers_and_fences_only_its_last_16_former_runs() -> None:
    former = tuple(f"run{n}" for n in range(16, 0, -1))
    assert len(former) == FORMER_RUNS_MAX
    sinks = SinkPartition({"s": SinkHead("run17", former)}, {})

    def join(token: int, run: str) -> list[ev.SinkEffect]:
        return sinks.step(Now(0, 0), ev.JoinBatch(token, "s", run, 0, 0, 0, 60_000))

    [refused] = join(1, "run1")
    assert isinstance(refused, ev.SinkReply)
    assert isinstance(refused.result.error, ProducerFencedError)
    [written] = join(2, "run18")
    assert isinstance(written, ev.PersistHead) and written.head is not None
    assert written.head.former_runs == ("run17", *former[:15])
