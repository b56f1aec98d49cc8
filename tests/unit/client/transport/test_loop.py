"""Tests of the client's asyncio connections on loopback sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from broker_lite.client.transport.loop import LoopShell
from broker_lite.client.transport.steps import Operation, Pause, Send
from broker_lite.errors import ClosedError, NetworkError
from broker_lite.model import Endpoint


class Large:
    """A request that does not fit into a socket's send buffer."""

    name = "Large"
    has_answer = True

    def frame(self, correlation_id: int, client_id: str) -> Sequence[bytes]:
        return (bytes(32 << 20),)

    def answer(self, frame: memoryview) -> None:
        raise AssertionError("nobody answers")


@pytest.mark.parametrize("is_closed", [False, True])
def test_asyncio_connection_may_be_closed_while_it_reads_or_writes(is_closed: bool) -> None:
    """Regression: the event loop modified the epoll registration of a socket that was already
    closed."""
    troubles: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: troubles.append(what))
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            endpoint = Endpoint(*server.getsockname())
            shell = LoopShell("test")
            ended: asyncio.Future[Any] = shell.loop.create_future()
            shell.request(Send(endpoint, Large()), ended.set_result)
            peer, _ = await shell.loop.sock_accept(server)
            with peer:
                await shell.loop.sock_recv(peer, 1000)
                if is_closed:
                    shell.close()
                else:
                    shell.disconnect(endpoint)
                assert isinstance(await ended, ClosedError)
                await asyncio.sleep(0)
            shell.close()

    asyncio.run(main())
    assert troubles == []


def test_malformed_host_name_fails_its_request_on_the_event_loop() -> None:
    """Regression: the request to a malformed host name in a broker's metadata waited for its
    timeout."""

    async def main() -> None:
        shell = LoopShell("test")
        failed: asyncio.Future[Any] = shell.loop.create_future()
        shell.request(Send(Endpoint("empty..part", 1), Large()), failed.set_result)
        assert isinstance(await failed, NetworkError)
        shell.close()

    asyncio.run(main())


def test_cancelled_operation_sends_no_further_request() -> None:
    """Regression: a commit that ``asyncio.wait_for`` had given up was still retried. The retry
    could overwrite a later commit with an older offset."""
    steps: list[str] = []

    def operation() -> Operation[None]:
        steps.append("first attempt")
        yield Pause(1)
        steps.append("retry")

    async def main() -> None:
        shell = LoopShell("test")
        task = asyncio.create_task(shell.run(operation()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await shell.run(operation())
        shell.close()

    asyncio.run(main())
    assert steps == ["first attempt", "first attempt", "retry"]


def test_close_ends_the_operations_of_an_asyncio_client_at_once() -> None:
    """Regression: an operation that waited for a retry continued, and opened new connections."""

    def operation() -> Operation[None]:
        yield Pause(60_000)
        yield Send(Endpoint("127.0.0.1", 1), Large())

    async def main() -> None:
        shell = LoopShell("test")
        task = asyncio.create_task(shell.run(operation()))
        await asyncio.sleep(0)
        shell.close()
        async with asyncio.timeout(10):
            with pytest.raises(ClosedError):
                await task
            with pytest.raises(ClosedError):
                await shell.run(operation())
            late: asyncio.Future[Any] = shell.loop.create_future()
            shell.request(Send(Endpoint("127.0.0.1", 1), Large()), late.set_result)
            assert isinstance(await late, ClosedError)

    asyncio.run(main())


@pytest.mark.parametrize("is_disconnected", [False, True])
def test_closed_connection_does_not_unregister_a_socket_that_reuses_its_descriptor(
    is_disconnected: bool,
) -> None:
    """Regression: the client removed the descriptor of a closed connection from the event loop one
    iteration later. The loop then no longer watched a socket of another client that had reused the
    number.
    """

    async def main() -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            endpoint, shell = Endpoint(*server.getsockname()), LoopShell("test")
            shell.request(Send(endpoint, Large()), lambda _: None)
            peer, _ = await loop.sock_accept(server)
            await loop.sock_recv(peer, 1000)
            connection = next(iter(shell._connections))
            number = connection.fileno()
            if is_disconnected:
                shell.disconnect(endpoint)
            else:
                peer.close()
                while not connection.closed:
                    shell._on_readable(connection)
            ours, theirs = socket.socketpair()
            with ours, theirs:
                assert number in (ours.fileno(), theirs.fileno())
                own, other = (ours, theirs) if ours.fileno() == number else (theirs, ours)
                loop.add_reader(own, heard.set)
                await asyncio.sleep(0)
                other.send(b"x")
                await asyncio.wait_for(heard.wait(), 20)
                loop.remove_reader(own)
            shell.close()
            peer.close()

    asyncio.run(main())
