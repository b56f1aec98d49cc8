"""``TlsTransport``: the implementation of ``Transport`` with TLS.

``ssl.SSLSocket`` wraps the raw socket, so selectors watch the same descriptor. Four properties of
OpenSSL and Python determine this module:

- A call that would block raises an ``SSLError``; a read may have to wait until the socket is
  writable, and a write until it is readable. This module raises BlockingIOError instead, and
  ``wants_write`` names the direction.
- One receive returns at most one TLS record (16 KiB), so ``read_into`` receives repeatedly. A
  selector does not report bytes that are decrypted but not returned (``pending``).
- A send that would block must be repeated with the same bytes; no part of them counts as sent.
  ``write`` therefore passes at most 64 KiB at a time.
- A wrapped socket whose peer has closed the connection may skip the handshake and return plain text
  (CVE-2023-40217). This module therefore never reads or writes before ``do_handshake`` has
  returned, and never calls ``unwrap``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Sequence

from broker_lite.net.transport import Buffer, has_one_address

SEND_BYTES = 64 << 10
"""Maximum bytes of one send, four TLS records."""
READ_TURN_BYTES = 256 << 10
"""Maximum bytes of one ``read_into``, so that a fast peer does not starve others."""
FILE_BYTES = 256 << 10
"""Maximum bytes that ``send_file`` reads from a file at once."""

_file_buffer = bytearray(0)


class TlsTransport:
    """A TLS connection over a connected socket, which it owns and closes."""

    __slots__ = ("_blocks", "_failed", "_socket", "_unsent", "is_handshaking", "wants_write")

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        self._blocks = sock.gettimeout() != 0
        self._socket = context.wrap_socket(
            sock,
            server_side=server_side,
            server_hostname=server_hostname,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        self.is_handshaking = True
        self.wants_write = not server_side
        self._unsent: Buffer | None = None
        """The bytes of a blocked send, which the next send must repeat."""
        self._failed: OSError | None = None
        """An error that followed the bytes of the last ``read_into``. The next call raises this
        error."""

    def handshake(self) -> None:
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self.wants_write = False
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.wants_write = True
            raise BlockingIOError from None
        self.is_handshaking = self.wants_write = False

    @property
    def subject(self) -> bytes:
        return self._socket.getpeercert(binary_form=True) or b""

    @property
    def pending(self) -> int:
        return 0 if self.is_handshaking or self._socket.fileno() < 0 else self._socket.pending()

    def read_into(self, buffer: memoryview) -> int:
        self._check_open()
        if self._failed is not None:
            raise self._failed
        filled, size = 0, min(len(buffer), READ_TURN_BYTES)
        try:
            while filled < size:
                count = self._socket.recv_into(buffer[filled:size])
                if count == 0:
                    break
                filled += count
                if self._blocks and not self._socket.pending():
                    break
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            # Treat it as the end of the stream: frames have lengths, so an end without close_notify
            # cannot hide lost bytes.
            return filled
        except ssl.SSLWantReadError:
            if not filled:
                raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.wants_write = True
            if not filled:
                raise BlockingIOError from None
        except OSError as error:
            if not filled:
                raise
            self._failed = error
        return filled

    def write(self, parts: Sequence[Buffer], more: bool = False) -> int:
        self._check_open()
        if self._unsent is None:
            self._unsent = _first_bytes(parts)
        return self._send()

    def _send(self) -> int:
        unsent = self._unsent
        assert unsent is not None
        try:
            self._socket.send(unsent)
        except ssl.SSLWantWriteError:
            self.wants_write = True
            raise BlockingIOError from None
        except ssl.SSLWantReadError:
            self.wants_write = False
            raise BlockingIOError from None
        except OSError as error:
            raise self._cause(error) from None
        self._unsent, self.wants_write = None, False
        return len(unsent)

    def send_file(self, file: int, position: int, count: int) -> int:
        """Read the range into a reused buffer and send it encrypted: ``os.sendfile`` would send
        plain text."""
        self._check_open()
        if self._unsent is not None:
            return self._send()
        global _file_buffer
        if not _file_buffer:
            _file_buffer = bytearray(FILE_BYTES)
        buffer = memoryview(_file_buffer)[: min(count, FILE_BYTES)]
        found = os.preadv(file, [buffer], position)
        sent = 0
        while sent < found:
            self._unsent = buffer[sent : min(found, sent + SEND_BYTES)]
            try:
                sent += self._send()
            except BlockingIOError:
                # Copy the unsent bytes: another connection may overwrite the shared buffer.
                self._unsent = bytes(self._unsent)
                if not sent:
                    raise
                break
        return sent

    def send_all(self, part: Buffer) -> None:
        self._check_open()
        view = memoryview(part)
        try:
            for start in range(0, len(view), SEND_BYTES):
                self._socket.sendall(view[start : start + SEND_BYTES])
        except TimeoutError:
            raise
        except OSError as error:
            raise self._cause(error) from None

    def _cause(self, error: OSError) -> OSError:
        """Return the TLS alert that the peer sent before it closed the connection; if there is
        none, return ``error``."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except OSError as found:
            if "ALERT" in (getattr(found, "reason", None) or ""):
                return found
        return error

    def is_silent(self) -> bool:
        # A read also takes session tickets, which TLS 1.3 sends after the handshake.
        self.settimeout(0)
        try:
            self.read_into(memoryview(bytearray(1)))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def settimeout(self, seconds: float | None) -> None:
        self._blocks = seconds != 0
        self._socket.settimeout(seconds)

    def interrupt(self) -> None:
        # SSLSocket.shutdown drops the TLS state, and a reader in another thread would read plain
        # text.
        socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def refuse(self) -> None:
        """Close after a failed handshake, so that the peer receives the alert that names the cause.

        Unread bytes would make the kernel reset the connection, which discards the alert.
        """
        with contextlib.suppress(OSError):
            # ``socket.socket.recv`` reads the raw socket, without TLS.
            socket.socket.recv(self._socket, SEND_BYTES)
        self.close()

    @property
    def is_to_this_machine(self) -> bool:
        return has_one_address(self._socket)

    def _check_open(self) -> None:
        if self.is_handshaking:
            raise ssl.SSLError("the TLS handshake is not complete")


def _first_bytes(parts: Sequence[Buffer]) -> Buffer:
    """Return at most ``SEND_BYTES`` of the first bytes of ``parts``, without a copy if the first
    part alone has as many."""
    first = memoryview(parts[0])
    if len(parts) == 1 or len(first) >= SEND_BYTES:
        return first[:SEND_BYTES]
    joined = bytearray()
    for part in parts:
        joined += memoryview(part)[: SEND_BYTES - len(joined)]
        if len(joined) == SEND_BYTES:
            break
    return joined
