"""Receive the requests of one client connection, and send the answers in the order of the requests.

Received bytes go directly into the buffer of the frame receiver. Answers consist of buffers and
ranges of files. At most ``requests_max`` requests are in flight, and an answer waits for the
answers to all earlier requests. One iteration of the event loop writes at most
``WRITE_TURN_BYTES``, so that a client with large answers cannot delay others.

The connection stops reading while too many answers are due or unsent, or while the memory budget of
all connections is used up (``Budget``). If a client does not read its answers, the connection
starts no further request and builds no large answer. Malformed bytes close this connection only."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence

from broker_lite.errors import LogbusError
from broker_lite.net.transport import Transport
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Histogram
from broker_lite.server.network.context import Session
from broker_lite.server.network.memory_budget import Budget
from broker_lite.wire.fetch import FileRange, Part
from broker_lite.wire.frame import FrameReceiver

logger = logging.getLogger("logbus.connection")

WRITE_TURN_BYTES = 1 << 20
"""Maximum bytes that a connection sends in one iteration of the event loop: under 1 ms on
loopback."""
GATHER_MAX = 64
"""Maximum number of buffers in one write. The kernel accepts 1024, but a longer list only costs
time."""
UNSENT_BYTES_MAX = 1 << 20
"""With this many bytes of unsent answers in memory, the connection starts no further request."""


class ResponseSlot:
    """The answer to one request, queued in the order of the connection's requests.

    The handler calls ``answer`` or ``refuse`` exactly once. Until then, the memory budget counts
    the request's ``held_bytes``. ``arrived_ms`` is the monotonic time of the request's arrival."""

    __slots__ = (
        "_connection",
        "_held_bytes",
        "announced",
        "arrived_ms",
        "closes",
        "duration",
        "parts",
        "waited_ms",
    )

    def __init__(self, connection: ClientConnection, held_bytes: int, arrived_ms: int) -> None:
        self._connection = connection
        self._held_bytes = held_bytes
        self.arrived_ms = arrived_ms
        self.announced: tuple[int, Callable[[], None]] | None = None
        """The size in bytes of an answer that is to be built later (``build``), and the callback
        that builds it; None without such an answer.
        """
        self.closes = ""
        """Why the connection closes after this answer; empty if it stays open."""
        self.parts: Sequence[Part] | None = None
        """The buffers and file ranges of the answer; None until ``answer`` is called."""
        self.duration: Histogram | None = None
        """The histogram of the seconds from a request's arrival to its answer, minus
        ``waited_ms``."""
        self.waited_ms = 0
        """Time in ms for which a fetch request waited for records."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is still open."""
        return not self._connection.closed

    @property
    def connection(self) -> ClientConnection:
        return self._connection

    @property
    def session(self) -> Session:
        return self._connection.session

    def hold(self) -> None:
        """Keep the connection from starting its next request until ``go_on`` is called."""
        self._connection.held = True

    def go_on(self) -> None:
        self._connection.held = False
        self._connection.resume_soon()

    def throttle(self, wait_ms: int) -> None:
        """Delay the connection's next request by ``wait_ms`` milliseconds; 0 means no delay."""
        if wait_ms:
            self._connection.mute(wait_ms)

    def build(self, size: int, start: Callable[[], None]) -> None:
        """Announce an answer of ``size`` bytes, which ``start`` is to build.

        ``start`` is called once the client has read nearly all previous answers and the budget has
        the memory; never, if the connection closes first. It passes the built answer to ``answer``,
        at once or later, or calls ``build`` again with another size."""
        self._connection.built(self, 0)
        self.announced = size, start
        if self._connection.closed:
            self.release()
        else:
            self._connection.build_next()

    def answer(self, parts: Sequence[Part]) -> None:
        """Send the answer after all previous ones. Empty ``parts``, as for acks=0, send nothing."""
        assert self.parts is None, "answered twice"
        self.parts = parts
        if self.duration is not None:
            took_ms = self._connection.clock.monotonic_ms() - self.arrived_ms - self.waited_ms
            self.duration.observe(took_ms / 1000)
        if self._connection.closed:
            self.release()
            return
        unsent = sum(len(part) for part in parts if not isinstance(part, FileRange))
        size, self._held_bytes = self._held_bytes, 0
        # From here on, the memory budget counts the answer instead of the request.
        if size != unsent:
            self._connection.budget.release(size - unsent)
        self._connection.answered(self, unsent)

    def close_after(self, reason: str) -> None:
        """Close the connection once this answer is sent, and start no further request.

        ``reason`` is for a log line."""
        self.hold()
        self.closes = reason

    def refuse(self, reason: str) -> None:
        """Close the connection, because the broker can encode no answer that the client could
        decode."""
        self.release()
        self._connection.close(reason)

    def release(self) -> None:
        """Give the request's memory back to the budget, whether or not the request was answered."""
        size, self._held_bytes = self._held_bytes, 0
        if size:
            self._connection.budget.release(size)
        self._connection.built(self, 0)


Begin = Callable[[memoryview, ResponseSlot], None]
"""Starts the request in a frame. It answers through the ``ResponseSlot``, at once or later.

It raises LogbusError to close the connection."""


class ClientConnection:
    """One client connection. ``begin`` receives each request.

    When the connection closes, ``ended`` is called once with the reason."""

    __slots__ = (
        "_announced_bytes",
        "_backlog",
        "_begin",
        "_building",
        "_built_bytes",
        "_call_soon",
        "_closes",
        "_ended",
        "_fd",
        "_first_sent",
        "_flush_due",
        "_late_frame_bytes",
        "_loop",
        "_mute",
        "_muted_until_s",
        "_out",
        "_reading",
        "_receiver",
        "_replies",
        "_requests_max",
        "_transport",
        "_unfinished_bytes",
        "_unsent_bytes",
        "_writing",
        "active_ms",
        "budget",
        "clock",
        "closed",
        "frame_began_ms",
        "held",
        "sent_ms",
        "session",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        session: Session,
        *,
        receiver: FrameReceiver,
        budget: Budget,
        clock: Clock,
        requests_max: int,
        frame_bytes_max: int = 0,
        begin: Begin,
        ended: Callable[[ClientConnection, str], None],
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._loop = loop
        self._call_soon = call_soon or loop.call_soon
        self._transport = transport
        self._fd = transport.fileno()
        self._receiver = receiver
        self.clock = clock
        self._requests_max = requests_max
        self._late_frame_bytes = frame_bytes_max if session.needs_login else 0
        """Maximum bytes of a request after the login; 0 if the client needs no login, because the
        limit of the frame receiver then does not change."""
        self._begin = begin
        self._ended = ended
        self._replies: deque[ResponseSlot] = deque()
        self._backlog: deque[memoryview] = deque()
        self._out: deque[Part] = deque()
        self._first_sent = 0
        """How many bytes of the first buffer or file range in the send queue ``_out`` are sent."""
        self._unsent_bytes = 0
        """Bytes in memory of unsent answers, including those that wait for earlier ones."""
        self._building: ResponseSlot | None = None
        self._announced_bytes = 0
        """Bytes that the memory budget reserves for the answer that is being built: the size given
        to ``ResponseSlot.build``."""
        self._built_bytes = 0
        """Bytes that the memory budget counts for answers that were announced (by
        ``ResponseSlot.build``), and are being built or not sent yet."""
        self._unfinished_bytes = 0
        self._closes = ""
        """Why the connection closes once the send queue ``_out`` is sent; empty if it stays
        open."""
        self._mute: asyncio.TimerHandle | None = None
        self._muted_until_s = 0.0
        self._reading = False
        self._writing = False
        self._flush_due = False
        self.budget = budget
        self.closed = False
        self.held = False
        """Whether a handler delays the start of the connection's next request
        (``ResponseSlot.hold``)."""
        self.session = session
        self.active_ms = clock.monotonic_ms()
        self.frame_began_ms = 0
        self.sent_ms = 0
        self.resume()

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight and no answer is unsent."""
        return not self._replies and not self._out

    @property
    def unread_since_ms(self) -> int:
        """Monotonic time (ms) at which the socket last accepted bytes, while answers wait to be
        sent because the client does not read; otherwise 0."""
        return self.sent_ms if self._writing else 0

    # Methods that receive and start requests.

    def _readable(self) -> None:
        if self.budget.is_exceeded:
            # Other connections may have used up the memory budget in this iteration of the event
            # loop. If so, ``resume`` stops reading from this one.
            self.resume()
            if not self._reading:
                return
        target = self._receiver.buffer()
        first_bytes = self.budget.first_bytes
        if len(target) > first_bytes and not self._receiver.pending_bytes:
            target = target[:first_bytes]
        try:
            count = self._transport.read_into(target)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"cannot receive: {error.strerror or error}", quiet=True)
            return
        if count == 0:
            cut = "" if self._receiver.is_between_frames else "in the middle of a request"
            self.close(f"the client ended the connection {cut}".strip(), quiet=not cut)
            return
        self.active_ms = self.clock.monotonic_ms()
        if self._late_frame_bytes and not self.session.needs_login:
            self._receiver.max_bytes, self._late_frame_bytes = self._late_frame_bytes, 0
        try:
            frames = self._receiver.received(count)
        except LogbusError as error:
            self.close(error.message)
            return
        if frames:
            self.frame_began_ms = 0
            self._enqueue(frames)
        if self._receiver.pending_bytes and not self._unfinished_bytes:
            self._count_unfinished(self._receiver.pending_bytes)
        if self._receiver.is_between_frames:
            self.frame_began_ms = 0
        elif self.frame_began_ms == 0:
            self.frame_began_ms = self.active_ms
        if not self.closed:
            self.resume()
            if self._transport.pending:
                self._read_soon()

    def _read_soon(self) -> None:
        """Read again in the next iteration of the event loop.

        The loop cannot report bytes that the TLS layer has already read from the socket."""
        if self._reading:
            self._loop.call_soon(self._read_pending)

    def _read_pending(self) -> None:
        if self._reading and not self.closed:
            self._readable()

    def _enqueue(self, frames: list[memoryview]) -> None:
        for frame in frames:
            if self._unfinished_bytes:
                self._finish()
            else:
                self.budget.charge(len(frame))
        self._backlog.extend(frames)

    def _finish(self) -> None:
        """Let the memory budget count the received frame as a complete request, no longer as a
        partial frame."""
        self.budget.finish(self, self._unfinished_bytes)
        self._unfinished_bytes = 0

    def resume(self) -> None:
        """Start received requests that a limit delayed, then read on if memory and limits allow
        it."""
        if not self._start_backlog():
            return
        if self._replies:
            self.build_next()
        may_read = self._may_receive() and self._admit()
        if may_read is not self._reading:
            self._reading = may_read
            # While the broker does not read from this connection, the timeout for the rest of a
            # request does not run.
            is_cut = may_read and not self._receiver.is_between_frames
            self.frame_began_ms = self.clock.monotonic_ms() if is_cut else 0
            if may_read:
                self._loop.add_reader(self._fd, self._readable)
                if self._transport.pending:
                    self._read_soon()
            else:
                self._loop.remove_reader(self._fd)

    def _start_backlog(self) -> bool:
        """Start the received requests that wait, as far as throttling and the limits of the
        connection allow. Return whether the connection is open."""
        backlog, replies = self._backlog, self._replies
        while backlog and self._may_begin():
            frame = backlog.popleft()
            reply = ResponseSlot(self, len(frame), self.active_ms)
            replies.append(reply)
            try:
                self._begin(frame, reply)
            except LogbusError as error:
                reply.refuse(error.message)
        return not self.closed

    def mute(self, duration_ms: int) -> None:
        """Start no request for ``duration_ms`` milliseconds, to throttle the client (KIP-219).

        Meanwhile read at most the rest of a partial request. An earlier call with a later end
        remains in effect."""
        until_s = self._loop.time() + duration_ms / 1000
        if self.closed or (self._mute is not None and self._muted_until_s >= until_s):
            return
        if self._mute is not None:
            self._mute.cancel()
        self._muted_until_s = until_s
        self._mute = self._loop.call_at(until_s, self._unmute)
        self.resume_soon()

    def _unmute(self) -> None:
        self._mute = None
        self.resume()

    def _may_begin(self) -> bool:
        return self._mute is None and self._has_capacity()

    def _may_receive(self) -> bool:
        # Let a muted (throttled) connection receive the rest of a partial request. Otherwise that
        # request would keep its memory without a timeout, which runs only while the connection
        # reads.
        is_cut = not self._receiver.is_between_frames and not self._backlog
        return (self._mute is None or is_cut) and self._has_capacity()

    def _has_capacity(self) -> bool:
        return (
            not self.held
            and len(self._replies) < self._requests_max
            and self._unsent_bytes < UNSENT_BYTES_MAX
        )

    def resume_soon(self) -> None:
        """Call ``resume`` in the next iteration of the event loop. By then the memory budget, which
        calls this, is consistent again."""
        self._loop.call_soon(self.resume)

    def _admit(self) -> bool:
        """Return whether the memory budget allows the connection to receive more bytes.

        If not, the budget calls ``resume_soon`` when it has the memory."""
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
        self.budget.charge_unfinished(size)

    # Methods that build and send answers.

    def build_next(self) -> None:
        """Start to build the next answer if its handler has called ``ResponseSlot.build``.

        Do nothing unless all earlier answers are built, less than ``UNSENT_BYTES_MAX`` of their
        bytes are unsent, and the budget has memory for this answer."""
        if not self._replies or self._unsent_bytes >= UNSENT_BYTES_MAX:
            return
        reply = self._replies[0]
        if reply.announced is None or not self.budget.may_build(self, reply.announced[0]):
            return
        self._building = reply
        (self._announced_bytes, start), reply.announced = reply.announced, None
        self._built_bytes += self._announced_bytes
        start()

    def built(self, reply: ResponseSlot, size: int) -> None:
        """Let the budget count the ``size`` bytes of the built answer ``reply`` instead of the
        memory that it reserved (``Budget.may_build``).

        Does nothing if ``reply`` is not being built."""
        if self._building is reply:
            self._building = None
            announced, self._announced_bytes = self._announced_bytes, 0
            self._count_built(self._built_bytes - announced + size)

    def _count_built(self, size: int) -> None:
        self.budget.count_answers(size - self._built_bytes)
        self._built_bytes = size

    def answered(self, reply: ResponseSlot, unsent: int) -> None:
        """Handle a request's complete answer, with ``unsent`` bytes in memory, not in files.

        Send the answer in this iteration of the event loop if all earlier requests are answered."""
        self._unsent_bytes += unsent
        if self._building is not None:
            self.built(reply, unsent)
        if self.closed or self._flush_due or self._replies[0] is not reply:
            return
        # One system call at the end of this iteration of the event loop sends all answers of the
        # connection.
        self._flush_due = True
        self._call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self.closed or self._writing:
            return
        self._write()

    def _write(self) -> None:
        left = WRITE_TURN_BYTES
        while True:
            if not self._out and not self._fill():
                if self._closes:
                    self.close(self._closes, quiet=True)
                    return
                self._set_writing(False)
                self._sent_all()
                return
            try:
                sent = self._send(left)
            except (BlockingIOError, InterruptedError):
                if left < WRITE_TURN_BYTES or not self._writing:
                    self.sent_ms = self.clock.monotonic_ms()
                self._set_writing(True)
                return
            except OSError as error:
                gone = error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
                self.close(f"cannot send: {error.strerror or error}", quiet=gone)
                return
            if sent == 0:
                self.close("a log file ended before the end of the requested range")
                return
            left -= sent
            if left <= 0:
                self.sent_ms = self.clock.monotonic_ms()
                self._set_writing(True)
                return

    def _sent_all(self) -> None:
        """After all bytes are sent, start the waiting requests, and build the next answer if its
        handler has called ``ResponseSlot.build``."""
        if not self._reading:
            self.resume_soon()
        self.build_next()

    def _fill(self) -> bool:
        """Move the buffers and file ranges of the next answers to the send queue ``_out``. Return
        whether ``_out`` is not empty."""
        out, replies = self._out, self._replies
        retired = False
        while replies and len(out) < GATHER_MAX and not self._closes:
            parts = replies[0].parts
            if parts is None:
                break
            self._closes = replies.popleft().closes
            retired = True
            out.extend(part for part in parts if not _is_empty(part))
        if retired:
            if not self._reading:
                self.resume_soon()
            self.build_next()
        return bool(out)

    def _send(self, limit: int) -> int:
        """Send buffers, or a file range, of the send queue ``_out`` with one system call. Return
        the number of bytes sent."""
        out = self._out
        first = out[0]
        if isinstance(first, FileRange):
            count = min(first.length, limit)
            sent = self._transport.send_file(first.file.fileno(), first.position, count)
            if sent == first.length:
                out.popleft()
            elif sent:
                out[0] = FileRange(first.file, first.position + sent, first.length - sent)
            return sent
        buffers: list[bytes | bytearray | memoryview] = []
        size, more = -self._first_sent, False
        for part in out:
            if isinstance(part, FileRange):
                more = True
                break
            if size >= limit or len(buffers) == GATHER_MAX:
                break
            buffers.append(part)
            size += len(part)
        lengths = [len(buffer) for buffer in buffers]
        if self._first_sent:
            buffers[0] = memoryview(buffers[0])[self._first_sent :]
        sent = self._transport.write(buffers, more)
        # The budget counts a part of an answer until all its bytes are sent and its memory is free.
        left, freed = self._first_sent + sent, 0
        for length in lengths:
            if left < length:
                break
            out.popleft()
            left -= length
            freed += length
        self._first_sent = left
        self._unsent_bytes -= freed
        self.budget.release(freed)
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
        """Close the connection, and log the reason: at level WARNING, or DEBUG with ``quiet``."""
        if self.closed:
            return
        self.closed = True
        level = logging.DEBUG if quiet else logging.WARNING
        about = f"{self.session.peer.rpartition(':')[0]} {reason}"
        extra = {"about": about}
        logger.log(level, "%s: connection closed: %s", self.session.peer, reason, extra=extra)
        if self._mute is not None:
            self._mute.cancel()
        if self._reading:
            self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        self.budget.forget(self)
        self._transport.close()
        self._out.clear()
        size = self._unfinished_bytes + self._unsent_bytes + sum(map(len, self._backlog))
        self._finish()
        self._backlog.clear()
        self._count_built(self._announced_bytes)
        for reply in self._replies:
            if reply.announced is not None:
                reply.release()
        if size:
            self.budget.release(size)
        # The budget counts requests in flight until their handlers answer, because their bytes are
        # still in memory.
        self._replies.clear()
        self._ended(self, reason)


def _is_empty(part: Part) -> bool:
    return part.length == 0 if isinstance(part, FileRange) else len(part) == 0
