"""Run replica managers of several brokers in one event loop.

Logs are in memory, but disk threads are real. The test writes the metadata. Brokers pass fetches to
each other by direct calls.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

from broker_lite.config import BrokerConfig, TopicConfig
from broker_lite.errors import ClosedError, LogbusError, NetworkError, RetriableError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import (
    BrokerView,
    Endpoint,
    LeaderAndIsr,
    PartitionView,
    ReplicaId,
    StateChange,
    TopicView,
)
from broker_lite.record.batch import read_header
from broker_lite.replication.events import Appended
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions.disk import AppendBatch, Disk
from broker_lite.server.partitions.replica import Replica
from broker_lite.server.partitions.replica_fetcher import Answered
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.storage.manager import LogManager
from broker_lite.wire import fetch as wire
from support.data_calls import rows_batch
from support.log_batches import iter_headers
from support.memory_files import MemFiles

TOPIC_ID = "abcdefghijklmnopqrstuQ"


class Node:
    """A broker's replica manager, with its interfaces to the cluster's metadata and the network."""

    def __init__(self, world: World, broker_id: int, files: MemFiles, **settings: Any) -> None:
        self.world = world
        self.files = files
        self.broker_epoch = 100 + broker_id
        self.broker_epochs = frozenset({self.broker_epoch})
        self.clock = Clock()
        self.logs = LogManager(files, "/data", default_config=TopicConfig(file_delete_delay_ms=0))
        self.logs.data.start()
        self.logs.open_all(self.clock.now_ms())
        self.disk = Disk(world.loop, append_threads=1, read_threads=1, clock=self.clock)
        self.id = ReplicaId(broker_id, self.logs.data.directory_id)
        self.view = BrokerView(
            broker_id, Endpoint("test", broker_id), self.id.directory_id, self.broker_epoch
        )
        self.metrics = Metrics()
        self.manager = ReplicaManager(
            world.loop,
            BrokerConfig(broker_id=broker_id, **({"replica_fetch_wait_ms": 5000} | settings)),
            clock=self.clock,
            disk=self.disk,
            logs=self.logs,
            metrics=self.metrics,
            cluster=self,
            net=self,
        )
        self.reached = True
        """Whether this broker receives the fetches of other brokers."""

    @property
    def snapshot(self) -> MetadataSnapshot:
        return self.world.snapshot

    async def write_states(self, changes: Sequence[StateChange]) -> list[LeaderAndIsr | None]:
        await asyncio.sleep(0)
        return [self.world.write(change) for change in changes]

    async def drain(self) -> None:
        """Do not publish that this broker gives up leadership: the test is the controller."""

    async def set_full(self, is_full: bool) -> None:
        """Report no full disk, because the test acts as the controller."""

    def fetch(self, leader: BrokerView, request: wire.FetchRequest, answered: Answered) -> None:
        self.world.requests.append((self.id.broker_id, leader.broker_id, request))
        node = self.world.nodes[leader.broker_id]
        loop = self.world.loop

        def answer(topics: list[wire.TopicAnswer]) -> None:
            answer: wire.FetchResponse | LogbusError = NetworkError("it is cut off")
            if node.reached:
                answer = wire.FetchResponse(0, 0, _received(topics), 0)
            loop.call_soon(answered, answer)

        if node.reached:
            node.manager.follower_fetches.begin(request, answer, lambda: True)
        else:
            answer([])

    def replica(self, partition: int = 0) -> Replica:
        return self.manager.find(self.world.topic, partition)

    async def append(self, values: Sequence[bytes], acks: int = -1, **fields: int) -> Appended:
        return await self.begin(values, acks, **fields)

    def begin(
        self, values: Sequence[bytes], acks: int = -1, partition: int = 0, **fields: int
    ) -> asyncio.Future[Appended]:
        done: asyncio.Future[Appended] = self.world.loop.create_future()

        def decided(appended: Appended | None, error: LogbusError | None) -> None:
            if error is not None:
                done.set_exception(error)
            else:
                assert appended is not None
                done.set_result(appended)

        buffer = memoryview(bytearray(rows_batch(values, **fields)))
        batch = AppendBatch(buffer, read_header(buffer), 1 << 20)
        deadline_ms = self.clock.monotonic_ms() + 30_000
        self.manager.append(self.replica(partition), acks, batch, deadline_ms, decided)
        return done

    def stored(self, partition: int = 0) -> list[tuple[int, int, int]]:
        """Return the base offset, next offset and leader epoch of every batch in the log."""
        log = self.replica(partition).log
        offset, found = log.log_start_offset, []
        while offset < log.log_end_offset:
            part = log.reader.read(offset, 1 << 30, log.log_end_offset)
            found += [header for _, header in iter_headers(part.read())]
            offset = part.next_offset
        return [(h.base_offset, h.next_offset, h.leader_epoch) for h in found]

    def cut_off(self) -> None:
        """Cut the broker off: it receives no fetches, and leaves waiting fetches without a
        response."""
        self.reached = False
        for waiting in list(self.manager.follower_fetches.waiting.values()):
            waiting.end_wait()

    def close(self) -> None:
        self.manager.close(ClosedError("the test is over"))
        self.disk.stop()


def _received(topics: list[wire.TopicAnswer]) -> list[wire.FetchedTopic]:
    return [
        wire.FetchedTopic(
            topic.name,
            topic.topic_id,
            [
                wire.FetchedPartition(
                    *row[:5],
                    memoryview(b"".join(part_bytes(part) for part in row.records)),
                    *row[6:],
                )
                for row in topic.partitions
            ],
        )
        for topic in topics
    ]


def broker_context(node: Node, **parts: Any) -> BrokerContext:
    """Return what a request handler of the node's broker uses. A part that neither the node has nor
    the test gives in ``parts`` has its default, or else is None."""
    nothing: dict[str, Any] = {
        field.name: None
        for field in dataclasses.fields(BrokerContext)
        if field.default is field.default_factory  # Both are MISSING.
    }
    own = {
        "config": BrokerConfig(broker_id=node.id.broker_id),
        "clock": node.clock,
        "registry": SimpleNamespace(snapshot=node.snapshot),
        "replicas": node.manager,
        "logs": node.logs,
        "disk": node.disk,
        "metrics": node.metrics,
        "endpoint": node.view.endpoint,
    }
    return BrokerContext(**nothing | own | parts)


def part_bytes(part: wire.Part) -> bytes:
    """Return the bytes that a connection sends for one partition of a fetch response."""
    if isinstance(part, wire.FileRange):
        file: Any = part.file
        return bytes(file.pread(part.position, part.length))
    return bytes(part)


class World:
    """Brokers 1 to 3 and one topic. Broker 1 leads every partition at first."""

    def __init__(
        self, partitions: int = 1, brokers: int = 3, topic: str = "t", **settings: Any
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.topic = topic
        self.snapshot = MetadataSnapshot()
        self.requests: list[tuple[int, int, wire.FetchRequest]] = []
        self.settings = settings
        self.config: dict[str, str] = {}
        self.broker_configs: dict[int, dict[str, str]] = {}
        self.assigned: dict[int, tuple[int, ...]] = {}
        """The replicas of each partition that does not have a replica on every broker."""
        self.nodes: dict[int, Node] = {}
        self.replicas = tuple(range(1, brokers + 1))
        for number in self.replicas:
            self.nodes[number] = Node(self, number, MemFiles(), **settings)
        everybody = tuple(node.id for node in self.nodes.values())
        state = LeaderAndIsr(1, 0, everybody, 1, leader_broker_epoch=101)
        self.states = dict.fromkeys(range(partitions), state)
        self.publish()

    def publish(self) -> None:
        """Pass the current metadata to every broker."""
        views = tuple(
            PartitionView(p, self.assigned.get(p, self.replicas), s) for p, s in self.states.items()
        )
        topic = TopicView(self.topic, TOPIC_ID, views, dict(self.config))
        self.snapshot = MetadataSnapshot(
            version=self.snapshot.version + 1,
            brokers={number: node.view for number, node in self.nodes.items()},
            topics={self.topic: topic},
            topics_by_id={TOPIC_ID: topic},
            broker_configs=dict(self.broker_configs),
        )
        for node in self.nodes.values():
            node.manager.apply(self.snapshot)

    def write(self, change: StateChange) -> LeaderAndIsr | None:
        """Apply a leader's ISR change; other brokers learn of it a little later.

        Return the new state, or None if the state has changed since the leader read it.
        """
        if change.state.version != self.states[change.partition].version:
            return None
        state = dataclasses.replace(change.state, version=change.state.version + 1)
        self.states[change.partition] = state
        self.loop.call_soon(self.publish)
        return state

    def elect(self, number: int, partition: int = 0, isr: Sequence[int] | None = None) -> None:
        """Elect a new leader in a new leader epoch, as the controller does."""
        state = self.states[partition]
        self.states[partition] = dataclasses.replace(
            state,
            leader=number,
            leader_epoch=state.leader_epoch + 1,
            leader_broker_epoch=self.nodes[number].broker_epoch,
            isr=state.isr if isr is None else tuple(self.nodes[n].id for n in isr),
            version=state.version + 1,
        )
        self.publish()

    def restart(self, number: int, files: MemFiles | None = None) -> Node:
        """Kill a broker and restart it, optionally with another disk."""
        before = self.nodes[number]
        before.manager.close(ClosedError("killed"))
        before.disk.stop()
        before.files.kill()
        node = Node(self, number, files or before.files, **self.settings)
        node.broker_epoch = before.broker_epoch + 1000
        node.broker_epochs = frozenset({node.broker_epoch})
        node.view = dataclasses.replace(node.view, broker_epoch=node.broker_epoch)
        self.nodes[number] = node
        self.publish()
        return node

    def take_out(self, number: int, partition: int = 0) -> None:
        """Remove a dead broker from the ISR, as the controller does."""
        state = self.states[partition]
        left = tuple(replica for replica in state.isr if replica.broker_id != number)
        self.states[partition] = dataclasses.replace(state, isr=left, version=state.version + 1)
        self.publish()

    def flip(self, number: int, offset: int) -> None:
        """Corrupt the batch at ``offset`` on a broker's disk."""
        node = self.nodes[number]
        log = node.replica().log
        found = log.reader.read(offset, 1, offset + 1)
        inode = node.files._file(f"{log.directory}/{0:020d}.log")
        inode.data[found.position + 70] ^= 1

    def isr(self, partition: int = 0) -> set[int]:
        return {replica.broker_id for replica in self.states[partition].isr}

    async def serves(self, number: int, partition: int = 0) -> Node:
        """Wait until broker ``number`` leads the partition and knows its high watermark; return its
        node."""

        def ready() -> bool:
            try:
                self.nodes[number].replica(partition).role.latest_offset()
            except RetriableError:
                return False
            return True

        await self.until(ready)
        return self.nodes[number]

    async def until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            await asyncio.sleep(0.001)

    async def agree(self, partition: int = 0) -> list[tuple[int, int, int]]:
        """Wait until the logs of all brokers are equal; return their batches."""
        leader = self.states[partition].leader

        def same() -> bool:
            logs = [node.stored(partition) for node in self.nodes.values()]
            return all(log == logs[0] for log in logs)

        await self.serves(leader, partition)
        await self.until(same)
        return self.nodes[leader].stored(partition)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()


def run(test: Callable[[World], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a test with three new simulated brokers (a ``World``)."""

    async def main() -> None:
        world = World(**options)
        try:
            await asyncio.wait_for(test(world), 20)
        finally:
            world.close()

    asyncio.run(main())
