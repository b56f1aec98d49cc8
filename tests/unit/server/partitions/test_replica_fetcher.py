"""Tests of a follower's fetch requests to one leader: which partitions share a request,
and how long a request waits for records."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from broker_lite.config import BrokerConfig, TopicConfig
from broker_lite.errors import NetworkError, StorageError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import BrokerView, Endpoint, PartitionKey
from broker_lite.replication.effects import FetchFrom
from broker_lite.replication.events import Event
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions import replica_fetcher
from broker_lite.server.partitions.replica_fetcher import Answered, Fetchers
from broker_lite.wire import fetch as wire

LEADER = BrokerView(1, Endpoint("test", 1), "D" * 22, 101)


class Leader:
    """A leader that holds back its responses until the test answers the requests."""

    def __init__(self) -> None:
        self.snapshot = MetadataSnapshot(brokers={1: LEADER})
        self.broker_epoch = 102
        self.asked: list[tuple[wire.FetchRequest, Answered]] = []

    def fetchers(self) -> Fetchers:
        """Return the fetchers of broker 2, which follows this leader."""
        loop, config = asyncio.get_running_loop(), BrokerConfig(broker_id=2)
        return Fetchers(loop, config, net=self, cluster=self, metrics=Metrics())

    def fetch(self, leader: BrokerView, request: wire.FetchRequest, answered: Answered) -> None:
        self.asked.append((request, answered))

    async def answer_nothing(self, index: int, error_code: int = 0) -> None:
        """Answer a request with no records, and with this error code for each partition."""
        request, answered = self.asked[index]
        topics = [
            wire.FetchedTopic(
                "",
                topic.topic_id,
                [
                    wire.FetchedPartition(
                        row.partition, error_code, 0, 0, 0, memoryview(b""), None, None, -1, -1
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        answered(wire.FetchResponse(0, 0, topics, 0))
        await asyncio.sleep(0)

    def wanted(self, index: int) -> list[int]:
        return [row.partition for topic in self.asked[index][0].topics for row in topic.partitions]


class Follower:
    """A follower of one partition that fetches again after every response."""

    def __init__(self, fetchers: Fetchers, partition: int) -> None:
        self.fetchers = fetchers
        self.key = PartitionKey("t" * 22, partition)
        self.log: Any = SimpleNamespace(log_start_offset=0, config=TopicConfig())

    def ask(self) -> None:
        self.fetchers.fetch(self, FetchFrom(1, 0, 0, -1))

    def deliver(self, event: Event) -> None:
        self.ask()


def test_waiting_fetches_of_two_idle_partitions_are_merged_into_one() -> None:
    """Regression: of two waiting fetches, each repeated one made the leader answer the other at
    once."""

    async def test() -> None:
        leader = Leader()
        fetchers = leader.fetchers()
        for partition in range(2):
            Follower(fetchers, partition).ask()
            await asyncio.sleep(0)
        assert [leader.wanted(n) for n in range(2)] == [[0], [1]]
        assert leader.asked[1][0].max_wait_ms == 0
        await leader.answer_nothing(0)
        assert len(leader.asked) == 2
        await leader.answer_nothing(1)
        assert len(leader.asked) == 3
        assert sorted(leader.wanted(2)) == [0, 1]
        assert leader.asked[2][0].max_wait_ms > 0
        fetchers.close()

    asyncio.run(test())


def test_idle_partitions_are_fetched_in_a_separate_request_that_waits_longer() -> None:
    """Idle partitions must not slow down the frequent requests for busy partitions.

    The request for idle partitions waits four times as long, because expired waits took most of an
    idle broker's processor time.
    """

    async def test() -> None:
        leader = Leader()
        fetchers = leader.fetchers()
        followers = [Follower(fetchers, partition) for partition in range(3)]
        for follower in followers:
            follower.ask()
        await asyncio.sleep(0.001)
        assert [leader.wanted(0), leader.asked[0][0].flags & wire.FLAG_IDLE] == [[0, 1, 2], 0]
        for follower in followers:
            fetchers._hot_until[follower.key] -= replica_fetcher.HOT_S
        await leader.answer_nothing(0)
        assert leader.wanted(1) == [0, 1, 2]
        assert leader.asked[1][0].flags & wire.FLAG_IDLE
        assert leader.asked[1][0].max_wait_ms == 4 * leader.asked[0][0].max_wait_ms > 0
        # A partition with a new leader epoch is fetched at once; the other fetches keep waiting.
        fetchers.fetch(followers[1], FetchFrom(1, 1, 0, -1))
        await asyncio.sleep(0)
        assert [leader.wanted(2), leader.asked[2][0].flags & wire.FLAG_IDLE] == [[1], 0]
        fetchers.close()

    asyncio.run(test())


def test_failed_fetches_from_a_leader_are_counted_by_error() -> None:
    async def test() -> None:
        leader = Leader()
        fetchers = leader.fetchers()
        Follower(fetchers, 0).ask()
        await asyncio.sleep(0)
        await leader.answer_nothing(0, StorageError.code)
        for failure in (wire.FetchResponse(StorageError.code, 0, [], 0), NetworkError("closed")):
            while len(leader.asked) == 1:
                await asyncio.sleep(0.001)
            _, answered = leader.asked.pop()
            answered(failure)
        assert fetchers.metrics.value("replica_fetch_errors", StorageError.name) == 2
        assert fetchers.metrics.value("replica_fetch_errors", NetworkError.name) == 1
        fetchers.close()

    asyncio.run(test())
