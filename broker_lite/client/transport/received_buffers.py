"""A pool of buffers for the bytes that are read from sockets and files.

Reuse saves time: the first write to new memory costs more than the copying, and a recently used
buffer is still in the processor's cache. A buffer is reused when no memoryview or Arrow column
refers to it any more. Any thread may use the pool."""

from __future__ import annotations

import os
import threading

from broker_lite.wire.buffer_pool import BufferPool

BUFFER_BYTES_MAX = 16 << 20
"""Maximum bytes of a buffer that the pool keeps for reuse. Larger buffers are rare."""
KEPT_BYTES_MAX = 64 << 20
"""Maximum bytes of all buffers that the pool keeps for reuse.

Each thread that fetches uses a buffer for the response that it receives, one for the batches that
it decodes, and one for each response that waits to be decoded."""


class SharedBufferPool:
    """A ``BufferPool`` that all threads may use."""

    def __init__(self, limit_bytes: int) -> None:
        self._memory = BufferPool(limit_bytes)
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with arbitrary content.

        It is reused only after the caller has released all views of it."""
        if size > BUFFER_BYTES_MAX:
            return memoryview(bytearray(size))
        with self._lock:
            return self._memory.take(size)

    def forked(self) -> None:
        """Make the pool usable in a forked child, where the lock stays held if another thread held
        it at the fork."""
        self._lock = threading.Lock()


received_buffers = SharedBufferPool(KEPT_BYTES_MAX)
"""The pool of this process, for responses and for bytes read from brokers' files."""

os.register_at_fork(after_in_child=received_buffers.forked)
