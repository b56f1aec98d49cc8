"""The blocking and the asyncio client behind one interface, so that one test runs with both.

A test calls the client as a blocking program does. ``LoopFace`` runs each call on an event loop in
another thread and waits for the result. Heartbeats and fetches therefore continue between calls.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from broker_lite.bus import AsyncBus, aconnect, connect
from broker_lite.client import AsyncConsumer, Consumer


class BlockingFace:
    """The blocking client, behind the interface that it shares with ``LoopFace``."""

    name = "blocking"
    connect = staticmethod(connect)
    make_consumer = staticmethod(Consumer)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and return its result."""
        return function(*arguments)

    def close(self) -> None:
        """Do nothing, because the blocking client has no event loop to stop."""


class Driven:
    """An asyncio bus or consumer with the methods of the blocking bus or consumer."""

    def __init__(self, face: LoopFace, target: Any) -> None:
        self._face, self._target = face, target

    def __getattr__(self, name: str) -> Any:
        value = self._face.call(getattr, self._target, name)
        return partial(self._face.call, value) if inspect.ismethod(value) else value

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

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a function or coroutine on the loop and return its result.

        If the caller is handling an exception, the function runs inside a handler of it too,
        because ``close`` commits less if sys.exc_info() is set.
        """
        handled = sys.exc_info()[1]

        async def run() -> Any:
            found = function(*arguments, **options)
            return await found if inspect.isawaitable(found) else found

        async def run_in_handler() -> Any:
            if handled is None:
                return await run()
            try:
                raise handled
            except type(handled):
                return await run()

        found = asyncio.run_coroutine_threadsafe(run_in_handler(), self._loop).result()
        return Driven(self, found) if isinstance(found, AsyncBus | AsyncConsumer) else found

    def close(self) -> None:
        """Stop the event loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


Face = BlockingFace | LoopFace
FACES = (BlockingFace, LoopFace)
