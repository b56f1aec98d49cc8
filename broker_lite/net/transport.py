"""The interface through which connections use a socket, with or without TLS.

``PlainTransport`` implements the interface without encryption. Only one thread uses a transport. On
a non-blocking socket, a call that would block raises BlockingIOError. The caller must then repeat a
``write`` or ``send_file`` with the same bytes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
_MORE = getattr(socket, "MSG_MORE", 0)
NOTHING: bytes = b""


class Transport(Protocol):
    """A connected socket, plain or TLS."""

    @property
    def read_into(self) -> Callable[[memoryview], int]:
        """Receive into a buffer and return the number of bytes; 0 at the end of the stream."""

    @property
    def pending(self) -> int:
        """Number of bytes that the transport has received but not yet returned. A selector does not
        report them, so read them before you wait for the socket."""

    @property
    def is_handshaking(self) -> bool:
        """Whether ``handshake`` must be called before any other method."""

    @property
    def wants_write(self) -> bool:
        """Whether to wait until the socket is writable before repeating the last call that raised
        BlockingIOError. If not, wait until it is readable."""

    @property
    def subject(self) -> bytes:
        """The peer's verified certificate (DER); empty if the peer sent none."""

    def handshake(self) -> None:
        """Continue the handshake. Raises BlockingIOError as long as it is not complete."""

    def write(self, parts: Sequence[Buffer], more: bool = False) -> int:
        """Send bytes from the start of ``parts``, perhaps not all, and return how many. With
        ``more``, the kernel may delay them, because the caller is about to write more."""

    def send_file(self, file: int, position: int, count: int) -> int:
        """Send a range of a file and return the number of bytes sent; 0 at the end of the file."""

    def send_all(self, part: Buffer) -> None:
        """Send all bytes on a blocking socket."""

    def is_silent(self) -> bool:
        """Return whether the connection is open and has no unread data."""

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout of blocking calls, after which they raise TimeoutError. 0 means
        non-blocking."""

    def interrupt(self) -> None:
        """Make a blocking call of another thread return, by shutting the connection down."""

    def fileno(self) -> int:
        """Return the file descriptor, or -1 after ``close``."""

    def close(self) -> None:
        """Close the descriptor. Even with TLS, the peer gets no message (close_notify)."""

    @property
    def is_to_this_machine(self) -> bool:
        """Whether both ends have the same address, so that they are on the same machine."""


class PlainTransport:
    """The implementation of ``Transport`` without encryption."""

    __slots__ = ("_fd", "_socket", "read_into")
    pending = 0
    is_handshaking = False
    wants_write = False
    subject = NOTHING

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._fd = sock.fileno()
        # Use the socket's own method: a method of this class would cost one more call for each
        # receive.
        self.read_into: Callable[[memoryview], int] = sock.recv_into

    def handshake(self) -> None:
        """Do nothing, because a plain connection needs no handshake."""

    def write(self, parts: Sequence[Buffer], more: bool = False) -> int:
        return self._socket.sendmsg(parts, (), _MORE if more else 0)

    def send_file(self, file: int, position: int, count: int) -> int:
        return os.sendfile(self._fd, file, position, count)

    def send_all(self, part: Buffer) -> None:
        self._socket.sendall(part)

    def is_silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def interrupt(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def is_to_this_machine(self) -> bool:
        return has_one_address(self._socket)


def has_one_address(sock: socket.socket) -> bool:
    """Return whether both ends of a connection have the same address, so that they are on the same
    machine."""
    try:
        return bool(sock.getsockname()[0] == sock.getpeername()[0])
    except OSError:
        return False
