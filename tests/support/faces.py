"""The blocking and the asyncio client behind one interface, so that one test runs with both.

A test calls the client as a blocking program does. ``LoopFace`` runs each call on an event loop in
another thread and waits for the result. Heartbeats and fetches therefore continue between calls.
``send`` and ``send_arrow`` do not wait: they return a future, as those of the blocking client do.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from broker_lite.bus import AsyncBus, Bus, aconnect, connect
from broker_lite.client import AsyncConsumer, Consumer
from broker_lite.client.producing.aio_producer import AsyncProducer
from broker_lite.client.producing.producer import Producer
from broker_lite.client.transactions.aio_producer import AsyncBusTransaction

TARGETS = AsyncBus | AsyncConsumer | AsyncProducer | AsyncBusTransaction
SENDS = ("send", "send_arrow")
"""The methods that return a future."""


class BlockingFace:
    """The blocking client, behind the interface that it shares with ``LoopFace``."""

    name = "blocking"
    connect = staticmethod(connect)
    make_bus = staticmethod(Bus)
    make_consumer = staticmethod(Consumer)
    make_producer = staticmethod(Producer)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and return its result."""
        return function(*arguments)

    def close(self) -> None:
        """Do nothing, because the blocking client has no event loop to stop."""


class Pending:
    """A future of a sent record on the event loop, with the methods of the blocking client's."""

    def __init__(self, face: LoopFace, future: asyncio.Future[Any]) -> None:
        self._face, self._future = face, future

    def result(self, timeout_s: float | None = None) -> Any:
        async def wait() -> Any:
            async with asyncio.timeout(timeout_s):
                return await self._future

        return self._face.call(wait)


class Driven:
    """An asyncio bus, producer, transaction or consumer with the methods of the blocking one."""

    def __init__(self, face: LoopFace, target: Any) -> None:
        self._face, self._target = face, target

    def __getattr__(self, name: str) -> Any:
        value = self._face.call(getattr, self._target, name)
        if not inspect.ismethod(value):
            return value
        return partial(self._face.start if name in SENDS else self._face.call, value)

    def __iter__(self) -> Iterator[Any]:
        rows = aiter(self._target)
        while True:
            yield self._face.call(anext, rows)

    def __enter__(self) -> Driven:
        self._face.call(self._target.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._face.call(self._target.__aexit__, *error)


class LoopFace:
    """The asyncio client on an event loop in a thread, with the interface of the blocking
    client.
    """

    name = "asyncio"

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def connect(self, servers: str, **options: Any) -> Any:
        return self.call(aconnect, servers, **options)

    def make_consumer(self, *arguments: Any, **options: Any) -> Any:
        return self.call(AsyncConsumer, *arguments, **options)

    def make_bus(self, *arguments: Any, **options: Any) -> Any:
        return self.call(AsyncBus, *arguments, **options)

    def make_producer(self, *arguments: Any, **options: Any) -> Any:
        return self.call(AsyncProducer, *arguments, **options)

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Pending:
        """Call a function that sends on the loop. Return its future without waiting for it.

        Raises the error of a send that is refused at once, as the blocking client does."""

        async def begin() -> Pending:
            future = asyncio.ensure_future(function(*arguments, **options))
            await asyncio.sleep(0)
            if future.done():
                future.result()
            return Pending(self, future)

        begun: Pending = self.call(begin)
        return begun

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a function or coroutine on the loop and return its result.

        If the caller is handling an exception, the function runs inside a handler of it too,
        because ``close`` commits less if sys.exc_info() is set.
        """
        handled = sys.exc_info()[1]
        given = [each._target if isinstance(each, Driven) else each for each in arguments]

        async def run() -> Any:
            found = function(*given, **options)
            return await found if inspect.isawaitable(found) else found

        async def run_in_handler() -> Any:
            if handled is None:
                return await run()
            try:
                raise handled
            except type(handled):
                return await run()

        found = asyncio.run_coroutine_threadsafe(run_in_handler(), self._loop).result()
        return Driven(self, found) if isinstance(found, TARGETS) else found

    def close(self) -> None:
        """Stop the event loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


Face = BlockingFace | LoopFace
FACES = (BlockingFace, LoopFace)
