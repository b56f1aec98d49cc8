"""Simple clients of the simulated cluster, which produce rows, or create and delete topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sim.checker import Violation
from sim.cluster import SimCluster, pick
from sim.history import ACKS_ALL, History, Sent
from sim.process import Process
from sim.scheduler import stream
from support.row_codec import Row, encode_rows

from broker_lite.errors import LogbusError, NetworkError
from broker_lite.model import PartitionKey, TopicView
from broker_lite.record.batch import read_header
from broker_lite.replication.events import Appended
from broker_lite.server.cluster.administration import NewTopic
from broker_lite.server.partitions.disk import AppendBatch

BATCH_BYTES_MAX = 1 << 20
FETCH_BYTES = 64 << 10
T = TypeVar("T")


class Client:
    """The base class of clients: finds leaders, sends requests, retries."""

    def __init__(self, cluster: SimCluster, history: History, name: str) -> None:
        self.cluster = cluster
        self.history = history
        self.name = name
        self.rng = stream(cluster.seed, name)
        self._known: dict[PartitionKey, int] = {}

    async def call(self, broker_id: int, function: Callable[[Process], Awaitable[T]]) -> T:
        return await self.cluster.call(self.name, broker_id, function)

    async def any_broker(self, function: Callable[[Process], Awaitable[T]]) -> T:
        """Send a request to one broker after the other until one answers."""
        while True:
            try:
                return await self.call(pick(self.rng, list(self.cluster.disks)), function)
            except LogbusError:
                await self.pause()

    async def topics(self) -> dict[str, TopicView]:
        """Return the metadata of topics from any broker that answers."""

        async def snapshot(process: Process) -> dict[str, TopicView]:
            return dict(process.registry.snapshot.topics)

        return await self.any_broker(snapshot)

    async def leader(self, key: PartitionKey) -> int | None:
        """Return the cached leader of a partition: -1 if it has none, None if the topic is deleted.

        The cache is kept until ``forget``.
        """
        known = self._known.get(key)
        if known is not None:
            return known
        for topic in (await self.topics()).values():
            if topic.topic_id == key.topic_id:
                if key.partition >= len(topic.partitions):
                    # The broker that answered does not know the added partition yet.
                    return -1
                leader = topic.partitions[key.partition].state.leader
                if leader >= 0:
                    self._known[key] = leader
                return leader
        return None

    def forget(self, key: PartitionKey) -> None:
        self._known.pop(key, None)

    async def pause(self, most_s: float = 0.3) -> None:
        await asyncio.sleep(self.rng.random() * most_s)


class RowProducer(Client):
    """A producer that sends batches of rows to one partition, one at a time, until stopped.

    With acks=all the producer is idempotent and retries each batch until its outcome is known. With
    acks=1 or ``is_once`` it sends each batch once.
    """

    def __init__(
        self,
        cluster: SimCluster,
        history: History,
        name: str,
        key: PartitionKey,
        acks: int,
        *,
        is_once: bool = False,
    ) -> None:
        super().__init__(cluster, history, name)
        self.is_once = is_once or acks != ACKS_ALL
        self.key = key
        self.acks = acks
        self.producer_id = -1
        self.sequence = 0
        self.number = 0
        self.is_stopping = False

    async def run(self) -> None:
        if not self.is_once:
            self.producer_id = await self.any_broker(
                lambda process: process.registry.next_producer_id()
            )
        while not self.is_stopping:
            count = self.rng.randint(1, 5)
            values = [
                f"{self.name}/{self.number + n}".encode() + b"." * self.rng.choice((0, 50, 3000))
                for n in range(count)
            ]
            self.number += count
            sent = self.history.send(self.name, self.key, values, self.acks)
            if not await self._send(sent):
                return
            self.sequence += count
            await self.pause(2 * self.cluster.options.think_s)

    async def send_one(self) -> bytes:
        """Send values, each in a batch, until one is acknowledged; return this value."""
        while True:
            self.number += 1
            value = f"{self.name}/{self.number}".encode()
            sent = self.history.send(self.name, self.key, [value], self.acks)
            await self._send(sent)
            if sent.acked_at >= 0:
                return value
            await self.pause()

    async def _send(self, sent: Sent) -> bool:
        """Send a batch with retries; return False if the topic is deleted."""
        tries = 0
        while True:
            leader = await self.leader(self.key)
            if leader is None:
                return False
            tries += 1
            try:
                if leader < 0:
                    raise NetworkError("no leader")
                appended = await self.call(leader, lambda process: self._append(process, sent))
            except LogbusError as error:
                self.forget(self.key)
                self.cluster.trace(self.name, "failed", type(error).__name__)
                is_right = self._leads(leader)
                if not error.retriable and error.definite and is_right:
                    raise Violation(f"{self.name}: {error}") from None
                if self.is_once and leader >= 0:
                    sent.refused = tries == 1 and error.definite
                    return True
                await self.pause()
                continue
            if appended.next_offset - appended.base_offset != len(sent.values):
                raise Violation(f"{self.name}: acknowledged as {appended}")
            self.cluster.trace(self.name, "acked", appended.base_offset)
            self.cluster.count("acked" if self.acks == ACKS_ALL else "acked by the leader")
            self.history.acked(sent, appended.base_offset)
            return True

    def _leads(self, broker_id: int) -> bool:
        """Return whether the broker leads the partition: only a leader's refusal is a violation.

        A deposed leader that does not know yet that it was deposed lacks the latest sequences.
        """
        state = self.cluster.checker.state(self.key)
        return state is not None and state.leader == broker_id

    async def _append(self, process: Process, sent: Sent) -> Appended:
        assert process.replicas is not None
        replica = process.replicas.find_by_id(*self.key)
        now_ms = process.clock.now_ms()
        is_idempotent = self.producer_id >= 0
        buffer = encode_rows(
            [Row(n, now_ms, None, value) for n, value in enumerate(sent.values)],
            producer_id=self.producer_id,
            producer_epoch=0 if is_idempotent else -1,
            base_sequence=self.sequence if is_idempotent else -1,
        )
        answer: asyncio.Future[Appended] = process.cluster.loop.create_future()

        def done(appended: Appended | None, error: LogbusError | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                assert appended is not None
                answer.set_result(appended)

        batch = AppendBatch(memoryview(buffer), read_header(buffer), BATCH_BYTES_MAX)
        deadline_ms = process.clock.monotonic_ms() + 4000
        process.replicas.append(replica, self.acks, batch, deadline_ms, done)
        return await answer


async def create_topic(
    client: Client, name: str, partitions: int, replication_factor: int, config: dict[str, str]
) -> list[PartitionKey]:
    """Create a topic, with retries; return its partitions."""

    async def create(process: Process) -> object:
        topic = NewTopic(name, partitions, replication_factor, None, config)
        (result,) = await process.registry.administration.create_topics([topic])
        if result.error is not None:
            raise result.error
        return None

    while True:
        topic = (await client.topics()).get(name)
        if topic is not None:
            return [PartitionKey(topic.topic_id, n) for n in range(partitions)]
        for broker_id in client.cluster.disks:
            try:
                await client.call(broker_id, create)
            except LogbusError as error:
                client.cluster.trace("create", name, type(error).__name__)
        await client.pause(1.0)


async def delete_topic(client: Client, name: str) -> None:
    """Delete a topic, with retries."""

    async def delete(process: Process) -> object:
        return await process.registry.administration.delete_topics([name])

    while name in await client.topics():
        for broker_id in client.cluster.disks:
            try:
                await client.call(broker_id, delete)
            except LogbusError as error:
                client.cluster.trace("delete", name, type(error).__name__)
        await client.pause(1.0)
