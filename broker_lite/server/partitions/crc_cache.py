"""Track the offset ranges of a log that can be sent without a CRC check. Pure; loop thread only.

A batch's CRC is checked at the append, and the checked bytes stay in the page cache until the
kernel evicts them. For ``TRUST_MS`` after an append or a check, the broker sends a range unchecked.
Later the pages may have been read from disk again. A read thread then checks the range again for
clients that do not check CRCs.

Remaining risk: pages that are evicted, damaged on disk and read again within ``TRUST_MS``.
``rows_from`` is the offset from which on the log holds no column batch.
"""

from __future__ import annotations

from collections import deque

TRUST_MS = 60_000
"""Milliseconds that a check stays valid; long enough for readers of the log end to share one
check."""
MARK_MS = 1_000
"""Resolution of append times, in milliseconds."""
RANGES_MAX = 64
"""Maximum number of checked ranges stored per log."""


class CrcCache:
    """The recent appends and checked ranges of one log; records from before the broker's start
    count as unchecked.
    """

    __slots__ = ("_left_ms", "_marks", "_ranges", "rows_from")

    def __init__(self, log_end_offset: int) -> None:
        self.rows_from = log_end_offset
        self._left_ms = -TRUST_MS
        self._marks: deque[tuple[int, int]] = deque([(0, log_end_offset)])
        """Pairs (time in ms, log end offset at that time): all later offsets were appended after
        that time.
        """
        self._ranges: deque[tuple[int, int, int]] = deque(maxlen=RANGES_MAX)
        """Triples (time of the check in ms, start offset, end offset)."""

    def appending(self, now_ms: int, log_end_offset: int) -> None:
        """Record that an append at ``log_end_offset`` starts. ``now_ms`` is monotonic time."""
        marks = self._marks
        if now_ms - marks[-1][0] >= MARK_MS:
            marks.append((now_ms, log_end_offset))
            while len(marks) > 1 and marks[1][0] <= now_ms - TRUST_MS:
                marks.popleft()

    def evicting(self, now_ms: int) -> None:
        """Record that the next append will be dropped from the page cache."""
        self._left_ms = now_ms

    def has_columns(self, next_offset: int) -> None:
        """Record that the log holds a column batch ending at ``next_offset``."""
        if next_offset > self.rows_from:
            self.rows_from = next_offset

    def checked(self, now_ms: int, start: int, end: int) -> None:
        """Record that all batches of [start, end) were read with correct CRCs."""
        if self._ranges and self._ranges[-1][2] == start and now_ms - self._ranges[-1][0] < MARK_MS:
            checked_ms, first, _ = self._ranges.pop()
            self._ranges.append((checked_ms, first, end))
        else:
            self._ranges.append((now_ms, start, end))

    def truncated(self, offset: int) -> None:
        """Drop the checks and column offsets from ``offset`` on."""
        self._ranges.clear()
        self._marks = deque([(0, offset)])
        self.rows_from = min(self.rows_from, offset)

    def is_recent(self, now_ms: int, start: int) -> bool:
        """Return whether all offsets from ``start`` on were appended within ``TRUST_MS`` and
        none was dropped from the page cache."""
        since = now_ms - TRUST_MS
        return self._left_ms <= since and any(
            at_ms > since and start >= offset for at_ms, offset in self._marks
        )

    def is_checked(self, now_ms: int, start: int, end: int) -> bool:
        """Return whether [start, end) can be sent without a check to a client that checks no
        CRCs."""
        if self.is_recent(now_ms, start):
            return True
        since = now_ms - TRUST_MS
        return any(
            at_ms > since and first <= start and end <= last for at_ms, first, last in self._ranges
        )
