"""Memory of large batches and requests, used again when nothing looks at it any more.

Megabytes that are allocated and freed go back to the system each time, which then gives out
untouched pages one by one: that takes longer than filling them. A block is free when nobody has a
view of it any more, on any thread and whatever made of it, so that nobody has to give anything
back. What was not taken between two sweeps is given up. One thread takes and sweeps: a broker's
loop for what it receives, a producer's for what it encodes. (The client's
``transport.rooms``: all threads.)
"""

from __future__ import annotations

REUSED_FROM_BYTES = 64 << 10
"""Below this the allocator keeps what is freed anyway."""
STEP_BYTES = 64 << 10
"""Blocks are multiples of it, so that requests of nearly one size share them."""
WASTE_MAX = 4
"""A block is not used for what is smaller than it by this factor."""


def _is_free(block: bytearray) -> bool:
    """Whether nobody has a view of a block that is not empty: Python refuses to resize it while
    somebody does. Never the count of references, of which interpreters keep fewer and fewer."""
    try:
        last = block.pop()
    except BufferError:
        return False
    block.append(last)
    return True


class ReusedMemory:
    """``take`` gives writable memory of a size; at most ``limit_bytes`` are kept for that."""

    __slots__ = ("_blocks", "_untouched", "kept_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.kept_bytes = 0
        """Of all blocks, in use or free."""
        self._blocks: list[bytearray] = []
        """The one that was taken last is the last: the first are the longest unused."""
        self._untouched = 0
        """So many of the first were not taken since the last sweep."""

    def take(self, size: int) -> memoryview:
        """Memory of ``size`` bytes with any content, the caller's until its last view is gone."""
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
        if self._make_room(len(block)):
            blocks.append(block)
            self.kept_bytes += len(block)
        return memoryview(block)[:size]

    def sweep(self) -> None:
        """Give up the free blocks that were not taken since the sweep before."""
        self._drop(self._untouched, 0)
        self._untouched = len(self._blocks)

    def _make_room(self, size: int) -> bool:
        if self.kept_bytes + size > self.limit_bytes:
            self._drop(len(self._blocks), self.limit_bytes - size)
        return self.kept_bytes + size <= self.limit_bytes

    def _drop(self, count: int, down_to_bytes: int) -> None:
        """Give up free ones of the first ``count`` until no more than so many bytes are kept."""
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
