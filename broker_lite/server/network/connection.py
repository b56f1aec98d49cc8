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
UNFINISHED_SHARE = 0.5
"""Of a budget: what frames that have not arrived whole may hold."""
_MORE = getattr(socket, "MSG_MORE", 0)


class Budget:
    """The memory of requests, of all connections together: at most the limit and one frame.

    A frame that has not arrived whole counts with the memory that it has, not with its declared
    length. Such frames share ``UNFINISHED_SHARE`` of the limit, so that they cannot keep the broker
    from reading small requests. Where that is used up, one frame at a time goes on beyond it until
    it is whole: unfinished frames that wait for each other cannot block the broker.
    """

    __slots__ = (
        "_finisher",
        "_growing",
        "_starting",
        "_unfinished_bytes",
        "limit_bytes",
        "used_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._unfinished_bytes = 0
        self._finisher: Connection | None = None
        # Connections that wait for memory: to begin another request, or for more of one begun.
        self._starting: dict[Connection, None] = {}
        self._growing: dict[Connection, int] = {}

    @property
    def is_exceeded(self) -> bool:
        return self.used_bytes > self.limit_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection is not read for want of memory."""
        return bool(self._starting or self._growing)

    def may_start(self, connection: Connection) -> bool:
        """Whether another request may be received; if not, ``resume_soon`` is called later."""
        if self.is_exceeded:
            self._starting[connection] = None
            return False
        return True

    def may_grow(self, connection: Connection, size: int) -> bool:
        """Whether a frame may take ``size`` more; if not, ``resume_soon`` is called later."""
        if size <= self._growth_left:
            return True
        if self._finisher is None and self._may_finish:
            self._finisher = connection
        if self._finisher is connection:
            return True
        self._growing[connection] = size
        return False

    @property
    def _growth_left(self) -> float:
        share = self.limit_bytes * UNFINISHED_SHARE
        return min(self.limit_bytes - self.used_bytes, share - self._unfinished_bytes)

    @property
    def _may_finish(self) -> bool:
        """Whether a frame may go beyond its share. Beyond the limit: only where unfinished frames
        hold all of the memory, and no request under way will give any back."""
        return not self.is_exceeded or self.used_bytes == self._unfinished_bytes

    def take(self, size: int) -> None:
        """Count the memory of a whole request."""
        self.used_bytes += size

    def take_unfinished(self, size: int) -> None:
        """Count memory of a frame that has not arrived whole."""
        self.used_bytes += size
        self._unfinished_bytes += size

    def finish(self, connection: Connection, size: int) -> None:
        """Count a frame of ``size`` bytes as a whole request from now on."""
        self._unfinished_bytes -= size
        if self._finisher is connection:
            self._finisher = None
        self._wake()

    def give(self, size: int) -> None:
        """Return what was taken; connections that waited for memory read on."""
        self.used_bytes -= size
        self._wake()

    def _wake(self) -> None:
        while self._starting and not self.is_exceeded:
            self._starting.popitem()[0].resume_soon()
        left = self._growth_left
        while self._growing:
            connection, size = next(iter(self._growing.items()))
            left -= size
            if left < 0:
                if self._finisher is not None or not self._may_finish:
                    return
                self._finisher = connection
            del self._growing[connection]
            connection.resume_soon()

    def forget(self, connection: Connection) -> None:
        """Give nothing more to a connection that is closed."""
        self._starting.pop(connection, None)
        self._growing.pop(connection, None)
        if self._finisher is connection:
            self._finisher = None
            self._wake()


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
        "_unfinished_bytes",
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
        self._unfinished_bytes = 0
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
        if self.budget.is_exceeded:
            # By what others received in this turn of the loop.
            self.resume()
            if not self._reading:
                return
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
        if self._receiver.pending_bytes and not self._unfinished_bytes:
            self._count_unfinished(self._receiver.pending_bytes)
        if self._receiver.is_between_frames:
            self.frame_began_ms = 0
        elif self.frame_began_ms == 0:
            self.frame_began_ms = self.active_ms
        if not self.closed:
            self.resume()

    def _take(self, frames: list[memoryview]) -> None:
        for frame in frames:
            if self._unfinished_bytes:
                self._finish()
            else:
                self.budget.take(len(frame))
        self._backlog.extend(frames)

    def _finish(self) -> None:
        """From here on the frame that had begun counts as a request, or is given back."""
        self.budget.finish(self, self._unfinished_bytes)
        self._unfinished_bytes = 0

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
        receiver = self._receiver
        if not receiver.pending_bytes:
            return self.budget.may_start(self)
        growth = receiver.growth_bytes
        if growth:
            if not self.budget.may_grow(self, growth):
                return False
            receiver.grow()
            self._count_unfinished(growth)
        return True

    def _count_unfinished(self, size: int) -> None:
        self._unfinished_bytes += size
        self.budget.take_unfinished(size)

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
        held = self._unfinished_bytes + sum(map(len, self._backlog))
        self._finish()
        self._backlog.clear()
        if held:
            self.budget.give(held)
        # Requests under way keep their share until they end: their bytes are still in memory.
        self._replies.clear()
        self._ended(self, reason)


def _is_empty(part: Part) -> bool:
    return part.length == 0 if isinstance(part, FileRange) else len(part) == 0
