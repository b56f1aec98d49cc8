"""Tests of the time limit within which the console must have received a whole request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from broker_lite.console import connections
from broker_lite.console.connections import ConsoleConnection

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Coroutine[Any, Any, Streams]]


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[Connect]:
    """Serve an ASGI application; yield a function that connects to its port."""
    config = uvicorn.Config(app, http=ConsoleConnection, lifespan="off", log_config=None)
    config.load()
    server = await asyncio.get_running_loop().create_server(
        lambda: ConsoleConnection(config, ServerState(), {}), "127.0.0.1", 0
    )
    async with server:
        yield lambda: asyncio.open_connection(*server.sockets[0].getsockname())


async def answer_body(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that responds to a request with the request's body."""
    event = await receive()
    body = event["body"]
    while event.get("more_body"):
        event = await receive()
        body += event.get("body", b"")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
    ],
    ids=["no byte", "incomplete headers", "incomplete body"],
)
def test_connection_with_an_incomplete_request_is_closed_after_the_time_limit(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)

    async def check() -> None:
        async with serving(answer_body) as connect:
            reader, writer = await connect()
            writer.write(sent)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(check())


def test_console_response_may_take_longer_than_the_time_limit_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)

    async def check() -> None:
        silent_has_ended = asyncio.Event()

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await silent_has_ended.wait()
            await answer_body(scope, receive, send)

        async with serving(answer) as connect:
            asking_reader, asking_writer = await connect()
            asking_writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
            await asking_writer.drain()
            silent_reader, silent_writer = await connect()
            with suppress(ConnectionResetError):
                await silent_reader.read()
            silent_has_ended.set()
            assert b"200 OK" in await asking_reader.readline()
            asking_writer.close()
            silent_writer.close()

    asyncio.run(check())
