"""Requests of clients that wait until a state machine replies to them (parked requests)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")
Result = TypeVar("Result")


class ParkedRequests(Generic[Result]):
    """The requests that wait for a state machine's reply, by token. The object is true while any
    request waits."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Result]] = {}

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def ask(
        self,
        token: int,
        step: Callable[[Event], None],
        request: Event,
        withdrawal: Event | None = None,
    ) -> Result:
        """Pass a request to the state machine with ``step``, and return its reply.

        If the caller stops waiting first, the event ``withdrawal`` is passed to ``step``."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._futures[token] = future
        step(request)
        try:
            return await future
        finally:
            if self._futures.pop(token, None) is not None and withdrawal is not None:
                step(withdrawal)

    def reply(self, token: int, result: Result) -> None:
        """Reply to the request with this token, if it still waits."""
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_result(result)
