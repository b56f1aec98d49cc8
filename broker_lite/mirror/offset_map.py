"""The map from source offsets to target offsets of one partition, as a list of runs.

The offsets of a record and its copy differ if the source has gaps (compacted records, transaction
markers, aborted records) or if the target had other records before. From a run ``(source, target)``
on, both offsets advance together, up to the next run. The module does no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Run(NamedTuple):
    """A run of copied records. The record at offset ``source`` is at ``target``, the next record at
    ``target + 1``, and so on."""

    source: int
    target: int


class OffsetMap:
    """The runs of one partition, and the end of the copied range.

    All source records before ``source_next`` are copied. ``target_next`` is the offset after the
    last copied record. Both are -1 for an empty map.
    """

    def __init__(
        self, runs: Iterable[Run] = (), source_next: int = -1, target_next: int = -1
    ) -> None:
        self.runs = sorted(set(runs))
        self.source_next = source_next
        self.target_next = target_next

    def add(self, source: int, target: int, count: int) -> bool:
        """Record that ``count`` records from offset ``source`` on were copied to ``target`` on.
        Return True if they start a new run."""
        is_new = not self.runs or self.runs[-1].target - self.runs[-1].source != target - source
        # If both logs have a gap of the same size, one run spans it. An offset in the source's gap
        # then maps to an offset in the target's gap, before the same record.
        if is_new:
            self.runs.append(Run(source, target))
        self.source_next, self.target_next = source + count, target + count
        return is_new

    def passed(self, source_next: int) -> None:
        """Record that the source has no more records to copy before ``source_next``."""
        self.source_next = max(self.source_next, source_next)

    def translate(self, source: int) -> int | None:
        """Return the target offset for a reader whose next source offset is ``source``. Return None
        if the records before ``source`` are not all copied.

        An offset without a record maps to the next copied record.
        """
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
        """Drop the runs from ``source_end`` on, because the source has other records there now. The
        copies of the former records stay on the target. Copies of the new records are appended
        after them."""
        while self.runs and self.runs[-1].source >= source_end:
            self.runs.pop()
        self.source_next = min(self.source_next, source_end)

    def cut(self, target_end: int) -> None:
        """Drop the runs from ``target_end`` on, because the target lost these records."""
        if target_end >= self.target_next:
            return
        while self.runs and self.runs[-1].target >= target_end:
            self.source_next = self.runs.pop().source
        if self.runs:
            run = self.runs[-1]
            self.source_next = min(self.source_next, run.source + target_end - run.target)
        self.target_next = target_end
