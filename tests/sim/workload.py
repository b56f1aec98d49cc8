"""Simpler clients of the simulated cluster: rows one batch at a time, readers, administration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sim.checker import Entry, Violation
from sim.cluster import SimCluster, pick
from sim.history import ACKS_ALL, Commit, History, Sent
from sim.process import Process
from sim.scheduler import stream

from broker_lite.errors import LogbusError, NetworkError, UnknownTopicIdError
from broker_lite.model import CommittedOffset, PartitionKey, TopicPartition, TopicView
from broker_lite.record import arrow
from broker_lite.record.batch import BatchHeader, check_crc, iter_headers, read_header
from broker_lite.record.records import Row, decode_rows, encode_rows
from broker_lite.replication.events import Appended
from broker_lite.server.disk import Batch
from broker_lite.server.registry import NewTopic

BATCH_BYTES_MAX = 1 << 20
FETCH_BYTES = 64 << 10
T = TypeVar("T")


class Client:
    """What every client does: find leaders, call them, try again."""

    def __init__(self, cluster: SimCluster, history: History, name: str) -> None:
        self.cluster = cluster
        self.history = history
        self.name = name
        self.rng = stream(cluster.seed, name)
        self._known: dict[PartitionKey, int] = {}

    async def call(self, broker_id: int, function: Callable[[Process], Awaitable[T]]) -> T:
        return await self.cluster.call(self.name, broker_id, function)

    async def any_broker(self, function: Callable[[Process], Awaitable[T]]) -> T:
        """Ask one after the other until one answers."""
        while True:
            try:
                return await self.call(pick(self.rng, list(self.cluster.disks)), function)
            except LogbusError:
                await self.pause()

    async def topics(self) -> dict[str, TopicView]:
        """The metadata, of any broker that answers."""

        async def snapshot(process: Process) -> dict[str, TopicView]:
            return dict(process.registry.snapshot.topics)

        return await self.any_broker(snapshot)

    async def leader(self, key: PartitionKey) -> int | None:
        """-1: none now; None: the topic is gone. As it was last heard, until ``forget``."""
        known = self._known.get(key)
        if known is not None:
            return known
        for topic in (await self.topics()).values():
            if topic.topic_id == key.topic_id:
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
    """Sends batches of rows to one partition, one at a time, until told to stop.

    With acks=all it is idempotent and tries each batch until it is decided; with acks=1 it tries
    each once.
    """

    def __init__(
        self, cluster: SimCluster, history: History, name: str, key: PartitionKey, acks: int
    ) -> None:
        super().__init__(cluster, history, name)
        self.key = key
        self.acks = acks
        self.producer_id = -1
        self.sequence = 0
        self.number = 0
        self.is_stopping = False

    async def run(self) -> None:
        if self.acks == ACKS_ALL:
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

    async def _send(self, sent: Sent) -> bool:
        """False: the topic is gone."""
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
                if self.acks != ACKS_ALL and leader >= 0:
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
        """Whether what a broker says of sequences counts: one that was deposed, and does not know
        it yet, does not know them either."""
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

        batch = Batch(memoryview(buffer), read_header(buffer), BATCH_BYTES_MAX)
        deadline_ms = process.clock.monotonic_ms() + 4000
        process.replicas.append(replica, self.acks, batch, deadline_ms, done)
        return await answer


class Fetched:
    """Whole batches from ``offset`` on that are committed, as a broker serves them."""

    def __init__(self, data: bytes) -> None:
        self.batches: list[tuple[BatchHeader, memoryview]] = []
        for position, header in iter_headers(data):
            batch = memoryview(data)[position : position + header.size_bytes]
            check_crc(batch, header)
            self.batches.append((header, batch))

    def rows(self) -> list[tuple[int, bytes]]:
        """Offsets and values."""
        rows: list[tuple[int, bytes]] = []
        for header, batch in self.batches:
            if header.is_columns:
                values: Any = arrow.decode(batch, header).value
                base = header.base_offset
                rows += [(base + n, value) for n, value in enumerate(values.to_pylist())]
            else:
                rows += [(row.offset, row.value or b"") for row in decode_rows(batch, header)]
        return rows


async def fetch(process: Process, key: PartitionKey, offset: int) -> Fetched:
    """What the leader would answer a consumer."""
    assert process.replicas is not None
    replica = process.replicas.find_by_id(*key)
    replica.check_leader()
    return Fetched(replica.log.read(offset, FETCH_BYTES, replica.high_watermark).read())


class Reader(Client):
    """Follows partitions from the start, again and again, and commits how far it came."""

    def __init__(
        self, cluster: SimCluster, history: History, name: str, topic: str, keys: list[PartitionKey]
    ) -> None:
        super().__init__(cluster, history, name)
        self.topic = topic
        self.keys = keys
        self.positions = dict.fromkeys(keys, 0)

    async def run(self) -> None:
        while True:
            await self.pause(2.0)
            key = pick(self.rng, self.keys)
            if self.rng.random() < 0.05:
                # Somebody rewinds; what was read is compared with what is read now.
                self.positions[key] = self.rng.randint(0, self.positions[key])
            leader = await self.leader(key)
            if leader is None or leader < 0:
                continue
            try:
                await self._read(leader, key)
                if self.rng.random() < 0.2:
                    await self._commit(key)
            except LogbusError as error:
                self.forget(key)
                self.cluster.trace(self.name, "failed", type(error).__name__)

    async def _read(self, leader: int, key: PartitionKey) -> None:
        position = self.positions[key]
        fetched = await self.call(leader, lambda process: fetch(process, key, position))
        checker, cluster = self.cluster.checker, self.cluster
        for header, _ in fetched.batches:
            if not header.base_offset <= position:
                raise Violation(f"{self.name}: at {position}, but {header.base_offset} came")
            entry = Entry(header.base_offset, header.next_offset, header.leader_epoch, header.crc)
            checker.read(key, entry)
            position = header.next_offset
        if fetched.batches:
            cluster.count("read")
            cluster.trace(self.name, "read", key.partition, position)
            self.positions[key] = position

    async def _commit(self, key: PartitionKey) -> None:
        place = TopicPartition(self.topic, key.partition)
        offset = self.positions[key]
        attempt = Commit(offset, self.cluster.loop.time())
        self.history.committed.setdefault((self.name, place), []).append(attempt)
        result = await self.call(
            pick(self.rng, list(self.cluster.disks)),
            lambda process: process.registry.commit_offsets(
                self.name, {place: CommittedOffset(offset)}
            ),
        )
        error = result[place]
        if error is None:
            attempt.acknowledged = True
            self.cluster.count("committed")
        elif isinstance(error, UnknownTopicIdError):
            raise Violation(f"{self.name}: {error}")


async def create_topic(
    client: Client, name: str, partitions: int, replication_factor: int, config: dict[str, str]
) -> list[PartitionKey]:
    """Until it is there; returns its partitions."""

    async def create(process: Process) -> object:
        topic = NewTopic(name, partitions, replication_factor, None, config)
        (result,) = await process.registry.create_topics([topic])
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
    """Until it is gone."""

    async def delete(process: Process) -> object:
        return await process.registry.delete_topics([name])

    while name in await client.topics():
        for broker_id in client.cluster.disks:
            try:
                await client.call(broker_id, delete)
            except LogbusError as error:
                client.cluster.trace("delete", name, type(error).__name__)
        await client.pause(1.0)
