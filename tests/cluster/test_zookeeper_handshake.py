"""Connect to a ZooKeeper that accepts connections but does not answer, as during its start."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from broker_lite.local.zookeeper import EmbeddedZooKeeper
from broker_lite.metadata.zookeeper.store import ZooKeeperStore

pytestmark = pytest.mark.real

SESSION_MS = 60_000
"""Session timeout, longer than ``ZooKeeperStore.start`` waits.

``start`` would fail if a handshake without a response lasted for the whole session timeout.
"""


class Relay:
    """A TCP relay to ZooKeeper that never answers its first connections."""

    def __init__(self, zookeeper: EmbeddedZooKeeper, unanswered: int) -> None:
        self._port = zookeeper.port
        self._left = unanswered
        self._writers: list[asyncio.StreamWriter] = []

    async def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self._left:
            self._left -= 1
            return
        inward, outward = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(outward)
        await asyncio.gather(_copy(reader, outward), _copy(inward, writer))

    @property
    def has_swallowed(self) -> bool:
        return self._left == 0

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


def test_zookeeper_handshake_without_a_response_is_repeated_before_the_session_timeout(
    zookeeper: EmbeddedZooKeeper,
) -> None:
    async def body() -> None:
        relay = Relay(zookeeper, unanswered=2)
        server = await asyncio.start_server(relay.begin, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = ZooKeeperStore(f"127.0.0.1:{port}", session_timeout_ms=SESSION_MS)
        try:
            await store.start(lambda event: None)
            assert store.connected and relay.has_swallowed
        finally:
            await store.close()
            server.close()
            relay.close()

    asyncio.run(body())
