"""Tests of the queue of requests from clients that have not logged in: only a few begin in each
iteration of the event loop."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from support.handler_world import context_of

from broker_lite.errors import ProtocolError
from broker_lite.server.network.context import RequestContext
from broker_lite.server.network.login_queue import PER_TURN, LoginQueue
from broker_lite.wire.api import ApiKey


class Reply:
    """A reply that records whether the queue dropped the request (``release``) or refused it."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.released = False
        self.refusal = ""

    def release(self) -> None:
        self.released = True

    def refuse(self, reason: str) -> None:
        self.refusal = reason


def test_login_queue_starts_a_limited_number_of_requests_per_event_loop_turn() -> None:
    async def main() -> None:
        begun: list[Any] = []
        queue = LoginQueue(
            asyncio.get_running_loop(), lambda request, frame, reply: begun.append(reply)
        )
        replies: list[Any] = [Reply() for _ in range(5 * PER_TURN)]
        for reply in replies:
            queue.add(context_of(ApiKey.SASL_AUTHENTICATE, 2), memoryview(b""), reply)
        turns = [0]
        while len(begun) < len(replies):
            await asyncio.sleep(0)
            turns.append(len(begun))
        assert max(b - a for a, b in itertools.pairwise(turns)) <= PER_TURN
        assert begun == replies

    asyncio.run(main())


def test_login_queue_drops_requests_of_closed_connections_and_refuses_malformed_requests() -> None:
    def start(request: RequestContext, frame: memoryview, reply: Any) -> None:
        raise ProtocolError("no request")

    async def main() -> None:
        queue = LoginQueue(asyncio.get_running_loop(), start)
        closed: Any = Reply(is_open=False)
        broken: Any = Reply()
        for reply in (closed, broken):
            queue.add(context_of(ApiKey.SASL_AUTHENTICATE, 2), memoryview(b""), reply)
        await asyncio.sleep(0.01)
        assert closed.released and not closed.refusal
        assert broken.refusal == "no request"

    asyncio.run(main())
