"""The asyncio face: ``aconnect``, ``AsyncBus``, ``AsyncProducer``; consumers: ``aio_consumer``.

The same engines as under the blocking face (``sender``, ``fetching``, ``intake``), on the running
loop instead of a thread of their own. Objects belong to the loop that made them. Nothing blocks the
loop, but for decoding a batch, at most a few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from broker_lite.client.administration import admin_requests
from broker_lite.client.administration.admin import Admin
from broker_lite.client.callbacks import Callback, Callbacks
from broker_lite.client.consuming.aio_consumer import AsyncConsumer
from broker_lite.client.discovery import parse_endpoints, resolve
from broker_lite.client.membership.aio_consumer import AsyncMemberConsumer
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.options import build, check_names
from broker_lite.client.producing.futures import BatchFuture, BatchMetadata, Outcome, RecordMetadata
from broker_lite.client.producing.producer import Producer
from broker_lite.client.reading import membership, reading
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.client.transport.loop import LoopShell, resolve_with
from broker_lite.config import ConsumerConfig, ProducerConfig, value_text
from broker_lite.errors import (
    BufferFullError,
    LogbusError,
    RequestTimedOutError,
    TopicExistsError,
)
from broker_lite.model import TopicPartition
from broker_lite.wire.calls import topics as topic_calls

OPERATION_TIMEOUT_MS = 30_000
NATIVE_SESSION_TIMEOUT_MS = 6000


async def aconnect(
    bootstrap_servers: str | Sequence[str] | None = None,
    *,
    zookeeper: str | None = None,
    client_id: str = "logbus",
    **options: Any,
) -> AsyncBus:
    """``connect`` for asyncio: the same arguments, the same errors."""
    check_names(options)
    servers = await asyncio.to_thread(resolve, bootstrap_servers, zookeeper)
    bus = AsyncBus(servers, client_id=client_id, options=options, zookeeper=zookeeper)
    await bus.cluster(())
    return bus


class AsyncBus:
    """One cluster, on one event loop. ``admin`` is the blocking ``Admin``: call it in a thread
    (``await asyncio.to_thread(bus.admin.log_dirs)``)."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str,
        options: Mapping[str, Any],
        zookeeper: str | None = None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.zookeeper = zookeeper
        self.client_id = client_id
        self.admin = Admin(bootstrap_servers, client_id=client_id)
        self._shell = LoopShell(client_id)
        self._cluster = Cluster(parse_endpoints(bootstrap_servers), monotonic_ms, client_id)
        self._options = {"client_id": client_id, **options}

    def producer(self, **options: Any) -> AsyncProducer:
        """A producer; options as for ``Bus.producer``."""
        config = build(ProducerConfig, options, self._options)
        return AsyncProducer(self.bootstrap_servers, config)

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
        """A consumer, begun by ``async with`` or ``await start()``; options as for ``Bus``, and
        for native groups as for ``Bus.create_message_streams``, with one stream. Callbacks may be
        coroutines."""
        group = options.pop("group_id", group) if group is None else group
        asked = reading(topics, partitions, pattern, group)
        callbacks = Callbacks(on_assign, on_revoke, on_lost)
        given = options if zookeeper is None else {**options, "zookeeper": zookeeper}
        kind = membership(coordination, asked, given, callbacks)
        if kind == "zookeeper":
            session_timeout_ms = options.pop("session_timeout_ms", NATIVE_SESSION_TIMEOUT_MS)
            from broker_lite.native.aio_consumer import NativeAsyncConsumer

            return NativeAsyncConsumer(
                self.bootstrap_servers,
                asked.topics,
                pattern=pattern,
                group=group,
                admin=self.admin,
                zookeeper=zookeeper or self.zookeeper,
                session_timeout_ms=session_timeout_ms,
                config=build(ConsumerConfig, options, self._options),
                callbacks=callbacks,
            )
        if kind == "kafka":
            assert group is not None
            return AsyncMemberConsumer(
                self.bootstrap_servers,
                asked.topics,
                group=group,
                pattern=pattern,
                config=build(MemberConfig, options, self._options),
                callbacks=callbacks,
            )
        config = build(ConsumerConfig, options, self._options)
        return AsyncConsumer(
            self.bootstrap_servers,
            asked.topics,
            group=group,
            partitions=asked.partitions,
            config=config,
        )

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> str:
        """Make a topic; its id. See ``Admin.create_topic``."""
        rows = tuple((key, value_text(value)) for key, value in (config or {}).items())
        topic = topic_calls.CreatableTopic(name, partitions, replication_factor, configs=rows)
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        try:
            return await self._shell.run(
                admin_requests.create_topic(
                    self._cluster, topic, validate_only=False, deadline_ms=deadline_ms
                )
            )
        except TopicExistsError:
            if not if_not_exists:
                raise
            return (await self.cluster((name,))).topic_id(name)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        await self._shell.run(admin_requests.delete_topic(self._cluster, name, deadline_ms))

    async def cluster(self, topics: Iterable[str] | None = None) -> ClusterView:
        """Brokers, controller and topics."""
        names = None if topics is None else tuple(topics)
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        return await self._shell.run(requests.refresh(self._cluster, names, deadline_ms))

    async def topics(self) -> list[str]:
        """The names of all topics."""
        return sorted((await self.cluster()).topics)

    async def close(self) -> None:
        """Close the connections; producers and consumers are closed by themselves."""
        self._shell.close()
        self.admin.close()

    async def __aenter__(self) -> AsyncBus:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Sent(asyncio.Future[RecordMetadata]):
    """A record on its way. Awaiting it ends the batch's linger; gathering many does not."""

    outcome: Outcome | None = None

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if self.outcome is not None and not self.outcome.done:
            self.outcome.wake(self.outcome)
        return super().__await__()

    __iter__ = __await__


def _nothing() -> None:
    """The result of waiting."""


class AsyncProducer:
    """``Producer`` for asyncio: ``await producer.send(…)`` is the acknowledgement."""

    def __init__(self, bootstrap_servers: str, config: ProducerConfig) -> None:
        self.config = config
        self._shell = LoopShell(config.client_id)
        self._core = Producer(bootstrap_servers, config, shell=self._shell)
        self._waiting: deque[tuple[Sent, tuple[Any, ...], float]] = deque()
        self._is_watching = False

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Sent:
        """Send a record, in the order of calls; awaiting tells where it went.

        While the producer's memory is full records wait their turn, for ``max_block_ms`` at most
        (BufferFullError). Other errors as for ``Producer.send``, from the await.
        """
        sent = Sent(loop=self._shell.loop)
        arguments = (topic, value, key, headers, partition, timestamp_ms)
        if self._waiting or self._core.is_full:
            deadline_ms = monotonic_ms() + self.config.max_block_ms
            self._waiting.append((sent, arguments, deadline_ms))
            self._watch_space()
        else:
            self._start(sent, arguments)
        return sent

    def _start(self, sent: Sent, arguments: tuple[Any, ...]) -> None:
        try:
            future = self._core.send(*arguments)
        except LogbusError as error:
            sent.set_exception(error)
            return
        sent.outcome = future.outcome
        future.add_done_callback(lambda done: resolve_with(sent, lambda: done.result(0)))

    def _watch_space(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._shell.later(1, self._retry)

    def _retry(self) -> None:
        self._is_watching = False
        now_ms = monotonic_ms()
        while self._waiting:
            sent, arguments, deadline_ms = self._waiting[0]
            if self._core.is_full and deadline_ms > now_ms:
                self._watch_space()
                return
            self._waiting.popleft()
            if sent.done():
                continue
            if self._core.is_full:
                sent.set_exception(
                    BufferFullError(
                        f"no room within max.block.ms={self.config.max_block_ms}; is it up?"
                    )
                )
            else:
                self._start(sent, arguments)

    async def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[BatchMetadata]:
        """Send Arrow rows and wait for the acknowledgements; see ``Producer.send_arrow``."""
        futures: list[BatchFuture] = []
        for piece in self._core.arrow_pieces(topic, data, key, value, partition):
            while self._core.is_full:
                await asyncio.sleep(0.001)
            futures.append(self._core.send_piece(topic, piece, timestamp_ms))
        return [row for future in futures for row in await self._await(future)]

    async def _await(self, future: BatchFuture) -> list[BatchMetadata]:
        await self._all_done(future.outcomes)
        return future.result(0)

    async def _all_done(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            done: asyncio.Future[None] = self._shell.loop.create_future()
            outcome.add_done_callback(lambda each: resolve_with(each, _nothing), done)
            await done

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent before is acknowledged; errors as ``Producer.flush``."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._waiting:
                    await asyncio.sleep(0.001)
                waiting = self._core.start_flush()
                await self._all_done(waiting)
        except TimeoutError:
            raise RequestTimedOutError(f"not all was acknowledged within {timeout_s} s") from None
        self._core.end_flush(waiting)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, then end."""
        try:
            await self.flush(timeout_s)
        finally:
            self._core.end()
            self._shell.close()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.close()
        except LogbusError:
            if kind is None:
                raise
