"""Many brokers' sessions with one ZooKeeper: what a change of metadata costs it.

Each session does what a broker does: it watches ``/changes`` and reads the states that a notice
names. All sessions are this process's, through the same adapter as a broker's; what they cost it
says nothing of a broker, but ZooKeeper cannot tell the difference.
"""

from __future__ import annotations

import asyncio
import tempfile
import time

from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.metadata import loader, znodes
from broker_lite.metadata.store import Create, DataChanged, Set, StoreEvent
from broker_lite.metadata.zookeeper import ZooKeeperStore
from peers.meter import cpu_seconds

STATES = 100
"""That one notice names."""
NOTICES = 3
WRITES = 1_000
IDLE_SECONDS = 3.0
SESSION_MS = 6_000
STATE = b'{"version":2,"leader":1,"leader_epoch":7,"isr":[[1,"aaaaaaaa"],[2,"bbbbbbbb"]]}'


class Session:
    """A broker's, as far as metadata go."""

    def __init__(self, address: str) -> None:
        self._store = ZooKeeperStore(address, session_timeout_ms=SESSION_MS)
        self.noticed = asyncio.Event()

    async def start(self) -> None:
        await self._store.start(self._on_event)
        await self._store.get(znodes.CHANGES, watch=True)

    async def close(self) -> None:
        await self._store.close()

    async def follow(self, paths: list[str]) -> None:
        """Wait for a notice, read it and what it names, and watch again."""
        await self.noticed.wait()
        self.noticed.clear()
        await self._store.get(znodes.CHANGES, watch=True)
        await loader.gather([self._store.get(path) for path in paths])

    def _on_event(self, event: StoreEvent) -> None:
        if isinstance(event, DataChanged):
            self.noticed.set()


def measure(count: int) -> dict[str, float]:
    """``count`` sessions follow notices of ``STATES`` changed states."""
    with tempfile.TemporaryDirectory(prefix="logbus-bench-zookeeper-") as folder:
        server = EmbeddedZooKeeper(folder)
        try:
            address = f"{server.start()}/bench"
            assert server.pid is not None
            return asyncio.run(_measure(address, server.pid, count))
        finally:
            server.stop()


async def _measure(address: str, pid: int, count: int) -> dict[str, float]:
    sessions = [Session(address) for _ in range(count)]
    writer = ZooKeeperStore(address, session_timeout_ms=SESSION_MS)
    await writer.start(lambda _: None)
    paths = [f"/state-{number}" for number in range(STATES)]
    await writer.write([Create(znodes.CHANGES, b"")])
    for path in paths:
        await writer.write([Create(path, STATE)])
    for session in sessions:
        await session.start()
    await _notice(writer, sessions, paths)  # compilers and connections warm up
    cpu, before = cpu_seconds(pid), time.perf_counter()
    for _ in range(NOTICES):
        await _notice(writer, sessions, paths)
    seconds = (time.perf_counter() - before) / NOTICES
    notice = (cpu_seconds(pid) - cpu) / NOTICES
    cpu, before = cpu_seconds(pid), time.perf_counter()
    await loader.gather(
        [writer.write([Set(paths[number % STATES], STATE)]) for number in range(WRITES)]
    )
    took, write = time.perf_counter() - before, cpu_seconds(pid) - cpu
    cpu, began = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    idle = (cpu_seconds(pid) - cpu) / (time.monotonic() - began)
    for session in sessions:
        await session.close()
    await writer.close()
    return {
        "notice_to_all_s": seconds,
        "zookeeper_cpu_ms_a_notice": notice * 1000,
        "zookeeper_cpu_us_a_read": notice / (count * (STATES + 1)) * 1e6,
        "writes_per_s": WRITES / took,
        "zookeeper_cpu_us_a_write": write / WRITES * 1e6,
        "zookeeper_idle_percent": idle * 100,
    }


async def _notice(writer: ZooKeeperStore, sessions: list[Session], paths: list[str]) -> None:
    following = [asyncio.ensure_future(session.follow(paths)) for session in sessions]
    changes = [Set(path, STATE) for path in paths]
    await writer.write([*changes, Set(znodes.CHANGES, b"x")])
    await asyncio.gather(*following)
