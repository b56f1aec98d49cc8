"""A pool of memory blocks for large batches and requests, which reuses freed memory.

Without a pool, Python returns freed megabytes to the operating system, and the page faults of new
ones take longer than writing the data. The pool lends a block as a memoryview. The block is free
again once no view of it exists on any thread, so callers do not return blocks. ``sweep`` removes
the free blocks that were not used since the previous sweep. Only one thread calls ``take`` and
``sweep``: a broker's event loop or a producer's sender."""

from __future__ import annotations

REUSED_FROM_BYTES = 64 << 10
"""Minimum bytes of a buffer from the pool. Python's allocator keeps and reuses smaller blocks
itself."""
STEP_BYTES = 64 << 10
"""Block sizes are multiples of this number of bytes, so that requests of similar sizes can share a
block."""
WASTE_MAX = 4
"""Maximum ratio of a block's size to the requested size."""


def _is_free(block: bytearray) -> bool:
    """Return whether a non-empty block has no view: while a view exists, ``pop`` raises
    BufferError."""
    try:
        last = block.pop()
    except BufferError:
        return False
    block.append(last)
    return True


class BufferPool:
    """A pool of writable memory blocks, which have at most ``limit_bytes`` together."""

    __slots__ = ("_blocks", "_untouched", "kept_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.kept_bytes = 0
        """Total bytes of all blocks, used or free."""
        self._blocks: list[bytearray] = []
        """Blocks in the order of their last use."""
        self._untouched = 0
        """Number of blocks, at the start of ``_blocks``, that were not used since the last
        sweep."""

    def take(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes with undefined content. The caller owns the buffer
        until the last view of it is released."""
        if size < REUSED_FROM_BYTES:
            return memoryview(bytearray(size))
        blocks = self._blocks
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            if size <= len(block) <= size * WASTE_MAX and _is_free(block):
                del blocks[place]
                self._untouched -= place < self._untouched
                blocks.append(block)
                return memoryview(block)[:size]
        block = bytearray(-(-size // STEP_BYTES) * STEP_BYTES)
        if self._evict_for(len(block)):
            blocks.append(block)
            self.kept_bytes += len(block)
        return memoryview(block)[:size]

    def sweep(self) -> int:
        """Remove the free blocks that were not used since the previous sweep. Return their
        bytes."""
        before = self.kept_bytes
        self._drop(self._untouched, 0)
        self._untouched = len(self._blocks)
        return before - self.kept_bytes

    def _evict_for(self, size: int) -> bool:
        if self.kept_bytes + size > self.limit_bytes:
            self._drop(len(self._blocks), self.limit_bytes - size)
        return self.kept_bytes + size <= self.limit_bytes

    def _drop(self, count: int, down_to_bytes: int) -> None:
        """Remove free blocks among the first ``count`` blocks, until the pool has at most
        ``down_to_bytes``."""
        blocks, place = self._blocks, 0
        for _ in range(count):
            if self.kept_bytes <= down_to_bytes:
                return
            block = blocks[place]
            if _is_free(block):
                del blocks[place]
                self._untouched -= place < self._untouched
                self.kept_bytes -= len(block)
            else:
                place += 1
