"""Whether what is appended to a log is worth memory. Pure; loop thread.

Most of a log is read while it is new, so it stays in the page cache. Where nobody reads, that only
pushes out what others read, and on machines that are lent their memory it costs more than the disk
does: a bulk load, or a follower, then leaves memory as soon as it is on disk. Somebody who comes
later reads it from there. Small batches stay: the next append would read half a page back.
"""

from __future__ import annotations

READERS_MS = 10 * 60_000
"""Who read within this time is taken to go on: a query may pause between its batches."""
LARGE_BYTES = 256 << 10
"""What is smaller is always kept, and is not counted."""


class Readership:
    """Of one log: who reads, and how much nobody has read. ``limit_bytes``: so much stays in memory
    for a reader that may yet come; -1: everything."""

    __slots__ = ("_limit_bytes", "_read_ms", "_unread_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._read_ms = -READERS_MS
        self._unread_bytes = 0

    def came(self, now_ms: int) -> None:
        """Somebody reads, wherever in the log. ``now_ms`` is monotonic, as below."""
        self._read_ms = now_ms
        self._unread_bytes = 0

    def keeps(self, now_ms: int, size: int) -> bool:
        """Whether ``size`` more bytes, that are to be appended, are to stay in memory."""
        self._unread_bytes += size
        return (
            size < LARGE_BYTES
            or not 0 <= self._limit_bytes < self._unread_bytes
            or now_ms - self._read_ms < READERS_MS
        )
