"""The broker's HTTP port: ``/metrics`` for Prometheus, ``/livez`` and ``/readyz`` for probes.

``/livez`` answers 200 while the event loop runs. ``/readyz`` answers 200 if the broker serves
clients, else 503 with the reasons as JSON.

With ``metrics.listener.name`` the port has TLS, and ``/metrics`` needs a login. Without it,
``/metrics`` is served only if the port is bound to loopback and, against DNS rebinding, the request
names a loopback host. If the port is bound to another address, ``/readyz`` gives no reasons.
Another thread renders the text of ``/metrics``; all else runs on the event loop's thread."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import h11

from broker_lite.server.exposition import Exposition
from broker_lite.server.task_set import TaskSet

if TYPE_CHECKING:
    from broker_lite.server.http_login import HttpLogin

logger = logging.getLogger("logbus.http")

REQUEST_BYTES_MAX = 8192
"""Maximum bytes of a request line with its headers; Prometheus sends less."""
CONNECTIONS_MAX = 64
"""Maximum number of connections; a further one replaces the oldest.

Otherwise silent clients could keep out health checks, whose failure restarts the broker."""
TIMEOUT_S = 10.0
"""Seconds within which a client must do the TLS handshake, send its request and read the answer."""
ACCEPT_PAUSE_S = 0.5
"""Seconds for which no connections are accepted after an accept found no free file descriptor."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
PLAIN = "text/plain; charset=utf-8"
_HOST_PORT = re.compile(r":\d*$")
INSECURE = b"/metrics needs TLS here: set metrics.listener.name, or metrics.host=127.0.0.1\n"
REFUSALS = {
    401: b"/metrics needs a client certificate, or the user and password of HTTP Basic\n",
    403: b"/metrics needs the permission to describe the cluster\n",
    503: b"the broker starts or stops and cannot check logins for /metrics; try again later\n",
}

Reasons = Callable[[], list[str]]
"""Returns why the broker is not ready; an empty list if it is."""


class HttpClient(NamedTuple):
    """The client of a connection. ``certificate`` is DER, empty if it sent none."""

    host: str
    certificate: bytes = b""


class HttpServer:
    """The HTTP port of one broker. Without ``login``, the port is plain HTTP and needs no login."""

    def __init__(
        self, exposition: Exposition, reasons: Reasons, login: HttpLogin | None = None
    ) -> None:
        self._exposition = exposition
        self._reasons = reasons
        self._login = login
        self._socket: socket.socket | None = None
        self._tasks = TaskSet()
        self._clients: dict[asyncio.Task[None], None] = {}
        """The tasks that serve connections, the oldest first."""
        self._is_loopback = True
        self._names: frozenset[str] = frozenset()

    async def start(self, host: str, port: int) -> int:
        """Listen on ``port``, 0 for any free one, and return the bound port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
        listening.setblocking(False)
        # Let the kernel receive little at once: asyncio decrypts all received TLS records in one
        # iteration of the event loop, and a client may send records of one byte.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, REQUEST_BYTES_MAX)
        address, bound = listening.getsockname()[:2]
        self._is_loopback = ipaddress.ip_address(address).is_loopback
        self._names = frozenset((*LOOPBACK_NAMES, f"[{host}]" if ":" in host else host.lower()))
        self._socket = listening
        self._tasks.start(self._accept(listening))
        return int(bound)

    async def close(self) -> None:
        self._tasks.cancel()
        await self._tasks.wait()
        if self._socket is not None:
            self._socket.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError:
                logger.exception("cannot accept HTTP connections; trying again")
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._clients) >= CONNECTIONS_MAX:
                oldest = next(iter(self._clients))
                del self._clients[oldest]
                oldest.cancel()
            task = self._tasks.start(self._serve(sock, address[0]))
            self._clients[task] = None
            task.add_done_callback(self._forget)
            # Let the task start now: a task that is cancelled before its start does not close its
            # socket.
            await asyncio.sleep(0)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._clients.pop(task, None)

    async def _serve(self, sock: socket.socket, host: str) -> None:
        try:
            await asyncio.wait_for(self._handle_connection(sock, host), TIMEOUT_S)
        except (OSError, TimeoutError, h11.RemoteProtocolError):
            logger.debug("an HTTP client sent no request or read no answer", exc_info=True)

    async def _handle_connection(self, sock: socket.socket, host: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(REQUEST_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        context = None if self._login is None else self._login.tls.context
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=context)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            tls = writer.get_extra_info("ssl_object")
            certificate = tls.getpeercert(binary_form=True) if tls is not None else None
            await self._exchange(reader, writer, HttpClient(host, certificate or b""))
            writer.close()
            # With TLS, wait_closed waits for the client's close_notify, which may never come. The
            # timeout of the connection then ends the wait.
            await writer.wait_closed()
        finally:
            transport.abort()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: HttpClient
    ) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        while (request := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await reader.read(REQUEST_BYTES_MAX))
        if not isinstance(request, h11.Request):
            return
        status, content_type, body = await self._answer(request, client)
        headers = [
            ("Content-Type", content_type),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        if status == 401:
            headers.append(("WWW-Authenticate", 'Basic realm="logbus"'))
        head = h11.Response(status_code=status, headers=headers)
        writer.write(http.send(head) or b"")
        writer.write(http.send(h11.Data(data=body if request.method == b"GET" else b"")) or b"")
        await writer.drain()

    async def _answer(self, request: h11.Request, client: HttpClient) -> tuple[int, str, bytes]:
        path = request.target.partition(b"?")[0]
        if request.method not in (b"GET", b"HEAD"):
            return 405, PLAIN, b"only GET is served\n"
        if path == b"/livez":
            return 200, PLAIN, b"ok\n"
        if path == b"/readyz":
            return self._readiness()
        if path != b"/metrics":
            return 404, PLAIN, b"served paths: /metrics /livez /readyz\n"
        headers = {name: value.decode("latin-1") for name, value in request.headers}
        status, why = await self._refusal(client, headers)
        if status:
            return status, PLAIN, why
        samples = await self._exposition.samples()
        accept = headers.get(b"accept", "")
        body, content_type = await asyncio.to_thread(self._exposition.render, samples, accept)
        return 200, content_type, body

    async def _refusal(self, client: HttpClient, headers: Mapping[bytes, str]) -> tuple[int, bytes]:
        """Return the HTTP status and text that refuse a request for ``/metrics``; status 0 allows
        it."""
        if self._login is not None:
            authorization = headers.get(b"authorization", "")
            status = await self._login.refusal(client.host, client.certificate, authorization)
            return status, REFUSALS.get(status, b"")
        if not self._is_loopback:
            return 403, INSECURE
        # Refuse other host names. Otherwise a web page could read the metrics in the operator's
        # browser, through a host name of its own that resolves to loopback (DNS rebinding).
        name = _HOST_PORT.sub("", headers.get(b"host", "")).lower()
        if name not in self._names:
            return 403, b"request /metrics with the host name 127.0.0.1 or localhost\n"
        return 0, b""

    def _readiness(self) -> tuple[int, str, bytes]:
        reasons = self._reasons()
        status = 503 if reasons else 200
        if not self._is_loopback:
            return status, PLAIN, b"not ready\n" if reasons else b"ready\n"
        body = json.dumps({"ready": not reasons, "reasons": reasons}) + "\n"
        return status, "application/json", body.encode()
