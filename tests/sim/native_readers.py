"""Consumers of a simulated ZooKeeper-based group: a member that runs production code, and a
reader for each stream.

A reader learns of assigned and revoked partitions only when it polls, as in production
(``ReaderCore`` and ``NativeMembership``). There are no records: a poll only moves the position
forward while the member's lease is valid. Between two polls a reader works, sometimes so long that
its partitions move to another stream or consumer and back. The reader commits automatically, before
its work, or after its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sim.scheduler import Owner
from sim.shell import LoopShell
from sim.sim_consumer import SimConsumer
from sim.zk import SimZk

from broker_lite.client.callbacks import Callbacks
from broker_lite.client.consuming.reader_core import ReaderCore
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import Send
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    ClosedError,
    CoordinationUnavailableError,
    LogbusError,
    NotOwnerError,
    UnknownTopicIdError,
)
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.model import EARLIEST_TIMESTAMP, CommittedOffset, Endpoint, TopicPartition
from broker_lite.native.member import NativeShell
from broker_lite.native.membership import NativeMembership
from broker_lite.native.session import SessionDispatcher
from broker_lite.wire.calls import cluster as cluster_calls
from broker_lite.wire.calls import offsets

if TYPE_CHECKING:
    from sim.groups import World

GROUP = "g"
BROKER = Endpoint("sim", 1)
EXPECTED = NotOwnerError | CoordinationUnavailableError | UnknownTopicIdError | ClosedError
ITSELF, BEFORE_WORK, AFTER_WORK = "itself", "before", "after"
SLOW_PART = 0.08
"""Fraction of polls after which the reader works for longer than the member may wait."""
SLOW_S = 2.5


class Wire(LoopShell):
    """Answers a client's Metadata and ListOffsets requests as a cluster of one broker does."""

    def __init__(self, world: World) -> None:
        super().__init__(world.loop)
        self.world = world

    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        exchange: Any = send.exchange
        delay_s = self.world.chance.random() * 0.02
        self.loop.call_later(delay_s, lambda: on_answer(self.answer(exchange.call)))

    def answer(self, call: Any) -> Any:
        match call:
            case cluster_calls.MetadataRequest(names):
                return self.metadata(names)
            case offsets.ListOffsetsRequest(topics):
                found = []
                for topic in topics:
                    rows = []
                    for row in topic.partitions:
                        is_early = row.timestamp == EARLIEST_TIMESTAMP
                        at = 0 if is_early else int(self.world.loop.time() * 10)
                        rows.append(offsets.ListedPartition(row.partition_index, 0, -1, at, 0))
                    found.append(offsets.ListedTopic(topic.name, tuple(rows)))
                return offsets.ListOffsetsResponse(0, tuple(found))
        raise AssertionError(call)

    def metadata(self, names: tuple[str, ...] | None) -> cluster_calls.MetadataResponse:
        topics = []
        for name in names or ():
            known = self.world.topics.get(name)
            if known is None:
                topics.append(cluster_calls.MetadataTopic(3, name, "", False, ()))
                continue
            rows = tuple(
                cluster_calls.MetadataPartition(0, partition, 1, 0, (1,), (1,), ())
                for partition in range(len(known.replicas))
            )
            topics.append(cluster_calls.MetadataTopic(0, name, known.topic_id, False, rows))
        broker = cluster_calls.MetadataBroker(1, BROKER.host, BROKER.port, None)
        return cluster_calls.MetadataResponse(0, (broker,), "sim", 1, tuple(topics))


class StreamReader:
    """One of a consumer's streams, and the simulated thread that reads this stream. The streams
    share the consumer's partitions.
    """

    def __init__(self, consumer: Reader, number: int) -> None:
        self.consumer, self.number = consumer, number
        self.world = world = consumer.world
        self.is_at_work = False
        wire = Wire(world)
        session: Any = consumer
        self.reader = SimConsumer(
            wire,
            Cluster((BROKER,), wire.now_ms),
            consumer.config,
            group=GROUP,
            joining=partial(NativeMembership, session=session, topics=()),
            callbacks=Callbacks(on_assign=self.begun, on_lost=self.lost),
        )
        self.core = self.reader.core

    def begun(self, _: SimConsumer, tps: list[TopicPartition]) -> None:
        self.world.counts["begun"] += len(tps)

    def lost(self, _: SimConsumer, tps: list[TopicPartition]) -> None:
        self.world.counts["losses"] += len(tps)

    # The methods below run in the reader's thread.

    async def run(self) -> None:
        chance, consumer, collector = self.world.chance, self.consumer, self.core.collector
        while consumer.alive and consumer.refused is None:
            self.is_at_work = False
            if consumer.commits == ITSELF and chance.random() < 0.3:
                self.commit(collector.settled())
            with suppress(LogbusError):
                await self.reader.run(self.core.take_changes())
            if not consumer.alive:
                break
            self.hand_out()
            self.is_at_work = True
            if consumer.commits == BEFORE_WORK:
                self.commit(collector.commitable())
            await self.work()
            if consumer.commits == AFTER_WORK and chance.random() < 0.3:
                self.commit(collector.commitable())

    async def work(self) -> None:
        chance = self.world.chance
        is_slow = chance.random() < SLOW_PART and not self.world.is_calm
        await asyncio.sleep(chance.random() * SLOW_S if is_slow else 0.01 + chance.random() * 0.1)

    def hand_out(self) -> None:
        for tp in self.reader.assignment():
            if self.consumer.alive and not self.core.membership.is_held_back():
                self.world.handed_out(self.consumer, tp)
                self.reader.move(tp, self.world.chance.randrange(1, 20))

    # The methods below call the member's thread.

    def commit(self, rows: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.consumer.spawn(self.consumer.commit(rows, self.core.assignment.grants(rows)))


class Reader:
    """One consumer of a ZooKeeper-based group: it runs the production code of a member. Each of its
    streams reads some of the member's partitions."""

    def __init__(self, world: World, name: str, subscription: NativeSubscription) -> None:
        self.world = world
        self.name = name
        self.subscription = subscription
        self.owner = Owner(self)
        self.zk: SimZk = world.service.client(self.owner.context)
        self.alive = True
        self.refused: LogbusError | None = None
        self.expired_at = -1e9
        self.commits = world.chance.choice((ITSELF, ITSELF, BEFORE_WORK, AFTER_WORK))
        start = world.chance.choice(("earliest", "earliest", "latest"))
        self.config = ConsumerConfig(start=start, auto_commit=self.commits == ITSELF)
        self.readers: list[ReaderCore] = []
        self.streams = [StreamReader(self, number) for number in range(subscription.streams)]
        self.member = NativeShell(
            GROUP,
            name,
            subscription,
            CountingDispatcher(self, world),
            make_store=lambda: self.zk,
            now_ms=lambda: world.loop.time() * 1000,
        )
        self.spawn(self.run())

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.world.loop.create_task(coroutine, context=self.owner.context)

    # The methods below implement ``GroupSession``.

    group = GROUP

    def add(self, reader: ReaderCore) -> None:
        self.readers.append(reader)

    @property
    def is_held_back(self) -> bool:
        return self.world.loop.time() * 1000 >= self.member.lease_until_ms

    def settled(self, tp: TopicPartition, offset: CommittedOffset | None, grant: int) -> None:
        self.world.loop.call_soon(self.member.settled, tp, offset, grant)

    def commit_soon(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        on_done: Callable[[Any], None],
    ) -> None:
        async def run() -> None:
            await self.commit(rows, grants)
            on_done({})

        self.spawn(run())

    async def run(self) -> None:
        while True:
            try:
                await self.member.start()
                break
            except CoordinationUnavailableError:
                await asyncio.sleep(0.5)
        for stream in self.streams:
            self.spawn(stream.run())

    async def commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
    ) -> None:
        with suppress(LogbusError):
            for error in (await self.member.commit(rows, grants)).values():
                self.world.counts[type(error).__name__] += 1
                if not isinstance(error, EXPECTED):
                    self.world.fail(f"{self.name}: a commit failed: {error}")

    def positions(self) -> dict[TopicPartition, int]:
        """Return, for each partition, the number of the member's stream that reads it."""
        return {tp: stream.number for stream in self.streams for tp in stream.reader.assignment()}

    # The methods below end the consumer.

    def kill(self) -> None:
        self.alive = False
        self.owner.die()
        self.zk.kill()

    async def leave(self) -> None:
        """Leave the group without waiting for streams that still process records."""
        self.alive = False
        for stream in self.streams:
            if self.commits == ITSELF and not stream.is_at_work:
                rows = stream.core.collector.settled()
                await self.commit(rows, stream.core.assignment.grants(rows))
        await self.member.close()


class CountingDispatcher(SessionDispatcher):
    """The production dispatcher of a member's events.

    It also counts renewals of the member's lease and stores the error that ended the membership.
    """

    def __init__(self, consumer: Reader, world: World) -> None:
        super().__init__(consumer.readers)
        self._consumer, self._world = consumer, world

    def renewed(self) -> None:
        self._world.counts["renewals"] += 1
        super().renewed()

    def refuse(self, error: LogbusError) -> None:
        self._consumer.refused = error
        super().refuse(error)
