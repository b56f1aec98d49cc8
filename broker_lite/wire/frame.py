"""Frames out of a stream of bytes, without doing any I/O.

A connection asks ``buffer()`` for where to receive, receives there, and tells ``received(n)``; that
returns the frames completed, each a writable view over memory of its own (so a batch may be
stamped in place and outlive the receiver). Whole small frames are cut out of a receive buffer; a
frame that has only begun to arrive gets memory of its exact size at once (``allocate``), and the
rest of it is received straight into that. A wrong length raises ProtocolError, and ends the
receiver's use.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.errors import ProtocolError
from broker_lite.wire.primitives import I32

SCRATCH_BYTES = 64 * 1024
"""One receive call's worth of small frames; larger frames bypass it after their first part."""

PREFIX_BYTES = 4


def own_memory(size: int) -> memoryview:
    """Memory that nothing else uses and that goes with its last view."""
    return memoryview(bytearray(size))


class FrameReceiver:
    """Cuts one connection's bytes into frames of at most ``max_bytes`` (length prefix excluded).

    ``max_bytes`` may be changed at any time, so a connection can begin with a small limit and get
    the full one once it has proved who it is. ``scratch``, where small frames arrive, may be shared
    by all receivers of one thread that call ``received`` right after filling ``buffer()``.
    ``allocate`` gives writable memory of a size, with any content.
    """

    __slots__ = ("_allocate", "_filled", "_frame", "_prefix", "_scratch", "max_bytes")

    def __init__(
        self,
        max_bytes: int,
        *,
        scratch: bytearray | None = None,
        allocate: Callable[[int], memoryview] = own_memory,
    ) -> None:
        self.max_bytes = max_bytes
        self._allocate = allocate
        self._scratch = memoryview(bytearray(SCRATCH_BYTES) if scratch is None else scratch)
        self._prefix = b""
        self._frame: memoryview | None = None
        self._filled = 0

    @property
    def pending_bytes(self) -> int:
        """Memory taken for a frame that has not arrived whole; 0 between frames."""
        return 0 if self._frame is None else len(self._frame)

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here without cutting a frame in two."""
        return self._frame is None and not self._prefix

    def buffer(self) -> memoryview:
        """Where to receive next; never empty. Ask again before every receive."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._scratch

    def received(self, count: int) -> list[memoryview]:
        """Take note of ``count`` bytes in ``buffer()``; the frames that they complete."""
        if self._frame is not None:
            self._filled += count
            if self._filled < len(self._frame):
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
                raise ProtocolError(f"a frame of {size} bytes; at most {self.max_bytes} are taken")
            position += PREFIX_BYTES
            if size <= end - position:
                frames.append(memoryview(bytearray(data[position : position + size])))
                position += size
                continue
            frame = self._frame = self._allocate(size)
            self._filled = end - position
            frame[: self._filled] = data[position:end]
            return frames
        self._prefix = bytes(data[position:end])
        return frames
