"""What a member's reader does about changes that come while it asks brokers where to begin."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from broker_lite.client.callbacks import NO_CALLBACKS
from broker_lite.client.consuming.intake import Intake
from broker_lite.client.consuming.starting import Begun, Starts
from broker_lite.client.fetch.fetch_engine import FetchEngine
from broker_lite.client.membership.aio_consumer import AsyncMemberConsumer
from broker_lite.client.membership.changes import Share
from broker_lite.client.membership.consumer import MemberConsumer
from broker_lite.client.membership.events import Give, Lose
from broker_lite.client.membership.member import Change
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations.cluster import Cluster
from broker_lite.model import Endpoint, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Brokers:
    """Where partitions begin, by brokers that take so long that the first is lost meanwhile."""

    def __init__(self, consumer: Any) -> None:
        self.queue: deque[Change] = deque([Give({T0: 1, T1: 2})])
        config = MemberConfig(auto_commit=False)
        cluster = Cluster((Endpoint("one", 1),), lambda: 0.0)
        shell: Any = self
        engine = FetchEngine(
            shell, cluster, config, on_arrival=lambda: None, on_view=lambda _: None
        )
        consumer._cluster, consumer.group, consumer.config = cluster, "g", config
        consumer._callbacks, consumer._gone, consumer._member = NO_CALLBACKS, self, self
        consumer._intake = Intake(engine, skips_corrupt=False)
        consumer._share = Share(consumer._intake, self.queue)
        consumer._pool = consumer._shell = self
        self.refused = None

    def release(self) -> None:
        """No topic is gone."""

    def now_ms(self) -> float:
        return 0.0

    def call_soon(self, callback: Any) -> None:
        """Nothing is fetched."""

    def run(self, operation: Any) -> Any:
        self.queue.append(Lose(frozenset({T0})))
        return Begun(Starts({T0: 5, T1: 7}, {}), {})


class LoopBrokers(Brokers):
    async def run(self, operation: Any) -> Any:
        await asyncio.sleep(0)
        return super().run(operation)


def test_what_is_lost_while_brokers_are_asked_is_not_read() -> None:
    """It was handed out first, and its end heard of at the next call."""
    consumer = MemberConsumer.__new__(MemberConsumer)
    Brokers(consumer)
    consumer._take_changes()
    assert consumer._intake.assignment() == [T1]


def test_what_is_lost_while_brokers_are_asked_is_not_read_by_asyncio_either() -> None:
    consumer = AsyncMemberConsumer.__new__(AsyncMemberConsumer)
    LoopBrokers(consumer)
    asyncio.run(consumer._take_changes())
    assert consumer._intake.assignment() == [T1]
