"""The broker's HTTP port, over real sockets on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker_lite.server import http
from broker_lite.server.exposition import Exposition
from broker_lite.server.http import HttpServer
from broker_lite.server.metrics import Metrics

Ask = Callable[[bytes], Awaitable[bytes]]


def run(test: Callable[[Ask], Awaitable[None]], *reasons: str, host: str = "127.0.0.1") -> None:
    async def main() -> None:
        server = HttpServer(Exposition(Metrics()), lambda: list(reasons))
        port = await server.start(host, 0)

        async def ask(request: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

        await test(ask)
        await server.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def test_each_path_answers() -> None:
    async def test(ask: Ask) -> None:
        metrics = await ask(get("/metrics?name[]=x"))
        assert metrics.startswith(b"HTTP/1.1 200") and b"logbus_loop_rule_violations" in metrics
        assert (await ask(get("/livez"))).endswith(b"\r\n\r\nok\n")
        assert (await ask(get("/readyz"))).endswith(b'{"ready": true, "reasons": []}\n')
        assert (await ask(get("/secret"))).startswith(b"HTTP/1.1 404")
        assert (await ask(b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 405")
        head = await ask(b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and head.endswith(b"\r\n\r\n")

    run(test)


def test_readiness_names_the_reasons() -> None:
    async def test(ask: Ask) -> None:
        answer = await ask(get("/readyz"))
        assert answer.startswith(b"HTTP/1.1 503") and b'["draining"]' in answer

    run(test, "draining")


def test_off_loopback_only_the_probes_answer_and_without_detail() -> None:
    async def test(ask: Ask) -> None:
        assert (await ask(get("/metrics"))).startswith(b"HTTP/1.1 403")
        answer = await ask(get("/readyz"))
        assert answer.startswith(b"HTTP/1.1 503") and b"draining" not in answer

    run(test, "draining", host="0.0.0.0")


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 20_000],
)
def test_broken_requests_end_the_connection(request_bytes: bytes) -> None:
    async def test(ask: Ask) -> None:
        assert await ask(request_bytes + b"\r\n\r\n") == b""
        assert (await ask(get("/livez"))).startswith(b"HTTP/1.1 200")

    run(test)


def test_connections_above_the_limit_are_closed_and_freed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(http, "TIMEOUT_S", 0.2)

    async def test(ask: Ask) -> None:
        answers = await asyncio.gather(ask(b"GET /livez HTTP/1.1\r\n"), ask(get("/livez")))
        assert answers == [b"", b""], "the first sends half a request, the second is one too many"
        assert (await ask(get("/livez"))).startswith(b"HTTP/1.1 200")

    run(test)
