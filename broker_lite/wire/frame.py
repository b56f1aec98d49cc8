"""Cut a stream of received bytes into frames, without I/O. A frame is one request or response; its
length, 4 bytes, comes before it.

A connection receives bytes into ``buffer()`` and then calls ``received(n)``, which returns the
completed frames. Each frame is a writable view over its own memory, so it stays valid without the
receiver, and the broker can write offsets into its batches. Small frames that arrive whole are
copied out of a receive buffer. An incomplete frame gets memory of its own (``allocate``), into
which the rest of the frame is received directly.

A frame of a trusted peer gets memory of its declared size at once. For any other peer, the memory
grows with the received bytes: the connection calls ``grow``. A wrong length raises ProtocolError,
after which the receiver must not be used."""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.errors import ProtocolError
from broker_lite.wire.primitives import I32

SCRATCH_BYTES = 64 * 1024
"""Bytes of a receiver's own buffer, which receives small frames and the first part of a large
frame. The rest of a large frame goes directly into the frame's own memory."""

PREFIX_BYTES = 4
"""Bytes of the length before each frame."""
FIRST_BYTES = 4 * 1024
"""Minimum bytes of memory that an incomplete frame gets first, if its memory grows with the
received bytes."""
GROWTH = 64
"""Factor by which ``grow`` enlarges a frame's memory. With 64, a frame of up to 4 MiB is copied
once, at 64 KiB. With 16, a frame of 1 MiB was copied twice, which cost the broker 17 % of its
time."""

TLS_STARTS = (b"\x16\x03", b"\x15\x03")
"""First bytes of a TLS handshake and of a TLS alert. As a frame's length, they exceed 335 MB, so no
valid frame begins with them."""
HTTP_REQUESTS = (
    b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ",
)  # fmt: skip
"""First bytes of an HTTP request, and of the preface of HTTP/2. As a frame's length, they exceed
1.1 GB, so no valid frame begins with them."""
HTTP_ANSWERS = (b"HTTP", b"<!DO", b"<!do", b"<HTM", b"<htm")
"""First bytes of a web server's answer, which may be a page without HTTP headers. As a frame's
length, they exceed 1 GB, so no valid frame begins with them."""


def own_memory(size: int) -> memoryview:
    """Return a new buffer of ``size`` bytes."""
    return memoryview(bytearray(size))


class FrameReceiver:
    """Cuts the received bytes of one connection into frames of at most ``max_bytes``, not counting
    the length before each frame.

    The connection may change ``max_bytes`` at any time: a broker sets a low limit before a client's
    login and raises it afterwards. ``scratch`` is the receive buffer for small frames. All
    receivers of a thread may share it, if each calls ``received`` right after it has filled
    ``buffer()``. ``allocate`` returns writable memory of a given size with undefined content. With
    ``grows``, the memory of an incomplete frame grows with the received bytes. The connection then
    checks ``growth_bytes`` before each ``buffer()``, and calls ``grow`` if it is not 0."""

    __slots__ = (
        "_allocate",
        "_filled",
        "_frame",
        "_grows",
        "_next_scratch",
        "_prefix",
        "_scratch",
        "_size",
        "max_bytes",
    )

    def __init__(
        self,
        max_bytes: int,
        *,
        scratch: bytearray | None = None,
        allocate: Callable[[int], memoryview] = own_memory,
        grows: bool = False,
    ) -> None:
        self.max_bytes = max_bytes
        self._allocate = allocate
        self._grows = grows
        self._scratch = memoryview(bytearray(SCRATCH_BYTES) if scratch is None else scratch)
        self._next_scratch = self._scratch
        self._prefix = b""
        self._frame: memoryview | None = None
        """Memory of the incomplete frame, or None between frames."""
        self._filled = self._size = 0
        """Received bytes of the incomplete frame, and its declared length."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of memory that the incomplete frame occupies; 0 if no frame is incomplete."""
        return 0 if self._frame is None else len(self._frame)

    @property
    def growth_bytes(self) -> int:
        """Bytes by which the memory of the incomplete frame must grow before the next receive; 0 if
        it still has space."""
        if self._frame is None or self._filled < len(self._frame):
            return 0
        return min(self._size, GROWTH * self._filled) - self._filled

    def grow(self) -> None:
        """Give the incomplete frame ``growth_bytes`` more bytes of memory."""
        assert self._frame is not None
        larger = self._allocate(self._filled + self.growth_bytes)
        larger[: self._filled] = self._frame
        self._frame = larger

    @property
    def is_between_frames(self) -> bool:
        """Whether the received bytes end with a complete frame."""
        return self._frame is None and not self._prefix

    def buffer(self) -> memoryview:
        """Return the buffer into which the connection receives next. It is never empty. Call this
        before every receive."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._next_scratch

    def received(self, count: int) -> list[memoryview]:
        """Record that the connection received ``count`` bytes into ``buffer()``. Return the frames
        that are now complete."""
        if self._frame is not None:
            self._filled += count
            if self._filled < self._size:
                return []
            frame, self._frame = self._frame, None
            return [frame]
        data: memoryview | bytes = self._scratch[:count]
        if self._prefix:
            data = self._prefix + bytes(data)
            self._prefix = b""
        return self._cut(data)

    def _cut(self, data: memoryview | bytes) -> list[memoryview]:
        frames: list[memoryview] = []
        position, end = 0, len(data)
        while end - position >= PREFIX_BYTES:
            size = I32.unpack_from(data, position)[0]
            if size < 0 or size > self.max_bytes:
                start = bytes(data[position : position + PREFIX_BYTES])
                raise ProtocolError(_foreign(start) or _wrong_length(size, self.max_bytes))
            position += PREFIX_BYTES
            if size <= end - position:
                frames.append(memoryview(bytearray(data[position : position + size])))
                position += size
                continue
            filled = end - position
            first = min(size, max(filled, FIRST_BYTES)) if self._grows else size
            frame = self._frame = self._allocate(first)
            frame[:filled] = data[position:end]
            self._filled, self._size = filled, size
            # After a large frame, receive into a small part of the scratch buffer: if the next
            # frame is large, too, only this part is copied into that frame's own memory.
            is_large = size > len(self._scratch)
            self._next_scratch = self._scratch[:SCRATCH_BYTES] if is_large else self._scratch
            return frames
        self._prefix = bytes(data[position:end])
        return frames


def _wrong_length(size: int, max_bytes: int) -> str:
    return f"the peer declares a frame of {size} bytes; 0 to {max_bytes} are allowed"


def _foreign(start: bytes) -> str:
    """Return an error message if the bytes at the start of a frame belong to another protocol (TLS
    or HTTP), otherwise ""."""
    if start[:2] in TLS_STARTS:
        return (
            "the peer speaks TLS, but this connection does not; set security.protocol to the "
            "protocol of the listener, SSL or PLAINTEXT"
        )
    if start in HTTP_REQUESTS:
        return (
            "the peer sent an HTTP request to a port of Kafka's protocol. Metrics and the console "
            "have ports of their own: metrics.port, and the port of logbus console"
        )
    if start in HTTP_ANSWERS:
        return (
            "the peer answered as a web server, not as a broker; give the address of a broker's "
            "listener, not of its metrics or of the console, in bootstrap.servers"
        )
    return ""
