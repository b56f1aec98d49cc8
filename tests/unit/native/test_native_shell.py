"""Tests of ``NativeShell``, which runs the state machine of a native group's consumer."""

from __future__ import annotations

import asyncio
from typing import Any

from broker_lite.errors import InvalidConfigError, LogbusError
from broker_lite.metadata.store import Connected
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.native.member import NativeShell


class ClosedStore:
    """A client of a ZooKeeper that refuses every request."""

    session_timeout_ms = 6000

    async def start(self, on_event: Any) -> None:
        asyncio.get_running_loop().call_soon(on_event, Connected(1, True))

    async def close(self) -> None:
        """Do nothing."""

    async def get(self, path: str, *, watch: bool = False) -> Any:
        raise InvalidConfigError("ZooKeeper refuses this client: the znodes have ACLs")


class Readers:
    """The readers of the streams. ``refused`` has the error with which the membership ended."""

    def __init__(self) -> None:
        self.refused: LogbusError | None = None

    def refuse(self, error: LogbusError) -> None:
        self.refused = error


def test_consumer_whose_requests_zookeeper_refuses_gets_the_reason() -> None:
    """Regression: the machine never learnt of the error. A new consumer reported after 30 s that
    ZooKeeper did not answer, and the calls of a member that lost its access never ended."""

    async def main() -> None:
        readers, joined = Readers(), asyncio.Event()
        member = NativeShell(
            "g",
            "me",
            NativeSubscription((), ".*", 1),
            readers,  # type: ignore[arg-type]
            make_store=lambda: ClosedStore(),  # type: ignore[arg-type, return-value]
            now_ms=lambda: 0.0,
            on_joined=joined.set,
        )
        await member.start()
        await asyncio.wait_for(joined.wait(), 20)
        assert isinstance(readers.refused, InvalidConfigError)
        await member.close()

    asyncio.run(main())
