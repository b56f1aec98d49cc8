"""``TlsTransport``: the implementation of ``Transport`` with TLS.

``ssl.SSLObject`` encrypts and decrypts in memory; this module moves the encrypted bytes between two
``ssl.MemoryBIO`` and the socket. An ``ssl.SSLSocket`` would make two system calls for each TLS
record, and librdkafka's records are small (3 KB). Four properties of OpenSSL and Python shape this
module:

- One ``SSLObject.read`` returns at most one record (16 KiB). ``read_into`` repeats it. A selector
  does not report the socket for bytes that were received but not returned (``pending``).
- ``SSLObject.write`` encrypts all bytes and never blocks. ``write`` encrypts at most 64 KiB at a
  time and encrypts no more until they are sent, so that the encrypted bytes of one connection stay
  below 65 KiB.
- A read may leave bytes to send, such as an alert. The next receive or write sends them first.
- OpenSSL does not shrink the memory of a BIO, so one receive takes at most ``RECEIVE_BYTES``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence

from broker_lite.net.transport import Buffer, has_one_address

SEND_BYTES = 64 << 10
"""Maximum bytes of one send, four TLS records."""
RECEIVE_BYTES = 48 << 10
"""Maximum encrypted bytes of one receive. OpenSSL allocates a third more for them."""
READ_TURN_BYTES = 256 << 10
"""Maximum bytes that one ``read_into`` returns, so that a peer which sends fast does not starve the
other connections of the event loop."""
READ_TURN_RECORDS = 128
"""Maximum TLS records that one ``read_into`` decrypts. A peer may send records of one byte; without
this limit, 64 KiB of them held up the event loop for 400 ms."""
HANDSHAKE_BYTES = 8 << 10
"""Maximum encrypted bytes that one ``handshake`` of a non-blocking socket receives.

Without this limit, a ClientHello of 128 KiB in records of one byte held up the event loop for 150
ms."""
FILE_BYTES = 256 << 10
"""Maximum bytes of one read of ``send_file`` from a file."""

_file_buffer = bytearray(0)
_received = threading.local()
"""The receive buffer of each thread, in the attribute ``buffer``. All connections of a thread share
it, because ``ssl.MemoryBIO`` copies the bytes from it."""


class TlsTransport:
    """A TLS connection over a connected socket, which it owns and closes."""

    __slots__ = (
        "_blocks",
        "_encrypted",
        "_failed",
        "_incoming",
        "_outgoing",
        "_sending_bytes",
        "_socket",
        "_tls",
        "_until_s",
        "is_handshaking",
    )

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.is_handshaking = True
        self._encrypted: Buffer = b""
        """Encrypted bytes that the socket did not accept yet; they are sent before the newer ones
        in ``_outgoing``."""
        self._sending_bytes = 0
        """Number of plain bytes that ``write`` or ``send_file`` encrypted but could not send
        completely. The next call sends the rest and returns this number."""
        self._failed: OSError | None = None
        """An error that occurred when the last ``read_into`` had already received bytes; the next
        call raises it."""
        self._blocks = False
        self._until_s: float | None = None
        """Monotonic time at which blocking receives time out; None without a timeout."""
        self.settimeout(sock.gettimeout())

    def handshake(self) -> None:
        has_received = False
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._send_encrypted()
                if has_received and not self._blocks:
                    raise BlockingIOError(errno.EAGAIN, "the handshake continues later") from None
                self._receive(HANDSHAKE_BYTES)
                has_received = True
            except OSError:
                self._send_alert()
                raise
        self._send_encrypted()
        self.is_handshaking = False

    @property
    def subject(self) -> bytes:
        return self._tls.getpeercert(binary_form=True) or b""

    @property
    def pending(self) -> int:
        return 1 if self._failed is not None else self._incoming.pending + self._tls.pending()

    @property
    def wants_write(self) -> bool:
        # A TLS alert alone is no reason to wait until the socket is writable: the next write sends
        # it.
        return bool(self._encrypted) and (self.is_handshaking or self._sending_bytes > 0)

    def read_into(self, buffer: memoryview) -> int:
        self._check_open()
        if self._failed is not None:
            raise self._failed
        tls, incoming = self._tls, self._incoming
        # With a buffer, ``read`` returns an int, the count of bytes; typeshed says ``bytes``.
        read: Callable[[int, memoryview], int] = tls.read  # type: ignore[assignment]
        filled, size, records = 0, min(len(buffer), READ_TURN_BYTES), 0
        has_more = False  # Whether the socket may have more bytes (see ``_receive``).
        try:
            while filled < size and records < READ_TURN_RECORDS:
                if not incoming.pending and not tls.pending():
                    if filled and not has_more:
                        break
                    has_more = self._receive()
                try:
                    count = read(size, buffer[filled:size])
                except ssl.SSLWantReadError:
                    continue
                if count == 0:
                    break
                filled += count
                records += 1
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError, ConnectionResetError):
            # A missing close_notify or a reset counts as the end of the stream. Frames have
            # lengths, so such an end cannot hide lost bytes. A reset is usual when a client closes
            # before it has read its session tickets.
            return filled
        except BlockingIOError:
            if not filled:
                raise
        except OSError as error:
            self._send_alert()
            if not filled:
                raise
            self._failed = error
        return filled

    def _receive(self, bytes_max: int = RECEIVE_BYTES) -> bool:
        """Receive at most ``bytes_max`` encrypted bytes from the socket, once. Return whether the
        caller should receive again at once, because the socket may have more."""
        if self._outgoing.pending:
            self._send_alert()
            if self._outgoing.pending > SEND_BYTES:
                raise OSError(errno.ENOBUFS, "the peer does not read the alerts that it causes")
        if self._until_s is not None:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left_s)
        try:
            buffer = _received.buffer
        except AttributeError:
            buffer = _received.buffer = memoryview(bytearray(RECEIVE_BYTES))
        count = self._socket.recv_into(buffer, bytes_max)
        if count:
            self._incoming.write(buffer[:count])
        else:
            self._incoming.write_eof()
        return count == bytes_max and not self._blocks

    def write(self, parts: Sequence[Buffer], more: bool = False) -> int:
        self._check_open()
        if not self._sending_bytes:
            self._sending_bytes = self._tls.write(_first_bytes(parts))
        return self._send()

    def _send(self) -> int:
        """Send all encrypted bytes that wait to be sent. Return the number of plain bytes of the
        last ``write`` or ``send_file``."""
        try:
            self._send_encrypted()
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            raise self._cause(error) from None
        sent, self._sending_bytes = self._sending_bytes, 0
        return sent

    def _send_encrypted(self) -> None:
        while self._encrypted or self._outgoing.pending:
            if not self._encrypted:
                self._encrypted = self._outgoing.read()
            sent = self._socket.send(self._encrypted)
            self._encrypted = memoryview(self._encrypted)[sent:]

    def _send_alert(self) -> None:
        """Send the bytes that TLS produced during reads, such as an alert, as far as the socket
        accepts them. Ignore errors."""
        with contextlib.suppress(OSError):
            self._send_encrypted()

    def send_file(self, file: int, position: int, count: int) -> int:
        """Read the range of the file into a reused buffer, and send it encrypted. ``os.sendfile``
        would send it as plain text."""
        self._check_open()
        if self._sending_bytes:
            return self._send()
        global _file_buffer
        if not _file_buffer:
            _file_buffer = bytearray(FILE_BYTES)
        buffer = memoryview(_file_buffer)[: min(count, FILE_BYTES)]
        size = os.preadv(file, [buffer], position)
        sent = 0
        while sent < size:
            self._sending_bytes = self._tls.write(buffer[sent : min(size, sent + SEND_BYTES)])
            try:
                sent += self._send()
            except BlockingIOError:
                if not sent:
                    raise
                break
        return sent

    def send_all(self, part: Buffer) -> None:
        self._check_open()
        view = memoryview(part)
        for start in range(0, len(view), SEND_BYTES):
            self._tls.write(view[start : start + SEND_BYTES])
            self._send()

    def _cause(self, error: OSError) -> OSError:
        """If the peer sent a TLS alert before it closed the connection, return the alert as an
        error, because it names the cause. Otherwise return ``error``."""
        self.settimeout(0)
        with contextlib.suppress(OSError):
            self._receive()
        try:
            self._tls.read(1)
        except OSError as found:
            if "ALERT" in (getattr(found, "reason", None) or ""):
                return found
        return error

    def is_silent(self) -> bool:
        # Try to read: bytes that have arrived may be only session tickets, which TLS 1.3 sends
        # after the handshake and which the read removes.
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
        self._until_s = time.monotonic() + seconds if seconds else None
        self._socket.settimeout(seconds)

    def interrupt(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def refuse(self) -> None:
        """Close the connection after a failed handshake, so that the peer receives the alert which
        names the cause.

        Reads all received bytes first: if some were unread, the kernel would reset the connection
        and discard the alert."""
        with contextlib.suppress(OSError):
            self._socket.recv(SEND_BYTES)
        self.close()

    @property
    def is_to_this_machine(self) -> bool:
        return has_one_address(self._socket)

    def _check_open(self) -> None:
        if self.is_handshaking:
            raise ssl.SSLError("the TLS handshake is not complete")


def _first_bytes(parts: Sequence[Buffer]) -> Buffer:
    """Return the first bytes of ``parts``, at most ``SEND_BYTES``. If the first part alone has that
    many, they are not copied."""
    first = memoryview(parts[0])
    if len(parts) == 1 or len(first) >= SEND_BYTES:
        return first[:SEND_BYTES]
    joined = bytearray()
    for part in parts:
        joined += memoryview(part)[: SEND_BYTES - len(joined)]
        if len(joined) == SEND_BYTES:
            break
    return joined
