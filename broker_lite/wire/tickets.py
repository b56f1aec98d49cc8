"""Encode and decode the datagrams with which a reader exchanges a ticket for an open segment file.

A fetch response has the ticket, a secret (``fetch.FileTicket``). The reader sends it to the
broker's Unix socket. The answer has one byte, and the file's descriptors beside it (SCM_RIGHTS):
the first reads through the page cache, the second, if the reader asked for it, with direct I/O."""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker_lite.wire.fetch import TICKET_BYTES

FLAG_DIRECT = 1
"""With this flag, the reader asks for a second descriptor of the segment file, opened with
O_DIRECT."""
DESCRIPTORS_MAX = 2
"""Maximum number of descriptors in the answer to a ticket."""
SENT, REFUSED = b"\1", b"\0"
"""The byte of an answer to a ticket, with and without descriptors."""
_MESSAGE = struct.Struct(f">{TICKET_BYTES}sB")
MESSAGE_BYTES = _MESSAGE.size
"""Bytes of the datagram that asks for a ticket's file."""


class Redemption(NamedTuple):
    """A ticket's secret, as a reader sends it, and whether the reader asks for a descriptor for
    direct I/O."""

    secret: bytes
    wants_direct: bool


def socket_name(socket_id: bytes) -> bytes:
    """Return the address of a broker's socket, in Linux's abstract namespace.

    A broker sends readers only the id. The fixed prefix keeps a false broker from making a reader
    send a datagram to another program's socket."""
    return b"\0logbus-" + socket_id.hex().encode()


def encode(redemption: Redemption) -> bytes:
    """Encode the datagram with which a reader sends a ticket."""
    return _MESSAGE.pack(redemption.secret, FLAG_DIRECT if redemption.wants_direct else 0)


def decode(message: bytes) -> Redemption | None:
    """Return the content of a received datagram; None if its length is wrong."""
    if len(message) != MESSAGE_BYTES:
        return None
    secret, flags = _MESSAGE.unpack(message)
    return Redemption(secret, bool(flags & FLAG_DIRECT))
