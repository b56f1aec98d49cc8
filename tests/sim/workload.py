"""Clients of the simulated cluster, and the history that they leave.

Producers write values that are unique; each knows what was acknowledged, what may be there, and
what was certainly refused. Readers note what they saw at which offset. A group's committer notes
the offsets that were acknowledged. ``History.check`` compares all of it with the logs at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sim.cluster import Process, SimCluster, Violation, pick
from sim.scheduler import stream

from broker_lite.errors import LogbusError, NetworkError, UnknownTopicIdError
from broker_lite.model import CommittedOffset, PartitionKey, TopicPartition, TopicView
from broker_lite.record.batch import check_crc, iter_headers, read_header
from broker_lite.record.records import Row, decode_rows, encode_rows
from broker_lite.replication.events import Appended
from broker_lite.server.disk import Batch
from broker_lite.server.registry import NewTopic

REQUEST_TIMEOUT_S = 5.0
COMMIT_LATE_S = 20.0
BATCH_BYTES_MAX = 1 << 20


@dataclass
class Sent:
    """One batch of one producer: its values, and what became of it."""

    key: PartitionKey
    values: list[bytes]
    acks: int
    acked_at: int = -1
    """Base offset, once acknowledged."""
    refused: bool = False
    """Certainly not in the log."""


@dataclass
class Commit:
    """One attempt to commit an offset."""

    offset: int
    began_s: float
    acknowledged: bool = False


@dataclass
class History:
    """Everything that clients saw."""

    sent: list[Sent] = field(default_factory=list)
    read: dict[PartitionKey, dict[int, bytes]] = field(default_factory=dict)
    committed: dict[tuple[str, TopicPartition], list[Commit]] = field(default_factory=dict)
    """Of each group and partition, in the order of the attempts."""

    def saw(self, key: PartitionKey, offset: int, value: bytes) -> None:
        """A read; a record that was readable once never changes."""
        before = self.read.setdefault(key, {}).setdefault(offset, value)
        if before != value:
            raise Violation(f"{key} offset {offset}: {before!r} became {value!r}")

    def check(self, logs: dict[PartitionKey, dict[int, bytes]]) -> None:
        """``logs``: what is there at the end, of every topic that was not deleted."""
        for key, rows in logs.items():
            if list(rows) != list(range(len(rows))):
                raise Violation(f"{key}: its offsets are not contiguous")
            if len(set(rows.values())) != len(rows):
                raise Violation(f"{key}: a value is there twice")
            for offset, value in self.read.get(key, {}).items():
                if rows.get(offset) != value:
                    raise Violation(f"{key} offset {offset}: {value!r} was read and is gone")
        places = {
            value: (key, offset) for key, rows in logs.items() for offset, value in rows.items()
        }
        latest: dict[tuple[PartitionKey, bytes], int] = {}
        for sent in self.sent:
            if sent.key not in logs:
                continue
            found = [places.get(value) for value in sent.values]
            if sent.acked_at >= 0 and sent.acks == -1:
                wanted = [(sent.key, sent.acked_at + n) for n in range(len(sent.values))]
                if found != wanted:
                    raise Violation(
                        f"{sent.key}: {sent.values} were acknowledged at {sent.acked_at} and are "
                        f"at {found}"
                    )
            if sent.refused and any(found):
                raise Violation(f"{sent.key}: {sent.values} were refused and are at {found}")
            there = [place for place in found if place is not None]
            if there and len(there) != len(found):
                raise Violation(f"{sent.key}: {sent.values} are there in part: {found}")
            # A producer's batches keep their order.
            name = (sent.key, sent.values[0].partition(b"/")[0])
            if there:
                if there[0][1] < latest.get(name, -1):
                    raise Violation(f"{sent.key}: {sent.values} are before older ones")
                latest[name] = there[-1][1]

    def check_commits(self, found: Callable[[str, TopicPartition], int]) -> None:
        """What is there is the last acknowledged commit, or one of unknown outcome since.

        One of unknown outcome may have been under way in a broker for a while before it was done.
        """
        for (group, place), attempts in self.committed.items():
            since, allowed = 0.0, {-1}
            for attempt in attempts:
                if attempt.acknowledged:
                    since, allowed = attempt.began_s, {attempt.offset}
            allowed |= {
                attempt.offset
                for attempt in attempts
                if not attempt.acknowledged and attempt.began_s > since - COMMIT_LATE_S
            }
            if found(group, place) not in allowed:
                raise Violation(
                    f"{group} {place}: committed {sorted(allowed)}, found {found(group, place)}"
                )


class Client:
    """What every client does: find leaders, call them, try again."""

    def __init__(self, cluster: SimCluster, history: History, name: str) -> None:
        self.cluster = cluster
        self.history = history
        self.name = name
        self.rng = stream(cluster.seed, name)

    async def call(
        self, broker_id: int, function: Callable[[Process], Awaitable[object]]
    ) -> object:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await self.cluster.call(broker_id, function)

    async def topics(self) -> dict[str, TopicView]:
        """The metadata, of any broker that answers."""

        async def snapshot(process: Process) -> object:
            return dict(process.registry.snapshot.topics)

        while True:
            try:
                return await self.call(pick(self.rng, list(self.cluster.disks)), snapshot)  # type: ignore[return-value]
            except (LogbusError, TimeoutError):
                await self.pause()

    async def leader(self, key: PartitionKey) -> int | None:
        """-1: none now; None: the topic is gone."""
        for topic in (await self.topics()).values():
            if topic.topic_id == key.topic_id:
                return topic.partitions[key.partition].state.leader
        return None

    async def pause(self, most_s: float = 0.2) -> None:
        await asyncio.sleep(self.rng.random() * most_s)


class Producer(Client):
    """Sends batches to one partition, one at a time, until told to stop.

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
        if self.acks == -1:
            await self._take_id()
        while not self.is_stopping:
            count = self.rng.randint(1, 5)
            values = [
                f"{self.name}/{self.number + n}".encode() + b"." * self.rng.choice((0, 50, 3000))
                for n in range(count)
            ]
            self.number += count
            sent = Sent(self.key, values, self.acks)
            self.history.sent.append(sent)
            if not await self._send(sent):
                return
            self.sequence += count
            await self.pause(self.rng.choice((0.01, 0.05, 0.5)))

    async def _take_id(self) -> None:
        async def take(process: Process) -> object:
            return await process.registry.next_producer_id()

        while self.producer_id < 0:
            try:
                result = await self.call(pick(self.rng, list(self.cluster.disks)), take)
                assert isinstance(result, int)
                self.producer_id = result
            except (LogbusError, TimeoutError):
                await self.pause()

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
            except (LogbusError, TimeoutError) as error:
                is_definite = isinstance(error, LogbusError) and error.definite
                self.cluster.trace(self.name, "failed", type(error).__name__)
                if isinstance(error, LogbusError) and not error.retriable and is_definite:
                    raise Violation(f"{self.name}: {error}") from None
                if self.acks == 1 and leader >= 0:
                    sent.refused = tries == 1 and is_definite
                    return True
                await self.pause()
                continue
            assert isinstance(appended, Appended)
            if appended.next_offset - appended.base_offset != len(sent.values):
                raise Violation(f"{self.name}: acknowledged as {appended}")
            sent.acked_at = appended.base_offset
            self.cluster.trace(self.name, "acked", sent.acked_at)
            self.cluster.count("acked")
            return True

    async def _append(self, process: Process, sent: Sent) -> object:
        assert process.replicas is not None
        replica = process.replicas.find_by_id(*self.key)
        now_ms = process.clock.now_ms()
        buffer = encode_rows(
            [Row(n, now_ms, None, value) for n, value in enumerate(sent.values)],
            producer_id=self.producer_id,
            producer_epoch=0 if self.producer_id >= 0 else -1,
            base_sequence=self.sequence if self.producer_id >= 0 else -1,
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


async def fetch(process: Process, key: PartitionKey, offset: int) -> list[tuple[int, bytes]]:
    """Rows from ``offset`` on that are committed, as a broker would serve them."""
    assert process.replicas is not None
    replica = process.replicas.find_by_id(*key)
    replica.check_leader()
    found = replica.log.read(offset, 64 << 10, replica.high_watermark)
    data = found.read()
    rows = []
    for position, header in iter_headers(data):
        batch = memoryview(data)[position : position + header.size_bytes]
        check_crc(batch, header)
        rows += [(row.offset, row.value or b"") for row in decode_rows(batch, header)]
    return rows


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
            await self.pause(0.3)
            key = pick(self.rng, self.keys)
            if self.rng.random() < 0.05:
                # Somebody rewinds; what was read is compared with what is read now.
                self.positions[key] = self.rng.randint(0, self.positions[key])
            leader = await self.leader(key)
            if leader is None or leader < 0:
                continue
            try:
                await self._read(leader, key)
                if self.rng.random() < 0.3:
                    await self._commit(key)
            except (LogbusError, TimeoutError) as error:
                self.cluster.trace(self.name, "failed", type(error).__name__)

    async def _read(self, leader: int, key: PartitionKey) -> None:
        position = self.positions[key]
        rows = await self.call(leader, lambda process: fetch(process, key, position))
        assert isinstance(rows, list)
        for offset, value in rows:
            self.history.saw(key, offset, value)
        if rows:
            self.positions[key] = rows[-1][0] + 1
            self.cluster.count("read")
            self.cluster.trace(self.name, "read", key.partition, position, len(rows))

    async def _commit(self, key: PartitionKey) -> None:
        place = TopicPartition(self.topic, key.partition)
        offset = self.positions[key]
        attempt = Commit(offset, self.cluster.loop.time())
        self.history.committed.setdefault((self.name, place), []).append(attempt)

        async def commit(process: Process) -> object:
            return await process.registry.commit_offsets(
                self.name, {place: CommittedOffset(offset)}
            )

        result = await self.call(pick(self.rng, list(self.cluster.disks)), commit)
        assert isinstance(result, dict)
        error = result[place]
        if error is None:
            attempt.acknowledged = True
            self.cluster.count("committed")
        elif isinstance(error, UnknownTopicIdError):
            raise Violation(f"{self.name}: {error}")


async def create_topic(client: Client, name: str, partitions: int) -> list[PartitionKey]:
    """Until it is there; returns its partitions."""

    async def create(process: Process) -> object:
        return await process.registry.create_topics([NewTopic(name, partitions, 1)])

    while True:
        topic = (await client.topics()).get(name)
        if topic is not None:
            return [PartitionKey(topic.topic_id, n) for n in range(partitions)]
        for broker_id in client.cluster.disks:
            try:
                await client.call(broker_id, create)
            except (LogbusError, TimeoutError) as error:
                client.cluster.trace("create", name, type(error).__name__)
        await client.pause()


async def delete_topic(client: Client, name: str) -> None:
    """Until it is gone."""

    async def delete(process: Process) -> object:
        return await process.registry.delete_topics([name])

    while name in await client.topics():
        for broker_id in client.cluster.disks:
            try:
                await client.call(broker_id, delete)
            except (LogbusError, TimeoutError) as error:
                client.cluster.trace("delete", name, type(error).__name__)
        await client.pause()
