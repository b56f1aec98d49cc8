"""Requests of clients that wait until a state machine replies to them (parked requests)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar


class NumberedRequest(Protocol):
    """A request to a state machine: a named tuple with the field ``token``, a number that the reply
    repeats."""

    def _replace(self, *, token: int) -> Self: ...


R = TypeVar("R", bound=NumberedRequest)
Result = TypeVar("Result")


class ParkedRequests(Generic[Result]):
    """The requests that wait for a state machine's reply, by ``NumberedRequest.token``. The object
    is true while any request waits."""

    __slots__ = ("_futures", "_tokens")

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Result]] = {}
        self._tokens = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def ask(
        self,
        step: Callable[[R], None],
        request: R,
        withdraw: Callable[[int], None] | None = None,
    ) -> Result:
        """Give a request a new token, pass it to the state machine with ``step``, and return the
        reply.

        If the caller stops waiting first, ``withdraw`` is called with the request's token."""
        token = next(self._tokens)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._futures[token] = future
        step(request._replace(token=token))
        try:
            return await future
        finally:
            if self._futures.pop(token, None) is not None and withdraw is not None:
                withdraw(token)

    def reply(self, token: int, result: Result) -> None:
        """Reply to the request with this token, if it still waits."""
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_result(result)
