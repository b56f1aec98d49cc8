"""Which offsets of a log need no check and no warming before they are sent. Pure; loop thread.

A batch's CRC is checked when it is appended, and what was checked lies in the page cache until the
kernel evicts it. For ``TRUST_MS`` after its append, or after a read thread checked it, a range is
therefore sent as it is; after that the broker no longer assumes that the pages are the ones that
were checked, and a reader that does not check CRCs itself has the range read and checked again.
What that leaves open is damage on the disk within those seconds to pages evicted and read again
within them. ``rows_from`` says from which offset on there is no batch of columns.
"""

from __future__ import annotations

from collections import deque

TRUST_MS = 60_000
"""Long enough that readers at the end of a log, and groups that read together, share one check."""
MARK_MS = 1_000
"""Appends are remembered by the second."""
RANGES_MAX = 64
"""Checked ranges remembered per log."""


class Trust:
    """What is known of one log in this process; nothing that was there at the start is trusted."""

    __slots__ = ("_left_ms", "_marks", "_ranges", "rows_from")

    def __init__(self, log_end_offset: int) -> None:
        self.rows_from = log_end_offset
        self._left_ms = -TRUST_MS
        self._marks: deque[tuple[int, int]] = deque([(0, log_end_offset)])
        """(time, log end then): everything from that offset on was appended since that time."""
        self._ranges: deque[tuple[int, int, int]] = deque(maxlen=RANGES_MAX)
        """(checked at, start, end)"""

    def appending(self, now_ms: int, log_end_offset: int) -> None:
        """The log is about to grow beyond ``log_end_offset``. ``now_ms`` is monotonic."""
        marks = self._marks
        if now_ms - marks[-1][0] >= MARK_MS:
            marks.append((now_ms, log_end_offset))
            while len(marks) > 1 and marks[1][0] <= now_ms - TRUST_MS:
                marks.popleft()

    def leaving_memory(self, now_ms: int) -> None:
        """What is about to be appended will not stay in the page cache."""
        self._left_ms = now_ms

    def has_columns(self, next_offset: int) -> None:
        """A batch of columns that ends there is in the log."""
        if next_offset > self.rows_from:
            self.rows_from = next_offset

    def checked(self, now_ms: int, start: int, end: int) -> None:
        """Every batch of [start, end) was read and its CRC was right."""
        if self._ranges and self._ranges[-1][2] == start and now_ms - self._ranges[-1][0] < MARK_MS:
            checked_ms, first, _ = self._ranges.pop()
            self._ranges.append((checked_ms, first, end))
        else:
            self._ranges.append((now_ms, start, end))

    def truncated(self, offset: int) -> None:
        """Nothing from ``offset`` on is what it was."""
        self._ranges.clear()
        self._marks = deque([(0, offset)])
        self.rows_from = min(self.rows_from, offset)

    def is_recent(self, now_ms: int, start: int) -> bool:
        """Whether all from ``start`` on was appended, checked, within the trusted time, and has not
        left memory at once."""
        since = now_ms - TRUST_MS
        return self._left_ms <= since and any(
            at_ms > since and start >= offset for at_ms, offset in self._marks
        )

    def is_checked(self, now_ms: int, start: int, end: int) -> bool:
        """Whether [start, end) may be sent to a reader that does not check."""
        if self.is_recent(now_ms, start):
            return True
        since = now_ms - TRUST_MS
        return any(
            at_ms > since and first <= start and end <= last for at_ms, first, last in self._ranges
        )
