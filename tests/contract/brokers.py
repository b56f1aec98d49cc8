"""Run the registries of several brokers in one event loop, for contract tests of the metadata.

A *registry* is the part of a broker that reads and writes the metadata in ZooKeeper.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine
from typing import Any

from worlds import World, until

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError
from broker_lite.metadata.store import MetadataStore
from broker_lite.metadata.znodes import Registration
from broker_lite.model import NO_BROKER, Endpoint, PartitionKey
from broker_lite.server.cluster.administration import NewTopic
from broker_lite.server.cluster.registry import (
    SUPPORTED_FEATURES,
    Registry,
)


class Broker:
    """A broker process of which only the registry runs, the part that reads and writes the metadata
    in ZooKeeper.
    """

    def __init__(self, registry: Registry, store: MetadataStore) -> None:
        self.registry = registry
        self.store = store
        self.fatal: list[LogbusError] = []
        registry.on_fatal(self.fatal.append)


class Cluster:
    """Brokers that share one simulated or real ZooKeeper and one event loop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.running: list[Broker] = []
        self.counters: dict[str, int] = {}
        self.wall_ms = 1234
        self._bytes = itertools.count(1)

    async def start(
        self,
        broker_id: int,
        *,
        directory: str = "",
        counter: int | None = None,
        cluster_id: str = "",
        features: dict[str, int] | None = None,
        damaged: frozenset[PartitionKey] = frozenset(),
        rebalance_ms: int = -1,
        store: MetadataStore | None = None,
    ) -> Broker:
        directory = directory or f"directory-{broker_id}"
        if counter is None:
            counter = self.counters[directory] = self.counters.get(directory, 0) + 1
        store = store if store is not None else self.world.store()
        registry = Registry(
            BrokerConfig(
                broker_id=broker_id,
                zookeeper_session_timeout_ms=self.world.session_timeout_ms,
                leader_rebalance_ms=rebalance_ms,
            ),
            now_ms=lambda: self.wall_ms,
            store=store,
            random_bytes=lambda n: next(self._bytes).to_bytes(n, "big"),
        )
        broker = Broker(registry, store)
        await registry.start(
            Registration(
                broker_id,
                Endpoint("127.0.0.1", 9000 + broker_id),
                directory,
                counter,
                features=features if features is not None else SUPPORTED_FEATURES,
            ),
            cluster_id=cluster_id,
            damaged=damaged,
        )
        self.running.append(broker)
        return broker

    async def kill(self, broker: Broker) -> None:
        """Stop a broker as SIGKILL does: its ZooKeeper session stays until it expires."""
        self.running.remove(broker)
        keeper = broker.registry._keeper
        assert keeper is not None
        keeper.cancel()
        broker.registry._controller.resign()
        await self.world.vanish(broker.store)

    async def close(self) -> None:
        for broker in self.running:
            await broker.registry.close()

    def controller(self) -> Broker:
        return next(broker for broker in self.running if broker.registry.is_controller)

    async def led(self, topic: str, partition: int = 0) -> int:
        """Wait until all brokers' metadata snapshots name the same leader; return its broker id."""

        def leaders() -> set[int]:
            found = set()
            for broker in self.running:
                view = broker.registry.snapshot.partition(topic, partition)
                found.add(NO_BROKER if view is None else view.state.leader)
            return found

        await until(lambda: len(leaders()) == 1 and NO_BROKER not in leaders())
        return leaders().pop()


def run(world: World, body: Any) -> None:
    """Run ``body(cluster)``, then close the brokers that are still running."""

    async def whole() -> None:
        cluster = Cluster(world)
        try:
            await body(cluster)
        finally:
            await cluster.close()

    coroutine: Coroutine[Any, Any, None] = whole()
    world.run(coroutine)


async def create(
    broker: Broker, name: str, partitions: int = 1, *, factor: int = 1, **settings: str
) -> str:
    """Create a topic and return its id. Settings are keyword arguments: ``retention_ms="5"``."""
    config = {key.replace("_", "."): value for key, value in settings.items()}
    new = NewTopic(name, partitions, factor, None, config)
    [result] = await broker.registry.administration.create_topics([new])
    assert result.error is None, result.error
    return result.topic_id
