"""Which offset of the target a source's offset became: runs within which both count alike.

Offsets of a copy differ from the source's where the source has gaps (compacted records, markers of
transactions, aborted records) or the target had records before. A run ``(source, target)`` says
that from there on both advance together, up to the next run. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Run(NamedTuple):
    """The record at ``source`` was copied to ``target``, the next to ``target + 1``, …"""

    source: int
    target: int


class OffsetMap:
    """The runs of one partition, and up to where it was copied.

    ``source_next``: everything before it was copied or holds no record; ``target_next``: the
    offset behind the last copied record. Both -1 before anything is known.
    """

    def __init__(
        self, runs: Iterable[Run] = (), source_next: int = -1, target_next: int = -1
    ) -> None:
        self.runs = sorted(set(runs))
        self.source_next = source_next
        self.target_next = target_next

    def add(self, source: int, target: int, count: int) -> bool:
        """``count`` records from ``source`` on went to ``target``…; True if a run begins there."""
        is_new = not self.runs or self.runs[-1].target - self.runs[-1].source != target - source
        # Across a gap of both logs the difference may be the same, and then one run holds both:
        # an offset within the gap then leads into the gap of the target, before the same record.
        if is_new:
            self.runs.append(Run(source, target))
        self.source_next, self.target_next = source + count, target + count
        return is_new

    def passed(self, source_next: int) -> None:
        """Nothing of the source before this is left to copy: the rest held no records."""
        self.source_next = max(self.source_next, source_next)

    def translate(self, source: int) -> int | None:
        """Where a reader goes on that would read ``source`` next; None if that is not copied yet.

        An offset that holds no record leads to the next record that was copied; one before the
        first copied record to that one.
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
        """The source holds other records from ``source_end`` on than those that were copied, which
        stay at the target: what comes in their place goes behind them."""
        while self.runs and self.runs[-1].source >= source_end:
            self.runs.pop()
        self.source_next = min(self.source_next, source_end)

    def cut(self, target_end: int) -> None:
        """The target holds nothing from ``target_end`` on any more: what it lost is not copied."""
        if target_end >= self.target_next:
            return
        while self.runs and self.runs[-1].target >= target_end:
            self.source_next = self.runs.pop().source
        if self.runs:
            run = self.runs[-1]
            self.source_next = min(self.source_next, run.source + target_end - run.target)
        self.target_next = target_end
