"""Run transaction coordinators on replica managers with real disk threads and logs.

A test sets the responses of the brokers that receive markers.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection
from typing import Any, cast

from broker_lite.config import BrokerConfig
from broker_lite.errors import CoordinationUnavailableError, LogbusError, NetworkError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import (
    TRANSACTION_STATE,
    UNNUMBERED,
    BrokerView,
    LeaderAndIsr,
    PartitionKey,
    PartitionView,
    TopicView,
)
from broker_lite.server.coordinators.transaction_coordinator import TransactionCoordinator
from broker_lite.server.coordinators.transaction_markers import MarkerSender
from broker_lite.server.metrics import Metrics
from broker_lite.transactions import effects as fx
from broker_lite.transactions import events as ev
from broker_lite.transactions.records import TransactionState
from broker_lite.wire.calls.broker_transactions import (
    MarkerCode,
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from broker_lite.wire.calls.group_transactions import (
    EndGroupOffsetsRequest,
    EndGroupOffsetsResponse,
)
from support.replica_world import World
from support.replica_world import run as run_world

OUT = "AAECAwQFBgcICQoLDA0ODw"
OUT_0, OUT_1 = PartitionKey(OUT, 0), PartitionKey(OUT, 1)


class TransactionCluster:
    """Gives transaction coordinators their metadata and producer ids, and answers their requests to
    write markers."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.next_id = 4
        self.features = {"transaction.version": 2}
        self.has_out = True
        self.is_out_deleted: bool | None = True
        """Whether ZooKeeper says that the topic is deleted; None if ZooKeeper does not answer."""
        self.received: list[tuple[int, TransactionMarker]] = []
        self.ended: list[EndGroupOffsetsRequest] = []
        self.code: Callable[[int], int] = lambda partition: 0
        self.unreachable = False
        registry = cast(Any, self)
        self.metrics = {number: Metrics() for number in world.nodes}
        self.at = {
            number: TransactionCoordinator(
                BrokerConfig(broker_id=number, **settings),
                registry,
                replicas=node.manager,
                markers=MarkerSender(registry, cast(Any, self), registry),
                clock=node.clock,
                metrics=self.metrics[number],
            )
            for number, node in world.nodes.items()
        }

    @property
    def snapshot(self) -> MetadataSnapshot:
        state = LeaderAndIsr(3, 0, (), 1)
        partitions = tuple(PartitionView(number, (3,), state) for number in range(2))
        out = TopicView("out", OUT, partitions, {})
        found = self.world.snapshot
        topics, ids = dict(found.topics), dict(found.topics_by_id)
        if self.has_out:
            topics["out"] = ids[OUT] = out
        return dataclasses.replace(found, topics=topics, topics_by_id=ids, features=self.features)

    async def next_producer_id(self) -> int:
        self.next_id += 1
        return self.next_id

    async def deleted_topics(self, topic_ids: Collection[str]) -> frozenset[str]:
        if self.is_out_deleted is None:
            raise CoordinationUnavailableError("ZooKeeper is stopped")
        return frozenset(topic_ids) if self.is_out_deleted else frozenset()

    def coordinator_of(self, group: str) -> BrokerView:
        return self.world.nodes[2].view

    async def send(self, broker_id: int, call: Any, timeout_ms: float = 0) -> Any:
        await asyncio.sleep(0)
        if self.unreachable:
            raise NetworkError("the receiver of markers is stopped")
        if isinstance(call, EndGroupOffsetsRequest):
            self.ended.append(call)
            return EndGroupOffsetsResponse(0)
        assert isinstance(call, WriteTxnMarkersRequest)
        rows = []
        for marker in call.markers:
            self.received.append((broker_id, marker))
            for topic in marker.topics:
                for partition in topic.partitions:
                    code = self.code(partition)
                    rows.append(MarkerCode(marker.producer_id, topic.name, partition, code))
        return WriteTxnMarkersResponse(tuple(rows))

    async def ask(self, request: Any, number: int = 1, name: str = "x") -> Any:
        while True:
            try:
                result = await self.at[number].ask(name, request)
            except LogbusError as error:
                if error.code in (14, 16):
                    await asyncio.sleep(0.001)
                    continue
                raise
            if result.error is not None:
                raise result.error
            return result

    async def init(self, number: int = 1, timeout_ms: int = 60_000) -> tuple[int, int]:
        result = await self.ask(ev.Init(UNNUMBERED, timeout_ms), number)
        return result.producer_id, result.epoch

    async def add(
        self, pair: tuple[int, int], number: int = 1, **fields: Any
    ) -> fx.TransactionResult:
        fields.setdefault("partitions", frozenset((OUT_0, OUT_1)))
        return cast(
            fx.TransactionResult,
            await self.ask(ev.Add(UNNUMBERED, *pair, connection=1, **fields), number),
        )

    async def end(
        self, pair: tuple[int, int], commit: bool = True, number: int = 1
    ) -> tuple[int, int]:
        result = await self.ask(ev.End(UNNUMBERED, *pair, commit), number)
        return result.producer_id, result.epoch

    async def becomes(self, state: TransactionState, number: int = 1) -> None:
        def has_state() -> bool:
            try:
                return self.at[number].describe("x").state is state
            except LogbusError:
                return False

        await self.world.until(has_state)


def run(test: Callable[[TransactionCluster], Any], **settings: Any) -> None:
    async def main(world: World) -> None:
        cluster = TransactionCluster(world, **settings)
        try:
            await test(cluster)
        finally:
            for coordinator in cluster.at.values():
                coordinator.close()

    run_world(main, topic=TRANSACTION_STATE)
