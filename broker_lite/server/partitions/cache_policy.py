"""Decide whether appended batches stay in the page cache. Pure; loop thread only.

Most records are read while they are new, so appends normally stay in the page cache. Appends
without readers only evict pages that others read, and on virtual machines with overcommitted memory
their pages cost more than disk reads. Bulk loads and followers without readers therefore drop their
pages once they are on disk; later readers use the disk. Small batches stay, because the next append
would read half a page back.
"""

from __future__ import annotations

READERS_MS = 10 * 60_000
"""Milliseconds since the last read in which a log counts as read; queries may pause between
batches."""
LARGE_BYTES = 256 << 10
"""Appends smaller than this many bytes always stay in the page cache."""


class CachePolicy:
    """The read activity of one log, and the bytes appended since its last read.

    ``limit_bytes`` bytes stay in memory for a future reader; -1 keeps everything.
    """

    __slots__ = ("_limit_bytes", "_read_ms", "_unread_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._read_ms = -READERS_MS
        self._unread_bytes = 0

    def note_read(self, now_ms: int) -> None:
        """Record a read at any offset of the log. ``now_ms`` is monotonic time."""
        self._read_ms = now_ms
        self._unread_bytes = 0

    def keeps(self, now_ms: int, size: int) -> bool:
        """Return whether the next ``size`` appended bytes stay in memory. ``now_ms`` is
        monotonic time."""
        self._unread_bytes += size
        return (
            size < LARGE_BYTES
            or not 0 <= self._limit_bytes < self._unread_bytes
            or now_ms - self._read_ms < READERS_MS
        )
