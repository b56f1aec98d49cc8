"""Consumers that wait at the end of a partition, for the benchmark growth-connections."""

from __future__ import annotations

import resource
import selectors
import socket
import struct
import time
from typing import Any

from broker import fetch_request


class Waiters:
    """Consumers at the end of one partition, each with a connection and a waiting fetch.

    The consumers only count responses and fetch again, so that the broker dominates the
    measurement.
    """

    def __init__(self, port: int, topic_id: str, count: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < count + 200:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
        self._topic_id = topic_id
        self._selector = selectors.DefaultSelector()
        self._request = b""
        self._sockets = []
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(sock)
            self._selector.register(sock, selectors.EVENT_READ, bytearray())
        self._waiting: set[Any] = set()
        self._empty_bytes = 0

    def ask(self, offset: int) -> None:
        """Make every consumer fetch from ``offset``."""
        self._request = fetch_request(self._topic_id, 1 << 20, offset=offset)
        self._waiting = set(self._sockets)
        for sock in self._sockets:
            sock.sendall(self._request)

    def until_all_have_it(self) -> None:
        """Run the consumers until each has received a record."""
        while self._waiting:
            self._turn(1.0)

    def idle(self, seconds: float) -> None:
        """Make the consumers fetch repeatedly for ``seconds``, without new records."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._turn(left)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._selector.close()

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            sock, buffer = key.fileobj, key.data
            data = sock.recv(65_536)
            if not data:
                raise RuntimeError("the broker closed a connection")
            buffer += data
            while len(buffer) >= 4 and len(buffer) >= 4 + (
                size := struct.unpack_from(">i", buffer)[0]
            ):
                del buffer[: 4 + size]
                self._answered(sock, size)

    def _answered(self, sock: Any, size: int) -> None:
        """Handle a response: fetch again if the response has no record.

        The response is not decoded: the smallest response so far has no records, and one with a
        record is more than 60 bytes larger.
        """
        self._empty_bytes = min(self._empty_bytes or size, size)
        if size > self._empty_bytes + 60:
            self._waiting.discard(sock)
        else:
            sock.sendall(self._request)
