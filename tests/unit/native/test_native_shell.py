"""Tests of ``NativeShell``, which runs the state machine of a ZooKeeper-based consumer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_lite.errors import CoordinationUnavailableError, InvalidConfigError, LogbusError
from broker_lite.metadata.store import Connected
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.native.member import NativeShell
from broker_lite.native.session import ThreadSession


class ClosedStore:
    """A client of a ZooKeeper that refuses every request. With ``fails``, ``start`` raises an error
    because the connection is lost."""

    session_timeout_ms = 6000

    def __init__(self, *, fails: bool = False) -> None:
        self.is_closed = False
        self._fails = fails

    async def start(self, on_event: Any) -> None:
        asyncio.get_running_loop().call_soon(on_event, Connected(1, True))
        if self._fails:
            raise CoordinationUnavailableError("the connection is lost")

    async def close(self) -> None:
        self.is_closed = True

    async def get(self, path: str, *, watch: bool = False) -> Any:
        raise InvalidConfigError("ZooKeeper refuses this client: the znodes have ACLs")


class Readers:
    """Stands for a consumer; ``refused`` is the error with which the shell ended its membership."""

    def __init__(self) -> None:
        self.refused: LogbusError | None = None

    def refuse(self, error: LogbusError) -> None:
        self.refused = error


def shell(readers: Readers, store: ClosedStore, on_joined: Any = None) -> NativeShell:
    return NativeShell(
        "g",
        "me",
        NativeSubscription((), ".*", 1),
        readers,  # type: ignore[arg-type]
        make_store=lambda: store,  # type: ignore[arg-type, return-value]
        now_ms=lambda: 0.0,
        on_joined=on_joined,
    )


def test_consumer_whose_requests_zookeeper_refuses_gets_the_reason() -> None:
    """Regression: the consumer's state machine never learnt of the error. A new consumer reported
    after 30 s that ZooKeeper did not answer. After a member had lost its permissions, its calls
    never ended.
    """

    async def main() -> None:
        readers, joined = Readers(), asyncio.Event()
        member = shell(readers, ClosedStore(), joined.set)
        await member.start()
        await asyncio.wait_for(joined.wait(), 20)
        assert isinstance(readers.refused, InvalidConfigError)
        await member.close()

    asyncio.run(main())


def test_zk_session_is_closed_if_the_start_of_the_consumer_fails() -> None:
    """Regression: a ZooKeeper client whose start failed stayed connected beside that of the next
    attempt. It could join the group a second time, and keep its partitions for ever."""

    async def main() -> None:
        readers, store = Readers(), ClosedStore(fails=True)
        with pytest.raises(CoordinationUnavailableError):
            await shell(readers, store).start()
        assert store.is_closed
        await asyncio.sleep(0)
        assert readers.refused is None

    asyncio.run(main())


@pytest.mark.parametrize("is_started", [False, True])
def test_zk_session_that_was_never_opened_closes_its_event_loop(is_started: bool) -> None:
    """Regression: each failed start of a consumer left the three descriptors of an event loop
    open until the next garbage collection."""

    def no_address() -> str:
        raise InvalidConfigError("planted")

    subscription = NativeSubscription((), ".*", 1)
    session = ThreadSession(no_address, "g", "me", subscription, 6000)
    if is_started:
        with pytest.raises(InvalidConfigError):
            session.start()
    else:
        session.leave()
    assert session._loop.is_closed()
