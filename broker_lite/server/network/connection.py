"""One client's socket: frames in, answers out in the order of the requests. Loop thread only.

Receives straight into the frame receiver's buffer and sends with gathering writes and ``sendfile``,
on the loop's reader and writer callbacks. Up to ``requests_max`` requests of a connection are under
way at once; answers wait for the ones before them. A turn writes at most ``WRITE_TURN_BYTES``, so
one fat reader cannot starve the others. Reading stops while the connection has too many requests
unanswered or unsent, or the broker holds too many bytes (``Budget``), and goes on by itself. For a
client that does not read its answers no request is begun and no large answer is built. What is
wrong with a connection's bytes ends that connection and nothing else.
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
from broker_lite.server.network.memory_budget import Budget
from broker_lite.wire.fetch import FileRange, Part
from broker_lite.wire.frame import FrameReceiver

logger = logging.getLogger("logbus.connection")

WRITE_TURN_BYTES = 1 << 20
"""What one connection may send before the others get their turn: under 1 ms on loopback."""
GATHER_MAX = 64
"""Buffers of one sendmsg; the kernel takes 1024, but longer lists only cost Python time."""
UNSENT_BYTES_MAX = 1 << 20
"""Of answers in memory; beyond it no request of the connection is begun."""
_MORE = getattr(socket, "MSG_MORE", 0)


class Reply:
    """The place of one request's answer in its connection's order. Answer it exactly once.

    Holds the request's bytes until it is answered.
    """

    __slots__ = ("_connection", "_held_bytes", "announced", "arrived_ms", "parts")

    def __init__(self, connection: Connection, held_bytes: int, arrived_ms: int) -> None:
        self._connection = connection
        self._held_bytes = held_bytes
        self.arrived_ms = arrived_ms
        self.announced: tuple[int, Callable[[], None]] | None = None
        """Size of an answer that is not being built yet, and what builds it."""
        self.parts: Sequence[Part] | None = None

    @property
    def is_open(self) -> bool:
        """Whether anybody still waits for it."""
        return not self._connection.closed

    @property
    def session(self) -> Session:
        return self._connection.session

    def hold(self) -> None:
        """Begin no further request of the connection until ``go_on``."""
        self._connection.held = True

    def go_on(self) -> None:
        self._connection.held = False
        self._connection.resume_soon()

    def build(self, size: int, start: Callable[[], None]) -> None:
        """Call ``start``, which leads to ``answer``, once an answer of ``size`` bytes may be built:
        when its client has read nearly all answers before it, and its memory is free. Never, if
        the connection ends before."""
        self.announced = size, start
        if self._connection.closed:
            self.release()
        else:
            self._connection.build_next()

    def answer(self, parts: Sequence[Part]) -> None:
        """Send these parts when every answer before them is sent; none means no answer (acks=0)."""
        assert self.parts is None, "answered twice"
        self.parts = parts
        if self._connection.closed:
            self.release()
            return
        unsent = sum(len(part) for part in parts if not isinstance(part, FileRange))
        held, self._held_bytes = self._held_bytes, 0
        # From here on the budget counts the answer's memory instead of the request's.
        if held != unsent:
            self._connection.budget.give(held - unsent)
        self._connection.answered(self, unsent)

    def refuse(self, reason: str) -> None:
        """There is no answer that the client would understand: end the connection."""
        self.release()
        self._connection.close(reason)

    def release(self) -> None:
        """Give back the request's bytes; also when its connection ended before the answer."""
        held, self._held_bytes = self._held_bytes, 0
        if held:
            self._connection.budget.give(held)
        self._connection.built(self, 0)


Begin = Callable[[memoryview, Reply], None]
"""Starts a request. May answer at once or later; may raise a LogbusError to end the connection."""


class Connection:
    """``begin`` is called with each frame; ``ended`` once, when the connection is closed."""

    __slots__ = (
        "_announced_bytes",
        "_backlog",
        "_begin",
        "_building",
        "_built_bytes",
        "_clock",
        "_ended",
        "_fd",
        "_first_sent",
        "_flush_due",
        "_loop",
        "_out",
        "_reading",
        "_receiver",
        "_replies",
        "_requests_max",
        "_socket",
        "_unfinished_bytes",
        "_unsent_bytes",
        "_writing",
        "active_ms",
        "budget",
        "closed",
        "frame_began_ms",
        "held",
        "sent_ms",
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
        self._first_sent = 0
        """How much of the first part of ``_out`` is sent, where that is memory."""
        self._unsent_bytes = 0
        """Memory of answers that are not sent, those that wait for others before them included."""
        self._building: Reply | None = None
        self._announced_bytes = 0
        """Of the answer that is being built."""
        self._built_bytes = 0
        """What the budget counts for that answer and for those that were built and are not sent."""
        self._unfinished_bytes = 0
        self._reading = False
        self._writing = False
        self._flush_due = False
        self.budget = budget
        self.closed = False
        self.held = False
        """Whether a request must come further before the next one may begin."""
        self.session = session
        self.active_ms = clock.monotonic_ms()
        self.frame_began_ms = 0
        self.sent_ms = 0
        self.resume()

    @property
    def is_idle(self) -> bool:
        """Nothing is under way in either direction."""
        return not self._replies and not self._out

    @property
    def unread_since_ms(self) -> int:
        """When the client last read of an answer that it has not read whole; 0 if it read all."""
        return self.sent_ms if self._writing else 0

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
        if self._replies:
            self.build_next()
        may_read = self._may_begin() and self._admit()
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
        while backlog and self._may_begin():
            frame = backlog.popleft()
            reply = Reply(self, len(frame), self.active_ms)
            replies.append(reply)
            try:
                self._begin(frame, reply)
            except LogbusError as error:
                reply.refuse(error.message)
        return not self.closed

    def _may_begin(self) -> bool:
        return (
            not self.held
            and len(self._replies) < self._requests_max
            and self._unsent_bytes < UNSENT_BYTES_MAX
        )

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

    def build_next(self) -> None:
        """Start building the next answer if it is announced, all before it are built and nearly all
        sent, and the budget has its memory."""
        if not self._replies or self._unsent_bytes >= UNSENT_BYTES_MAX:
            return
        reply = self._replies[0]
        if reply.announced is None or not self.budget.may_build(self, reply.announced[0]):
            return
        self._building = reply
        (self._announced_bytes, start), reply.announced = reply.announced, None
        self._built_bytes += self._announced_bytes
        start()

    def built(self, reply: Reply, size: int) -> None:
        """The answer that was being built has ``size`` bytes."""
        if self._building is reply:
            self._building = None
            announced, self._announced_bytes = self._announced_bytes, 0
            self._count_built(self._built_bytes - announced + size)

    def _count_built(self, size: int) -> None:
        self.budget.count_answers(size - self._built_bytes)
        self._built_bytes = size

    def answered(self, reply: Reply, unsent: int) -> None:
        """A reply got its parts; it is sent at once if it is the next."""
        self._unsent_bytes += unsent
        if self._building is not None:
            self.built(reply, unsent)
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
                self._sent_all()
                return
            try:
                sent = self._send(left)
            except (BlockingIOError, InterruptedError):
                if left < WRITE_TURN_BYTES or not self._writing:
                    self.sent_ms = self._clock.monotonic_ms()
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
                self.sent_ms = self._clock.monotonic_ms()
                self._set_writing(True)
                return

    def _sent_all(self) -> None:
        """The client has taken every answer that there is: go on working for it."""
        if not self._reading:
            self.resume_soon()
        self.build_next()

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
        if retired:
            if not self._reading:
                self.resume_soon()
            self.build_next()
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
        size, flags = -self._first_sent, 0
        for part in out:
            if isinstance(part, FileRange):
                flags = _MORE
                break
            if size >= limit or len(buffers) == GATHER_MAX:
                break
            buffers.append(part)
            size += len(part)
        lengths = [len(buffer) for buffer in buffers]
        if self._first_sent:
            buffers[0] = memoryview(buffers[0])[self._first_sent :]
        sent = self._socket.sendmsg(buffers, (), flags)
        # A part is held, and counts, until all of it is sent.
        left, freed = self._first_sent + sent, 0
        for length in lengths:
            if left < length:
                break
            out.popleft()
            left -= length
            freed += length
        self._first_sent = left
        self._unsent_bytes -= freed
        self.budget.give(freed)
        if self._built_bytes:
            most = self._unsent_bytes + self._announced_bytes
            self._count_built(min(self._built_bytes, most))
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
        about = f"{self.session.peer.rpartition(':')[0]} {reason}"
        logger.log(level, "%s: closed: %s", self.session.peer, reason, extra={"about": about})
        if self._reading:
            self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        self.budget.forget(self)
        self._socket.close()
        self._out.clear()
        held = self._unfinished_bytes + self._unsent_bytes + sum(map(len, self._backlog))
        self._finish()
        self._backlog.clear()
        self._count_built(self._announced_bytes)
        for reply in self._replies:
            if reply.announced is not None:
                reply.release()
        if held:
            self.budget.give(held)
        # Requests under way keep their share until they end: their bytes are still in memory.
        self._replies.clear()
        self._ended(self, reason)


def _is_empty(part: Part) -> bool:
    return part.length == 0 if isinstance(part, FileRange) else len(part) == 0
