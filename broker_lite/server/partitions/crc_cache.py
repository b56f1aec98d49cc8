"""Track which offset ranges of a log the broker can send without checking CRCs again. Does no I/O.

The broker checks the CRC of each batch at the append. For ``TRUST_MS`` after the append or a later
check, it sends the bytes without another check. After that time, the kernel may have evicted the
pages and read them from disk again, and the disk may have damaged them. A read thread then checks
the range, for clients that do not check CRCs themselves. One risk remains: pages that are evicted,
damaged on disk and read again within ``TRUST_MS``."""

from __future__ import annotations

from collections import deque

TRUST_MS = 60_000
"""Milliseconds for which the result of a CRC check is trusted.

Consumers at the log end read within this time, so the check at the append serves them too."""
MARK_MS = 1_000
"""Minimum milliseconds between two append times that are recorded for ``is_recent``."""
RANGES_MAX = 64
"""Maximum number of offset ranges with checked CRCs that are remembered for a log."""


class CrcCache:
    """The recent appends and the offset ranges with checked CRCs of one log.

    Records from before the broker's start count as unchecked. From the offset ``rows_from`` on, the
    log has no batch in logbus's column format, which only some clients can read."""

    __slots__ = ("_left_ms", "_marks", "_ranges", "rows_from")

    def __init__(self, log_end_offset: int) -> None:
        self.rows_from = log_end_offset
        self._left_ms = -TRUST_MS
        self._marks: deque[tuple[int, int]] = deque([(0, log_end_offset)])
        """Start times of appends (monotonic, ms), each with the log end offset at that time."""
        self._ranges: deque[tuple[int, int, int]] = deque(maxlen=RANGES_MAX)
        """Checked ranges: monotonic time (ms) of the check, start offset, and exclusive end
        offset."""

    def appending(self, now_ms: int, log_end_offset: int) -> None:
        """Record that an append, which checks its CRCs, begins at ``log_end_offset``. ``now_ms``
        is monotonic time."""
        marks = self._marks
        if now_ms - marks[-1][0] >= MARK_MS:
            marks.append((now_ms, log_end_offset))
            while len(marks) > 1 and marks[1][0] <= now_ms - TRUST_MS:
                marks.popleft()

    def evicting(self, now_ms: int) -> None:
        """Record that the next append will drop its pages from the page cache."""
        self._left_ms = now_ms

    def has_columns(self, next_offset: int) -> None:
        """Record that the log has a batch in logbus's column format that ends before
        ``next_offset``."""
        if next_offset > self.rows_from:
            self.rows_from = next_offset

    def checked(self, now_ms: int, start: int, end: int) -> None:
        """Record that all batches of the offsets [start, end) were read and their CRCs were
        correct."""
        if self._ranges and self._ranges[-1][2] == start and now_ms - self._ranges[-1][0] < MARK_MS:
            checked_ms, first, _ = self._ranges.pop()
            self._ranges.append((checked_ms, first, end))
        else:
            self._ranges.append((now_ms, start, end))

    def truncated(self, offset: int) -> None:
        """Forget all recorded checks and appends: the log was truncated to ``offset``."""
        self._ranges.clear()
        self._marks = deque([(0, offset)])
        self.rows_from = min(self.rows_from, offset)

    def is_recent(self, now_ms: int, start: int) -> bool:
        """Return whether the records from ``start`` on are younger than ``TRUST_MS`` and still in
        the page cache."""
        since = now_ms - TRUST_MS
        return self._left_ms <= since and any(
            at_ms > since and start >= offset for at_ms, offset in self._marks
        )

    def is_checked(self, now_ms: int, start: int, end: int) -> bool:
        """Return whether the offsets [start, end) need no further CRC check before they are sent to
        clients that do not check CRCs themselves."""
        if self.is_recent(now_ms, start):
            return True
        since = now_ms - TRUST_MS
        return any(
            at_ms > since and first <= start and end <= last for at_ms, first, last in self._ranges
        )
