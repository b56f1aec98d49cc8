"""One client's socket: frames in, answers out in the order of the requests. Loop thread only.

Receives straight into the frame receiver's buffer and sends with gathering writes and ``sendfile``,
on the loop's reader and writer callbacks. Up to ``requests_max`` requests of a connection are under
way at once; answers wait for the ones before them. A turn writes at most ``WRITE_TURN_BYTES``, so
one fat reader cannot starve the others. Reading stops while the connection has too many requests
unanswered or unsent, or the broker holds too many produced bytes (``Budget``), and goes on by
itself. What is wrong with a connection's bytes ends that connection and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from broker_lite.errors import LogbusError
from broker_lite.server.clock import Clock
from broker_lite.server.network.context import Session
from broker_lite.wire.fetch import FileRange, Part
from broker_lite.wire.frame import FrameReceiver

logger = logging.getLogger("logbus.connection")

WRITE_TURN_BYTES = 1 << 20
"""What one connection may send before the others get their turn: under 1 ms on loopback."""
GATHER_MAX = 64
"""Buffers of one sendmsg; the kernel takes 1024, but longer lists only cost Python time."""
_MORE = getattr(socket, "MSG_MORE", 0)


class Budget:
    """Produced bytes in memory, of all connections together.

    A frame under way is admitted as a whole before its body is received, so whatever was admitted
    can always be finished: a full budget never blocks itself.
    """

    __slots__ = ("_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[Connection] = deque()

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes may be taken; one frame always may when nothing is held."""
        return self.used_bytes == 0 or self.used_bytes + size <= self.limit_bytes

    def take(self, size: int) -> None:
        self.used_bytes += size

    def give(self, size: int) -> None:
        """Return what was taken; connections that waited for room read on."""
        self.used_bytes -= size
        while self._waiting and self.used_bytes < self.limit_bytes:
            self._waiting.popleft().resume_soon()

    def wait(self, connection: Connection) -> None:
        if connection not in self._waiting:
            self._waiting.append(connection)

    def forget(self, connection: Connection) -> None:
        if connection in self._waiting:
            self._waiting.remove(connection)


class Reply:
    """The place of one request's answer in its connection's order. Answer it exactly once."""

    __slots__ = ("_connection", "_held_bytes", "arrived_ms", "parts")

    def __init__(self, connection: Connection, held_bytes: int, arrived_ms: int) -> None:
        self._connection = connection
        self._held_bytes = held_bytes
        self.arrived_ms = arrived_ms
        self.parts: Sequence[Part] | None = None

    @property
    def is_open(self) -> bool:
        """Whether anybody still waits for it."""
        return not self._connection.closed

    @property
    def session(self) -> Session:
        return self._connection.session

    def answer(self, parts: Sequence[Part]) -> None:
        """Send these parts when every answer before them is sent; none means no answer (acks=0)."""
        assert self.parts is None, "answered twice"
        self.parts = parts
        self.release()
        self._connection.answered(self)

    def refuse(self, reason: str) -> None:
        """There is no answer that the client would understand: end the connection."""
        self.release()
        self._connection.close(reason)

    def release(self) -> None:
        """Give back the request's bytes; also when its connection ended before the answer."""
        held, self._held_bytes = self._held_bytes, 0
        if held:
            self._connection.budget.give(held)


Begin = Callable[[memoryview, Reply], None]
"""Starts a request. May answer at once or later; may raise a LogbusError to end the connection."""


class Connection:
    """``begin`` is called with each frame; ``ended`` once, when the connection is closed."""

    __slots__ = (
        "_admitted_bytes",
        "_backlog",
        "_begin",
        "_clock",
        "_ended",
        "_fd",
        "_flush_due",
        "_loop",
        "_out",
        "_reading",
        "_receiver",
        "_replies",
        "_requests_max",
        "_socket",
        "_writing",
        "active_ms",
        "budget",
        "closed",
        "frame_began_ms",
        "session",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        session: Session,
        *,
        receiver: FrameReceiver,
        budget: Budget,
        clock: Clock,
        requests_max: int,
        begin: Begin,
        ended: Callable[[Connection, str], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._fd = sock.fileno()
        self._receiver = receiver
        self._clock = clock
        self._requests_max = requests_max
        self._begin = begin
        self._ended = ended
        self._replies: deque[Reply] = deque()
        self._backlog: deque[memoryview] = deque()
        self._out: deque[Part] = deque()
        self._admitted_bytes = 0
        self._reading = False
        self._writing = False
        self._flush_due = False
        self.budget = budget
        self.closed = False
        self.session = session
        self.active_ms = clock.monotonic_ms()
        self.frame_began_ms = 0
        self.resume()

    @property
    def is_idle(self) -> bool:
        """Nothing is under way in either direction."""
        return not self._replies and not self._out

    # Reading.

    def _readable(self) -> None:
        try:
            count = self._socket.recv_into(self._receiver.buffer())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receive: {error.strerror or error}", quiet=True)
            return
        if count == 0:
            cut = "" if self._receiver.is_between_frames else "in the middle of a request"
            self.close(f"the client ended the connection {cut}".strip(), quiet=not cut)
            return
        self.active_ms = self._clock.monotonic_ms()
        try:
            frames = self._receiver.received(count)
        except LogbusError as error:
            self.close(error.message)
            return
        if frames:
            self.frame_began_ms = 0
            self._take(frames)
        if self._receiver.is_between_frames:
            self.frame_began_ms = 0
        elif self.frame_began_ms == 0:
            self.frame_began_ms = self.active_ms
        if not self.closed:
            self.resume()

    def _take(self, frames: list[memoryview]) -> None:
        for frame in frames:
            if self._admitted_bytes:
                self._admitted_bytes = 0
            else:
                self.budget.take(len(frame))
        self._backlog.extend(frames)

    def resume(self) -> None:
        """Start what may start of the requests that wait, then read on if there is room."""
        if not self._start_backlog():
            return
        may_read = len(self._replies) < self._requests_max and self._admit()
        if may_read is not self._reading:
            self._reading = may_read
            # A client's time for the rest of a request runs only while it is read.
            is_cut = may_read and not self._receiver.is_between_frames
            self.frame_began_ms = self._clock.monotonic_ms() if is_cut else 0
            if may_read:
                self._loop.add_reader(self._fd, self._readable)
            else:
                self._loop.remove_reader(self._fd)

    def _start_backlog(self) -> bool:
        """False if the connection is or gets closed."""
        backlog, replies = self._backlog, self._replies
        while backlog and len(replies) < self._requests_max:
            frame = backlog.popleft()
            reply = Reply(self, len(frame), self.active_ms)
            replies.append(reply)
            try:
                self._begin(frame, reply)
            except LogbusError as error:
                reply.refuse(error.message)
        return not self.closed

    def resume_soon(self) -> None:
        """``resume`` in the loop's next turn: whoever makes room is in the middle of its own."""
        self._loop.call_soon(self.resume)

    def _admit(self) -> bool:
        """Whether what comes next may be received; if not, the budget calls ``resume`` later."""
        pending = self._receiver.pending_bytes
        if pending and not self._admitted_bytes:
            if not self.budget.has_room(pending):
                self.budget.wait(self)
                return False
            self.budget.take(pending)
            self._admitted_bytes = pending
        elif not pending and not self.budget.has_room(0):
            self.budget.wait(self)
            return False
        return True

    # Writing.

    def answered(self, reply: Reply) -> None:
        """A reply got its parts; it is sent at once if it is the next."""
        if self.closed or self._flush_due or self._replies[0] is not reply:
            return
        # One flush for all answers of this turn of the loop, in one system call.
        self._flush_due = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self.closed or self._writing:
            return
        self._write()

    def _write(self) -> None:
        left = WRITE_TURN_BYTES
        while True:
            if not self._out and not self._fill():
                self._set_writing(False)
                return
            try:
                sent = self._send(left)
            except (BlockingIOError, InterruptedError):
                self._set_writing(True)
                return
            except OSError as error:
                gone = error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
                self.close(f"send: {error.strerror or error}", quiet=gone)
                return
            if sent == 0:
                self.close("a log file ended before the range that was to be sent")
                return
            left -= sent
            if left <= 0:
                self._set_writing(True)
                return

    def _fill(self) -> bool:
        """Move the parts of answers that are next into the out queue; False if there are none."""
        out, replies = self._out, self._replies
        retired = False
        while replies and len(out) < GATHER_MAX:
            parts = replies[0].parts
            if parts is None:
                break
            replies.popleft()
            retired = True
            out.extend(part for part in parts if not _is_empty(part))
        if retired and not self._reading:
            self.resume_soon()
        return bool(out)

    def _send(self, limit: int) -> int:
        """One system call for what is first in the out queue; bytes sent."""
        out = self._out
        first = out[0]
        if isinstance(first, FileRange):
            count = min(first.length, limit)
            sent = os.sendfile(self._fd, first.file.fileno(), first.position, count)
            if sent == first.length:
                out.popleft()
            elif sent:
                out[0] = FileRange(first.file, first.position + sent, first.length - sent)
            return sent
        buffers: list[bytes | bytearray | memoryview] = []
        size, flags = 0, 0
        for part in out:
            if isinstance(part, FileRange):
                flags = _MORE
                break
            if size >= limit or len(buffers) == GATHER_MAX:
                break
            buffers.append(part)
            size += len(part)
        sent = self._socket.sendmsg(buffers, (), flags)
        if sent == size:
            for _ in buffers:
                out.popleft()
            return sent
        left = sent
        for buffer in buffers:
            out.popleft()
            if left < len(buffer):
                out.appendleft(memoryview(buffer)[left:])
                break
            left -= len(buffer)
        return sent

    def _set_writing(self, writing: bool) -> None:
        if writing is self._writing:
            return
        self._writing = writing
        if writing:
            self._loop.add_writer(self._fd, self._write)
        else:
            self._loop.remove_writer(self._fd)

    def close(self, reason: str, *, quiet: bool = False) -> None:
        """End the connection now; ``quiet`` where nothing is wrong with that."""
        if self.closed:
            return
        self.closed = True
        level = logging.DEBUG if quiet else logging.WARNING
        logger.log(level, "%s: closed: %s", self.session.peer, reason)
        if self._reading:
            self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        self.budget.forget(self)
        self._socket.close()
        self._out.clear()
        held = self._admitted_bytes + sum(map(len, self._backlog))
        self._backlog.clear()
        if held:
            self.budget.give(held)
        # Requests under way keep their share until they end: their bytes are still in memory.
        self._replies.clear()
        self._ended(self, reason)


def _is_empty(part: Part) -> bool:
    return part.length == 0 if isinstance(part, FileRange) else len(part) == 0
