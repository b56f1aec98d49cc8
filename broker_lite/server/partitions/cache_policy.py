"""Decide whether appended batches stay in the operating system's page cache, without I/O.

Consumers read most records while they are new, so appended pages normally stay. Pages that no
consumer reads would only displace pages that consumers do read. Bulk loads, and followers whose log
has no readers, therefore drop their pages once they are on disk; a later reader reads the disk.
Small batches always stay, because the next append would have to read a partly filled page back."""

from __future__ import annotations

READERS_MS = 10 * 60_000
"""Milliseconds after a read for which a log counts as having readers.

So long because queries may pause between micro-batches."""
LARGE_BYTES = 256 << 10
"""Appends of fewer bytes than this always stay in the page cache."""


class CachePolicy:
    """The page-cache policy of one log.

    An append stays cached if it is small, within ``READERS_MS`` of the last read, or in the first
    ``limit_bytes`` (-1: all) after it."""

    __slots__ = ("_limit_bytes", "_read_ms", "_unread_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._read_ms = -READERS_MS
        self._unread_bytes = 0

    def note_read(self, now_ms: int) -> None:
        """Record that a client read the log, at any offset. ``now_ms`` is monotonic time."""
        self._read_ms = now_ms
        self._unread_bytes = 0

    def keeps(self, now_ms: int, size: int) -> bool:
        """Count an append of ``size`` bytes and return whether its pages stay in the page cache.

        ``now_ms`` is monotonic time."""
        self._unread_bytes += size
        return (
            size < LARGE_BYTES
            or not 0 <= self._limit_bytes < self._unread_bytes
            or now_ms - self._read_ms < READERS_MS
        )
