"""A buffer pool for received or read bytes; a buffer is reused after its last view is released.

The first write to fresh memory costs more than the copy itself, and a recently used buffer is still
in the processor's cache. Arrow columns over a buffer keep it in use. Any thread.
"""

from __future__ import annotations

import threading

from broker_lite.wire.buffer_pool import BufferPool

BUFFER_BYTES_MAX = 16 << 20
"""Maximum bytes of a pooled buffer; larger ones are rare."""
KEPT_BYTES_MAX = 64 << 20
"""Maximum bytes of the pool. A reader, its converter and each queued answer hold one buffer."""


class SharedBufferPool:
    """A ``BufferPool`` shared by all threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._memory = BufferPool(limit_bytes)
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes with any content; the caller owns them until the last view is
        released."""
        if size > BUFFER_BYTES_MAX:
            return memoryview(bytearray(size))
        with self._lock:
            return self._memory.take(size)


received_buffers = SharedBufferPool(KEPT_BYTES_MAX)
"""The process's pool for answers and for bytes read from files."""
