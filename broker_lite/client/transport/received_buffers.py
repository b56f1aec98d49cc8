"""A pool of buffers for bytes from sockets and files. It reuses a buffer after its last view is
released.

The first write to new memory costs more than the copy itself, and a recently used buffer is still
in the processor's cache. Arrow columns over a buffer are views of it. Any thread may use the pool.
"""

from __future__ import annotations

import threading

from broker_lite.wire.buffer_pool import BufferPool

BUFFER_BYTES_MAX = 16 << 20
"""Maximum bytes of a buffer that the pool keeps. Larger buffers are rare."""
KEPT_BYTES_MAX = 64 << 20
"""Maximum bytes of all buffers that the pool keeps. A reader, its decoder and each queued response
need one buffer."""


class SharedBufferPool:
    """A ``BufferPool`` that all threads may use."""

    def __init__(self, limit_bytes: int) -> None:
        self._memory = BufferPool(limit_bytes)
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with arbitrary content. The caller owns it until its
        last view is released."""
        if size > BUFFER_BYTES_MAX:
            return memoryview(bytearray(size))
        with self._lock:
            return self._memory.take(size)


received_buffers = SharedBufferPool(KEPT_BYTES_MAX)
"""The process's pool for responses and for bytes read from files."""
