"""``Descriptors``: hands out segment files as open descriptors to readers on this machine.

With an authorizer, a fetch response has a ticket in place of a file's path (``issue``). The reader
sends the ticket as a datagram to the broker's Unix socket. The broker answers with the file, opened
read-only (SCM_RIGHTS). The reader needs no permission of the file system, and may be a process of
any user: the ticket is the permission.

The socket is abstract: it has no file, whose permissions would exclude other users and which a
killed broker would leave behind. Its name is random, and readers learn it with the ticket.
Datagrams have no connections, so the broker stores nothing for a reader that is silent.

A broker that is not root hands out nothing to root. Root on the same machine could open the file
itself, but root in a container that shares the broker's network could not. With the descriptor it
could even write, because Linux would let it open the file again for writing.

A thread receives and sends; the event loop decides. On Linux before 6.16 any process can attach
descriptors to a datagram, and the kernel closes them on the receiving thread. If one is a TCP
socket with SO_LINGER, this can take minutes, which delays other readers' tickets, but no
request."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from broker_lite.security.tickets import TicketTable
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.context import Session
from broker_lite.wire import tickets as wire
from broker_lite.wire.fetch import TICKET_BYTES, FileTicket, HasFileno

PAUSE_S = 0.001
"""Seconds for which the thread that exchanges tickets for files pauses after an invalid ticket, so
that a flood of invalid tickets takes little processor time."""
DECISION_S = 1.0
"""Maximum seconds for which the thread that exchanges tickets for files waits until the event loop
has accepted or refused a ticket."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_SO_PASSRIGHTS = 83
"""A socket option of Linux 6.16 and later. While it is off, the kernel refuses datagrams that carry
descriptors. The ``socket`` module lacks the constant."""
_CREDENTIALS = struct.Struct("3i")
"""The process, user and group of a sender, which the kernel adds to a datagram (``ucred``)."""
_CREDENTIALS_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)
"""Space for the credentials of a datagram's sender only. Descriptors that a sender attaches do not
fit, so the kernel closes them."""


Ancillary = list[tuple[int, int, bytes]]


class TicketHolder(Protocol):
    """The connection on which a client received a ticket for a segment file."""

    closed: bool
    session: Session


class _Grant(NamedTuple):
    """The file for which a ticket is exchanged. The ticket's sender gets ``file`` if the connection
    ``holder`` is still open, and its session has not ended and may still read ``topic``."""

    holder: TicketHolder
    topic: str
    file: HasFileno


class Descriptors:
    """Issues tickets for segment files. A reader that sends a ticket to the Unix socket gets the
    open file descriptor.

    ``may_read`` returns whether a session may read a topic. Raises OSError if the operating system
    refuses the socket. ``issue``, ``expire`` and ``close`` run on the event loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock,
        metrics: Metrics,
        may_read: Callable[[Session, str], bool],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._may_read = may_read
        self._tickets: TicketTable[_Grant] = TicketTable()
        self._sent = metrics.counter("local_reads", "descriptor")
        self._refused = metrics.counter("local_reads", "refused")
        self._is_closed = False
        self.socket_id = secrets.token_bytes(TICKET_BYTES)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with contextlib.suppress(OSError):  # Linux before 6.16 lacks SO_PASSRIGHTS.
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
            self._socket.bind(wire.socket_name(self.socket_id))
        except OSError:
            self._socket.close()
            raise
        threading.Thread(target=self._serve, name="descriptors", daemon=True).start()

    def issue(self, holder: TicketHolder, topic: str, file: HasFileno) -> FileTicket:
        """Return a new ticket for a segment file of ``topic``. The ticket is invalid after the
        connection ``holder`` closes."""
        secret = secrets.token_bytes(TICKET_BYTES)
        grant = _Grant(holder, topic, file)
        self._tickets.issue(self._clock.monotonic_ms(), secret, holder.session.principal, grant)
        return FileTicket(secret, self.socket_id)

    async def expire(self) -> None:
        """Remove expired tickets. A ticket keeps its segment file open, even after the segment is
        deleted."""
        self._tickets.expire(self._clock.monotonic_ms())

    def close(self) -> None:
        """Remove all tickets, and end the thread that exchanges them for files. The thread closes
        the socket."""
        self._is_closed = True
        self._tickets.clear()
        self._socket.shutdown(socket.SHUT_RDWR)

    def _decide(self, secret: bytes, is_trusted: bool, decision: Future[HasFileno | None]) -> None:
        grant = None
        if is_trusted:
            grant = self._tickets.redeem(self._clock.monotonic_ms(), secret, self._is_valid)
        (self._refused if grant is None else self._sent).n += 1
        decision.set_result(None if grant is None else grant.file)

    def _is_valid(self, principal: str, grant: _Grant) -> bool:
        holder = grant.holder
        return (
            not holder.closed
            and not holder.session.is_over(self._clock.monotonic_ms())
            and holder.session.principal == principal
            and self._may_read(holder.session, grant.topic)
        )

    # Methods of the thread that exchanges readers' tickets (secrets) for open segment files.

    def _serve(self) -> None:
        with self._socket:
            while not self._is_closed:
                try:
                    is_sent = self._answer(
                        *self._socket.recvmsg(wire.MESSAGE_BYTES + 1, _CREDENTIALS_SPACE)
                    )
                except (OSError, RuntimeError):
                    # The reader has closed its socket, or the event loop is slow or has ended: no
                    # descriptor was sent.
                    is_sent = False
                if not is_sent:
                    time.sleep(PAUSE_S)

    def _answer(self, message: bytes, ancillary: Ancillary, _flags: int, sender: Any) -> bool:
        """Answer a datagram that has a ticket. Return whether the answer has the ticket's file.

        Answer only a sender whose socket has an abstract address, which Python returns as bytes. If
        the address is a path, the kernel would look it up in a file system that the sender
        chose, and could block this thread."""
        redemption = wire.decode(message)
        if redemption is None or not isinstance(sender, bytes) or not sender:
            return False
        decision: Future[HasFileno | None] = Future()
        is_trusted = os.geteuid() == 0 or not _is_root(ancillary)
        self._loop.call_soon_threadsafe(self._decide, redemption.secret, is_trusted, decision)
        file = decision.result(DECISION_S)
        if file is not None and self._send(file, redemption.wants_direct, sender):
            return True
        self._socket.sendto(wire.REFUSED, socket.MSG_DONTWAIT, sender)
        return False

    def _send(self, file: HasFileno, wants_direct: bool, sender: bytes) -> bool:
        """Send descriptors of the file. Return False if the operating system refuses: it limits the
        number of open descriptors, and of descriptors that were sent but not received."""
        descriptors: list[int] = []
        try:
            descriptors += _opened(file, wants_direct)
            rights = array.array("i", descriptors)
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            self._socket.sendmsg([wire.SENT], ancillary, socket.MSG_DONTWAIT, sender)
        except OSError:
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True


def _is_root(ancillary: Ancillary) -> bool:
    """Return whether root sent a ticket, or the kernel added no credentials. A broker that is not
    root refuses such a ticket."""
    users = [
        _CREDENTIALS.unpack(content)[1]
        for _, kind, content in ancillary
        if kind == socket.SCM_CREDENTIALS
    ]
    return users in ([], [0])


def _opened(file: HasFileno, wants_direct: bool) -> list[int]:
    """Open the file again, read-only, even if it was renamed or deleted meanwhile. With
    ``wants_direct``, also return a descriptor for direct I/O (without the page cache), if the file
    system supports it."""
    path = f"/proc/self/fd/{file.fileno()}"
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    descriptors = [os.open(path, flags)]
    if wants_direct and _DIRECT:
        with contextlib.suppress(OSError):
            descriptors.append(os.open(path, flags | _DIRECT))
    return descriptors
