"""A TCP proxy on loopback that closes all its connections when a test calls ``cut``."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

CHUNK = 1 << 16


class CuttingProxy:
    """Relays bytes between clients and ``target``; a context manager.

    The test sets ``target`` to a host:port before the first client connects. ``address`` is the
    host:port of the proxy.
    """

    def __init__(self) -> None:
        self.target = ""
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Call shutdown(), because close() does not wake a thread in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for each in self._threads:
            each.join()

    def cut(self) -> int:
        """Close all connections; return how many there were."""
        with self._lock:
            found = len(self._open) // 2
            for each in self._open:
                _shut(each)
            self._open.clear()
            self.cuts += found
            return found

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            for one, other in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pass, args=(one, other))
                self._threads.append(thread)
                thread.start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(CHUNK):
                other.sendall(data)
        with self._lock:
            self._open -= {one, other}
        _shut(other)
        one.close()


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
