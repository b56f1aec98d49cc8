"""Tests of the detection of leaders that hang."""

from __future__ import annotations

from support.client_world import ONE, TWO, World, view

from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.overdue import LATE_MS, OverdueRequests
from broker_lite.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Bench:
    """A client of brokers ONE and TWO. ONE leads t-0 and t-1."""

    def __init__(self) -> None:
        self.world = World()
        self.cluster = Cluster((ONE, TWO), self.world.now_ms)
        self.cluster.learn(view(), everything=True)
        self.reported: list[set[TopicPartition]] = []
        self.requests: OverdueRequests[str] = OverdueRequests(
            self.world, self.cluster, self.reported.append
        )


def test_client_asks_another_broker_first_after_a_request_is_overdue() -> None:
    bench = Bench()
    bench.requests.sent(ONE, "a", [T0, T1])
    bench.world.run(LATE_MS - 1)
    assert bench.reported == []
    assert bench.cluster.candidates()[0] == ONE

    bench.world.run(1)
    assert bench.reported == [{T0, T1}]
    assert bench.cluster.candidates()[0] == TWO


def test_long_poll_counts_as_overdue_only_after_its_wait_time() -> None:
    bench = Bench()
    bench.requests.sent(ONE, "a", [T0], wait_ms=2 * LATE_MS)
    bench.world.run(2 * LATE_MS)
    assert bench.reported == []

    bench.world.run(LATE_MS)
    assert bench.reported == [{T0}]


def test_answered_request_is_never_reported_as_overdue() -> None:
    bench = Bench()
    bench.requests.sent(ONE, "a", [T0])
    bench.requests.answered(ONE, "a")
    bench.world.run(10 * LATE_MS)
    assert bench.reported == []


def test_overdue_request_is_given_up_once_the_metadata_name_another_leader() -> None:
    bench = Bench()
    bench.requests.sent(ONE, "a", [T0])
    bench.requests.sent(ONE, "b", [T1])
    bench.world.run(LATE_MS)
    assert bench.requests.deposed() == []

    bench.cluster.learn(view(leaders=(1, 2), leader_epoch=6), everything=True)
    assert bench.requests.deposed() == [(ONE, "b")]
    bench.requests.answered(ONE, "b")
    assert bench.requests.deposed() == []
