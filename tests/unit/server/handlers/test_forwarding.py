"""Tests of a request that a broker has forwarded to a controller that does not answer."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_lite.config import BrokerConfig
from broker_lite.errors import NotControllerError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import BrokerView, Endpoint
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.peers import Peers
from broker_lite.server.handlers.forwarding import ask_controller
from broker_lite.server.metrics import Metrics
from broker_lite.wire.calls.cluster import MetadataRequest


def test_forwarded_request_fails_at_once_when_its_hanging_controller_is_deposed() -> None:
    async def test() -> None:
        asked = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            asked.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        brokers = {n: BrokerView(n, endpoint, f"directory-{n}", n) for n in (1, 2)}
        known = SimpleNamespace(
            snapshot=dataclasses.replace(MetadataSnapshot(), brokers=brokers, controller_id=2)
        )
        config, nothing = BrokerConfig(broker_id=1), cast(Any, None)
        clock, loop = Clock(), asyncio.get_running_loop()
        peers = Peers(loop, config, clock=clock, failure_listener=nothing, metrics=Metrics())
        peers.apply(known.snapshot)
        parts = BrokerContext(
            config, clock, cast(Any, known), *[nothing] * 4, endpoint, nothing, peers,
            *[nothing] * 4,
        )  # fmt: skip
        asking = asyncio.ensure_future(ask_controller(parts, MetadataRequest(())))
        await asked.wait()
        known.snapshot = dataclasses.replace(known.snapshot, controller_id=1)
        async with asyncio.timeout(10):
            with pytest.raises(NotControllerError, match="broker 2 is no longer the controller"):
                await asking
        peers.close()
        server.close()
        await server.wait_closed()

    asyncio.run(test())
