"""The two environments of contract tests of the metadata: a simulated and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.connection import _CONNECTION_DROP
from sim import scheduler
from sim.zk import SimZk, ZkService

from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.metadata.store import MetadataStore, StoreEvent
from broker_lite.metadata.zookeeper.store import ZooKeeperStore

_CHROOTS = itertools.count()
PATIENCE_S = 20.0


class SimWorld:
    """A simulated ZooKeeper in virtual time; every run is the same."""

    name = "sim"
    session_timeout_ms = 2000

    def __init__(self, seed: int = 1) -> None:
        self.service = ZkService(random.Random(seed), session_timeout_s=2.0)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return scheduler.run(coroutine)

    def store(self) -> MetadataStore:
        return self.service.client()

    def drop_connection(self, store: MetadataStore) -> None:
        assert isinstance(store, SimZk)
        store.lose_connection()
        store.reconnect_soon()

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, SimZk)
        store.expire()

    async def vanish(self, store: MetadataStore) -> None:
        """Kill the process that uses this metadata store, without closing its ZooKeeper session."""
        assert isinstance(store, SimZk)
        store.kill()


class RealWorld:
    """A real ZooKeeper; each test has its own chroot."""

    name = "zookeeper"
    session_timeout_ms = 2000

    def __init__(self, zookeeper: EmbeddedZooKeeper) -> None:
        self.address = f"{zookeeper.address}/contract-{next(_CHROOTS)}/logbus"

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(coroutine)

    def store(self) -> MetadataStore:
        return ZooKeeperStore(self.address, session_timeout_ms=self.session_timeout_ms)

    def drop_connection(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        client = store._client
        client._call(_CONNECTION_DROP, client.handler.async_result())

    async def expire(self, store: MetadataStore) -> None:
        """Expire the ZooKeeper session of this metadata store: close the session through a second
        connection.
        """
        assert isinstance(store, ZooKeeperStore)
        twin = KazooClient(hosts=store._hosts, client_id=store._client.client_id)

        def close() -> None:
            twin.start()
            twin.stop()
            twin.close()

        await asyncio.get_running_loop().run_in_executor(None, close)

    async def vanish(self, store: MetadataStore) -> None:
        """End this metadata store's connection for good, so that its ZooKeeper session expires."""
        assert isinstance(store, ZooKeeperStore)
        store._closed = True
        client = store._client
        client.remove_listener(store._on_state)
        client._stopped.set()
        connection = client._connection
        connection._socket.shutdown(socket.SHUT_RDWR)
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, connection.connection_stopped.wait, 20)
        connection.close()


World = SimWorld | RealWorld


class Events:
    """A listener that collects the events of a metadata store, so that tests can wait for them."""

    def __init__(self) -> None:
        self.seen: list[StoreEvent] = []
        self._more = asyncio.Event()

    def __call__(self, event: StoreEvent) -> None:
        self.seen.append(event)
        self._more.set()

    async def until(self, event: StoreEvent | type) -> StoreEvent:
        """Wait for an event that equals ``event``, or is of the class ``event``; remove and
        return it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for seen in self.seen:
                    if seen == event or (isinstance(event, type) and isinstance(seen, event)):
                        self.seen.remove(seen)
                        return seen
                self._more.clear()
                await self._more.wait()


async def until(condition: Callable[[], Any], *, every_s: float = 0.02) -> Any:
    """Poll a condition until it holds and return its value; fail after PATIENCE_S seconds."""
    async with asyncio.timeout(PATIENCE_S):
        while not (value := condition()):
            await asyncio.sleep(every_s)
    return value
