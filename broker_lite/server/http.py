"""The broker's HTTP port: ``/metrics`` for Prometheus, ``/livez`` and ``/readyz`` for probes.

``/livez`` answers while the event loop turns. ``/readyz`` answers 200 if the broker serves clients,
else 503 with the reasons as JSON. Off loopback there is no login yet, so ``/metrics`` is refused
there and the probes answer their status alone. ``h11`` parses. Loop thread; the text is rendered on
another.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Callable

import h11

from broker_lite.server.exposition import Exposition

logger = logging.getLogger("logbus.http")

REQUEST_BYTES_MAX = 8192
"""Maximum bytes of a request's head; scrapers send less."""
CONNECTIONS_MAX = 16
TIMEOUT_S = 10.0
"""Seconds in which a client must send its request and read the answer."""
PLAIN = "text/plain; charset=utf-8"

Reasons = Callable[[], list[str]]
"""Returns why the broker is not ready; empty if it is."""


class HttpServer:
    """The HTTP port of one broker."""

    def __init__(self, exposition: Exposition, reasons: Reasons) -> None:
        self._exposition = exposition
        self._reasons = reasons
        self._server: asyncio.Server | None = None
        self._open = 0
        self._is_loopback = True

    async def start(self, host: str, port: int) -> int:
        """Listen on ``port`` (0 selects a free one) and return the bound port. Raises OSError."""
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=REQUEST_BYTES_MAX, backlog=CONNECTIONS_MAX
        )
        address, bound = self._server.sockets[0].getsockname()[:2]
        self._is_loopback = ipaddress.ip_address(address).is_loopback
        return int(bound)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                await asyncio.wait_for(self._exchange(reader, writer), TIMEOUT_S)
        except (OSError, TimeoutError, h11.RemoteProtocolError):
            logger.debug("an HTTP client sent no request or read no answer", exc_info=True)
        finally:
            self._open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        while (request := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await reader.read(REQUEST_BYTES_MAX))
        if not isinstance(request, h11.Request):
            return
        status, content_type, body = await self._answer(request)
        head = h11.Response(
            status_code=status,
            headers=[
                ("Content-Type", content_type),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ],
        )
        writer.write(http.send(head) or b"")
        writer.write(http.send(h11.Data(data=body if request.method == b"GET" else b"")) or b"")
        await writer.drain()

    async def _answer(self, request: h11.Request) -> tuple[int, str, bytes]:
        path = request.target.partition(b"?")[0]
        if request.method not in (b"GET", b"HEAD"):
            return 405, PLAIN, b"only GET is served\n"
        if path == b"/livez":
            return 200, PLAIN, b"ok\n"
        if path == b"/readyz":
            return self._readiness()
        if path != b"/metrics":
            return 404, PLAIN, b"served paths: /metrics /livez /readyz\n"
        if not self._is_loopback:
            return 403, PLAIN, b"/metrics is served on loopback only: set metrics.host=127.0.0.1\n"
        accept = dict(request.headers).get(b"accept", b"").decode("latin-1")
        samples = self._exposition.snapshot()
        body, content_type = await asyncio.to_thread(self._exposition.render, samples, accept)
        return 200, content_type, body

    def _readiness(self) -> tuple[int, str, bytes]:
        reasons = self._reasons()
        status = 503 if reasons else 200
        if not self._is_loopback:
            return status, PLAIN, b"not ready\n" if reasons else b"ready\n"
        body = json.dumps({"ready": not reasons, "reasons": reasons}) + "\n"
        return status, "application/json", body.encode()
