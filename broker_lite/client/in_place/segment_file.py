"""``SegmentFile``: a segment file of a broker on this machine, open for reading.

The reader opens the file by its path. A broker with an authorizer sends a ticket, not the path. A
ticket permits reading the file: the reader sends it as a datagram to the broker's Unix socket, and
receives an open descriptor.
Every error raised is an OSError."""

from __future__ import annotations

import array
import errno
import os
import socket
import stat

from broker_lite.client.in_place.disk_parts import DIRECT
from broker_lite.wire import tickets
from broker_lite.wire.fetch import FileTicket, StoredRange
from broker_lite.wire.tickets import DESCRIPTORS_MAX, Redemption

ANSWER_S = 1.0
"""Maximum seconds for which a reader waits until a broker sends it a file descriptor.

The reader's thread is blocked meanwhile."""
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class SegmentFile:
    """A segment file, open for reading. ``stored`` is the part of a fetch response that names it.

    ``fd`` reads through the page cache. With ``may_pass_cache``, the caller may use direct I/O, too
    (``open_direct``). Raises OSError if the file cannot be opened, or was replaced: its device or
    inode differs from the broker's answer."""

    def __init__(self, stored: StoredRange, *, may_pass_cache: bool) -> None:
        self._stored = stored
        self._direct_fd = -1
        if stored.ticket is None:
            self.fd = _checked(stored, _open(stored.path))
            return
        received = _redeem(stored.ticket, wants_direct=may_pass_cache)
        try:
            for fd in received:
                _check(stored, fd)
        except OSError:
            _close(received)
            raise
        self.fd, *direct = received
        if direct:
            (self._direct_fd,) = direct

    def open_direct(self) -> int:
        """Return a new descriptor for direct I/O, which the caller closes. Raise OSError if the
        file system does not support direct I/O, or the file was removed."""
        if self._stored.ticket is None:
            return _checked(self._stored, _open(self._stored.path, DIRECT))
        # The broker sent this descriptor: the reader may lack the permission to open the file
        # itself.
        return os.dup(self._direct_fd)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        fds, self.fd, self._direct_fd = (self.fd, self._direct_fd), -1, -1
        _close([fd for fd in fds if fd >= 0])


def _open(path: str, how: int = 0) -> int:
    return os.open(path, how | os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _checked(stored: StoredRange, fd: int) -> int:
    try:
        _check(stored, fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check(stored: StoredRange, fd: int) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (
        stored.device,
        stored.inode,
    ):
        raise FileNotFoundError(errno.ENOENT, "this is another file by now", stored.path)


def _redeem(ticket: FileTicket, *, wants_direct: bool) -> list[int]:
    """Send a ticket (permission to read a file) to its broker; return the file descriptor
    received, and a second for direct I/O if sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(ANSWER_S)
        # Connect first: a connected socket accepts messages only from its peer. Then bind, so that
        # Linux chooses a name to which the peer answers.
        sock.connect(tickets.socket_name(ticket.socket_id))
        sock.bind("")
        sock.send(tickets.encode(Redemption(ticket.secret, wants_direct)))
        space = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
        _, ancillary, _, _ = sock.recvmsg(len(tickets.SENT), space, _CLOEXEC)
    received = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    if not received:
        raise PermissionError(errno.EACCES, "the broker handed out no descriptor for a ticket")
    return list(received)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
