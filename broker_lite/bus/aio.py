"""The asyncio API: ``aconnect`` and ``AsyncBus``.

Use a bus, its producers and its consumers only on the event loop that created them. They block the
loop for at most a few milliseconds at a time: the longest computation decodes one batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from broker_lite.bus.face import BusFace, connect_options
from broker_lite.bus.reading import NATIVE_SESSION_TIMEOUT_MS, membership, reading
from broker_lite.client.administration import admin_requests
from broker_lite.client.callbacks import Callback, Callbacks
from broker_lite.client.closing import ClosedByAsyncWith
from broker_lite.client.consuming.aio_consumer import AsyncConsumer
from broker_lite.client.consuming.reader_core import Joining
from broker_lite.client.discovery import resolve
from broker_lite.client.membership.kafka_membership import in_group
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import ClusterView, cluster_at
from broker_lite.client.options import build
from broker_lite.client.producing.aio_producer import AsyncProducer
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.loop import LoopShell
from broker_lite.config import ConsumerConfig, ProducerConfig
from broker_lite.model import TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.transactions.aio_producer import (
        AsyncBusTransaction,
        AsyncTransactionalProducer,
    )

OPERATION_TIMEOUT_MS = 30_000
END_S = 1.0
"""Seconds for which the close of a producer waits for a cancelled commit to end. If the commit did
not end, the open transaction would hold back read_committed readers until its timeout."""


async def aconnect(
    bootstrap_servers: str | Sequence[str] | None = None,
    *,
    zookeeper: str | None = None,
    client_id: str = "logbus",
    **options: Any,
) -> AsyncBus:
    """Connect to a cluster and check that a broker answers. Arguments and errors are those of
    ``connect``."""
    arguments = connect_options(options)
    servers = await asyncio.to_thread(resolve, bootstrap_servers, zookeeper)
    bus = AsyncBus(servers, client_id=client_id, zookeeper=zookeeper, **arguments)
    try:
        await bus.cluster(())
    except BaseException:
        await bus.close()
        raise
    return bus


class AsyncBus(BusFace[AsyncConsumer, "AsyncTransactionalProducer"], ClosedByAsyncWith):
    """The asyncio client of one cluster, for the event loop that created it.

    ``admin`` is the blocking ``Admin``. Call it in a thread:
    ``await asyncio.to_thread(bus.admin.log_dirs)``.
    """

    def _open(self) -> None:
        self._shell = LoopShell(self.client_id, self.security)
        self._cluster = cluster_at(self.bootstrap_servers, self.security.user)

    @overload
    def producer(self, *, transactional_id: str, **options: Any) -> AsyncTransactionalProducer: ...

    @overload
    def producer(self, **options: Any) -> AsyncProducer: ...

    def producer(self, **options: Any) -> AsyncProducer:
        """Return a producer. Options are those of ``Bus.producer``."""
        config = build(ProducerConfig, options, self._options)
        if config.transactional_id:
            from broker_lite.client.transactions.aio_producer import AsyncTransactionalProducer

            return AsyncTransactionalProducer(self.bootstrap_servers, config)
        return AsyncProducer(self.bootstrap_servers, config)

    def transaction(
        self, transactional_id: str, *, timeout_ms: int = 60_000, **options: Any
    ) -> AsyncBusTransaction:
        """Return a transaction: ``async with bus.transaction("copier-1") as txn``. See
        ``Bus.transaction``."""
        from broker_lite.client.transactions.aio_producer import (
            AsyncBusTransaction,
            AsyncTransactionalProducer,
        )

        config = self._transaction_config(transactional_id, timeout_ms, options)

        async def release(producer: AsyncTransactionalProducer) -> None:
            for each in self._idle.release(producer):
                await each.close(END_S)

        producer = self._idle.acquire(config)
        return AsyncBusTransaction(
            producer or AsyncTransactionalProducer(self.bootstrap_servers, config), release
        )

    def consumer(
        self,
        *topics: str | TopicPartition | Iterable[str],
        group: str | None = None,
        partitions: Iterable[TopicPartition | int] | None = None,
        coordination: str = "kafka",
        pattern: str | None = None,
        zookeeper: str | None = None,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
        **options: Any,
    ) -> AsyncConsumer:
        """Return a consumer. ``async with`` or ``await start()`` starts it.

        Arguments are those of ``Bus.consumer``. With ``coordination="zookeeper"`` (a native group)
        they are those of ``Bus.create_message_streams`` with ``streams=1``. Callbacks may be
        coroutine functions."""
        group = options.pop("group_id", group) if group is None else group
        subscription = reading(topics, partitions, pattern, group)
        callbacks = Callbacks(on_assign, on_revoke, on_lost)
        given = options if zookeeper is None else {**options, "zookeeper": zookeeper}
        kind = membership(coordination, subscription, given, callbacks)
        joining: Joining | None = None
        if kind == "zookeeper":
            from broker_lite.native.streams import NativeOptions, joining_on_loop

            session_timeout_ms = options.pop("session_timeout_ms", NATIVE_SESSION_TIMEOUT_MS)
            config = build(ConsumerConfig, options, self._options)
            native = NativeOptions(
                subscription.topics,
                pattern,
                group,
                zookeeper or self.zookeeper,
                session_timeout_ms,
                config,
            )
            joining = joining_on_loop(self.admin, native)
        elif kind == "kafka":
            config = build(MemberConfig, options, self._options)
            joining = in_group(subscription.topics, pattern)
        else:
            config = build(ConsumerConfig, options, self._options)
        consumer = AsyncConsumer(
            self.bootstrap_servers,
            subscription.topics,
            group=group,
            partitions=subscription.partitions,
            config=config,
            callbacks=callbacks,
            joining=joining,
        )
        self._consumers.add(consumer)
        return consumer

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> str:
        """Create a topic and return its id. See ``Admin.create_topic``."""
        topic = admin_requests.creatable_topic(name, partitions, replication_factor, config)
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        return await self._shell.run(
            admin_requests.create_topic(
                self._cluster, topic, deadline_ms, if_not_exists=if_not_exists
            )
        )

    async def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """Delete a topic and its records. See ``Admin.delete_topic``."""
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        await self._shell.run(
            admin_requests.delete_topic(self._cluster, name, deadline_ms, if_exists=if_exists)
        )

    async def cluster(self, topics: Iterable[str] | None = None) -> ClusterView:
        """Return the cluster's brokers, its controller and the named topics; None names all
        topics."""
        names = None if topics is None else tuple(topics)
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        return await self._shell.run(requests.refresh(self._cluster, names, deadline_ms))

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted((await self.cluster()).topics)

    async def close(self) -> None:
        """Close the bus's consumers and connections, and the producers of its transactions. Other
        producers stay open; see ``Bus.close``."""
        async with contextlib.AsyncExitStack() as closing:
            closing.callback(self.admin.close)
            closing.callback(self._shell.close)
            for producer in self._idle.drain():
                closing.push_async_callback(producer.close)
            for consumer in self._consumers:
                if consumer.is_open:
                    closing.push_async_callback(consumer.close)
