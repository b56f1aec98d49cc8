"""Map the offsets of one partition at a mirror's source to those of its copy at the target.

A record and its copy have different offsets if the source has gaps (compacted records, transaction
markers, aborted records), or if the target has other records before the copy. The map is a list of
runs ``(source, target)``: the source record at offset ``source`` was copied to offset ``target``,
and from there on both offsets advance together, up to the next run. The module does no I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Run(NamedTuple):
    """The beginning of a run of copied records. The source record at offset ``source`` is at offset
    ``target`` in the copy, the record at ``source + 1`` at ``target + 1``, and so on."""

    source: int
    target: int


class OffsetMap:
    """The runs of one partition (ranges in which source and target offsets advance together), and
    how far the partition is copied.

    All source records before ``source_next`` are copied. ``target_next`` is the target offset after
    the last copy. Both are -1 if the partition has not been copied at all."""

    def __init__(
        self, runs: Iterable[Run] = (), source_next: int = -1, target_next: int = -1
    ) -> None:
        self.runs = sorted(set(runs))
        self.source_next = source_next
        self.target_next = target_next

    def add(self, source: int, target: int, count: int) -> bool:
        """Record that ``count`` records, at the source from offset ``source`` on, were copied to
        the target, from offset ``target`` on. Return True if this begins a new run: the difference
        of the two offsets has changed."""
        is_new = not self.runs or self.runs[-1].target - self.runs[-1].source != target - source
        # Both logs may have a gap of the same size before these records. The difference is then
        # unchanged, so the records continue the last run. An offset in the source's gap is
        # translated to an offset in the target's gap; a fetch from either returns the same next
        # record.
        if is_new:
            self.runs.append(Run(source, target))
        self.source_next, self.target_next = source + count, target + count
        return is_new

    def passed(self, source_next: int) -> None:
        """Record that no source record before ``source_next`` is left to copy."""
        self.source_next = max(self.source_next, source_next)

    def translate(self, source: int) -> int | None:
        """Return the target offset from which a reader continues, if it has read the source up to
        ``source`` (exclusive). Return None if the records before it are not all copied.

        If the source has no record at ``source``, the result is the offset of the next copied
        record."""
        if source > self.source_next or self.source_next < 0:
            return None
        if not self.runs:
            return max(self.target_next, 0)
        at = bisect_right(self.runs, source, key=lambda run: run.source) - 1
        if at < 0:
            return self.runs[0].target
        run = self.runs[at]
        limit = self.runs[at + 1].target if at + 1 < len(self.runs) else self.target_next
        return min(run.target + source - run.source, limit)

    def cut_source(self, source_end: int) -> None:
        """Forget the copies of source records from ``source_end`` on, because the source has lost
        these records, and uses their offsets for other records. The copies stay on the target;
        copies of the new records follow them."""
        while self.runs and self.runs[-1].source >= source_end:
            self.runs.pop()
        self.source_next = min(self.source_next, source_end)

    def cut(self, target_end: int) -> None:
        """Forget the copies at target offsets from ``target_end`` on, because the target has lost
        them."""
        if target_end >= self.target_next:
            return
        while self.runs and self.runs[-1].target >= target_end:
            self.source_next = self.runs.pop().source
        if self.runs:
            run = self.runs[-1]
            self.source_next = min(self.source_next, run.source + target_end - run.target)
        self.target_next = target_end
