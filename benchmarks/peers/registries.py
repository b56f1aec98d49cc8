"""Many brokers' sessions with one ZooKeeper: what a change of metadata costs it.

Each session does what a broker does: it watches ``/changes`` and takes the states from its notices.
All sessions are this process's, through the same adapter as a broker's; what they cost it says
nothing of a broker, but ZooKeeper cannot tell the difference.
"""

from __future__ import annotations

import asyncio
import tempfile
import time

from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.metadata import loader, znodes
from broker_lite.metadata.notices import (
    Notices,
    announce,
    encode_notices,
    merge,
    states_changed,
)
from broker_lite.metadata.store import Create, DataChanged, Set, StoreEvent
from broker_lite.metadata.zookeeper import ZooKeeperStore
from broker_lite.model import LeaderAndIsr, PartitionView, ReplicaId, StateChange, TopicView
from broker_lite.replication.controller_effects import WriteTopic
from broker_lite.replication.holding import as_written
from broker_lite.server.controller_writes import operations_of, set_state
from peers.bench import Bench
from peers.meter import cpu_seconds, fine_cpu_seconds

STATES = 100
"""That one notice names."""
NOTICES = 20
WRITES = 1_000
IDLE_SECONDS = 12.0
SESSION_MS = 6_000


class Session:
    """A broker's, as far as metadata go."""

    def __init__(self, address: str, topic: TopicView) -> None:
        self._store = ZooKeeperStore(address, session_timeout_ms=SESSION_MS)
        self._topics = {topic.name: topic}
        self._sequence = 0
        self.noticed = asyncio.Event()

    async def start(self) -> None:
        await self._store.start(self._on_event)
        await self._store.get(znodes.CHANGES, watch=True)

    async def close(self) -> None:
        await self._store.close()

    async def follow(self) -> None:
        """Wait for a notice, read it and what it does not say, and watch again."""
        await self.noticed.wait()
        self.noticed.clear()
        found = await loader.load_notices(self._store, watch=True)
        merged = merge(found, self._sequence)
        assert merged is not None
        self._topics = await loader.refresh_topics(self._store, self._topics, merged.topics)
        self._sequence = found.sequence

    def _on_event(self, event: StoreEvent) -> None:
        if isinstance(event, DataChanged):
            self.noticed.set()


class Writer:
    """The controller, as far as states go."""

    def __init__(self, address: str, topic: TopicView) -> None:
        self.store = ZooKeeperStore(address, session_timeout_ms=SESSION_MS)
        self._topic = topic
        self._states = [
            StateChange(topic.name, view.partition, view.state, topic.topic_id)
            for view in topic.partitions
        ]
        self._notices = Notices(0, ())

    async def start(self) -> None:
        await self.store.start(lambda _: None)
        create = operations_of(WriteTopic(0, self._topic), features_version=0, directories={})
        await self.store.write(
            [
                *(Create(path) for path in znodes.PERSISTENT_PATHS),
                *create,
                Create(znodes.CHANGES, encode_notices(())),
            ]
        )

    async def change_all(self) -> None:
        """New states for all partitions, in one write with its notice."""
        written = as_written(self._states)
        announcement = announce(self._notices, states_changed(written))
        operations = [*map(set_state, self._states), announcement.write]
        assert await self.store.write(operations) is None
        self._states, self._notices = written, announcement.after


def measure(count: int, bench: Bench) -> dict[str, float]:
    """``count`` sessions follow notices of ``STATES`` changed states."""
    with tempfile.TemporaryDirectory(prefix="logbus-bench-zookeeper-") as folder:
        server = EmbeddedZooKeeper(folder)
        try:
            address = f"{server.start()}/bench"
            pid = server.pid
            assert pid is not None
            with bench.counting(lambda: {"zookeeper": [pid]}):
                return asyncio.run(_measure(address, pid, count))
        finally:
            server.stop()


async def _measure(address: str, pid: int, count: int) -> dict[str, float]:
    replicas = tuple(ReplicaId(number, f"{number:022}") for number in (1, 2, 3))
    state = LeaderAndIsr(1, 7, replicas, 3, 0, 1 << 33)
    partitions = tuple(PartitionView(number, (1, 2, 3), state) for number in range(STATES))
    topic = TopicView("t", "T" * 22, partitions)
    sessions = [Session(address, topic) for _ in range(count)]
    writer = Writer(address, topic)
    await writer.start()
    for session in sessions:
        await session.start()
    await _notice(writer, sessions)  # compilers and connections warm up
    cpu, before = cpu_seconds(pid), time.perf_counter()
    for _ in range(NOTICES):
        await _notice(writer, sessions)
    seconds = (time.perf_counter() - before) / NOTICES
    notice = (cpu_seconds(pid) - cpu) / NOTICES
    cpu, before = cpu_seconds(pid), time.perf_counter()
    data = znodes.encode_state(state)
    await loader.gather(
        [
            writer.store.write([Set(znodes.state_path("t", number % STATES), data)])
            for number in range(WRITES)
        ]
    )
    took, write = time.perf_counter() - before, cpu_seconds(pid) - cpu
    cpu, began = fine_cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    idle = (fine_cpu_seconds(pid) - cpu) / (time.monotonic() - began)
    for session in sessions:
        await session.close()
    await writer.store.close()
    return {
        "notice_to_all_s": seconds,
        "zookeeper_cpu_ms_a_notice": notice * 1000,
        "zookeeper_cpu_us_a_session": notice / count * 1e6,
        "writes_per_s": WRITES / took,
        "zookeeper_cpu_us_a_write": write / WRITES * 1e6,
        "zookeeper_idle_percent": idle * 100,
    }


async def _notice(writer: Writer, sessions: list[Session]) -> None:
    following = [asyncio.ensure_future(session.follow()) for session in sessions]
    await writer.change_all()
    await asyncio.gather(*following)
