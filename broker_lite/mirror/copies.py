"""``Copy``: the state of one partition that is copied from the source to the target.

The module does no I/O. Only the mirror's thread uses a ``Copy``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_lite.client.fetch.position import KAFKA_LOG, FetchPosition
from broker_lite.mirror.offset_map import OffsetMap, Run
from broker_lite.mirror.rewrite import RewrittenBatch
from broker_lite.model import TopicPartition


@dataclass(slots=True)
class Copy:
    """The copy of one partition.

    ``source_id`` and ``target_id`` are topic ids. ``unsaved`` has the runs of the offset map that
    are not stored yet. ``is_dirty`` says whether any state is not stored yet.
    """

    tp: TopicPartition
    source_id: str
    target_id: str
    known: OffsetMap
    position: FetchPosition = field(init=False)
    """The next offset to fetch from the source. The mirror may not have written the records before
    this offset yet."""
    unsaved: list[Run] = field(default_factory=list)
    refused_since_ms: float = 0.0
    """Monotonic time (ms) since which the source refuses the next fetch. 0 while the source
    answers."""
    is_dirty: bool = True
    is_cut: bool = False
    """Whether the stored state has runs of records that the source has lost since."""
    copied: int = 0
    """Number of records that this mirror wrote."""
    already: int = 0
    """Number of records that a killed mirror wrote without storing its position."""
    foreign: int = 0
    """Number of records at the target that did not come from the source."""
    aged_out: int = 0
    """Number of source offsets that retention deleted before the mirror copied them."""

    def __post_init__(self) -> None:
        self.position = FetchPosition(self.tp, self.source_id, policy=KAFKA_LOG)

    def lost(self, source_end: int, epoch: int) -> None:
        """Fetch again from ``source_end``, because the source lost the records from that offset on.
        ``epoch`` is the leader epoch of the record before ``source_end`` (-1 if unknown)."""
        self.known.cut_source(source_end)
        self.unsaved = [run for run in self.unsaved if run.source < source_end]
        self.is_dirty = self.is_cut = True
        self.position.seek(source_end, epoch)

    def record_write(self, piece: RewrittenBatch, offset: int) -> int:
        """Record that a batch was written at ``offset`` of the target. Return the number of records
        of other producers between the batch and the mirror's last copy."""
        foreign = offset - self.known.target_next if self.known.runs else 0
        foreign = max(0, foreign)
        self.foreign += foreign
        for first, count in piece.runs:
            if self.known.add(first, offset, count):
                self.unsaved.append(self.known.runs[-1])
            offset += count
        self.copied += piece.row_count
        self.is_dirty = True
        return foreign

    def passed(self, next_offset: int) -> None:
        """Record that the source has no more records to copy below ``next_offset``."""
        if next_offset > self.known.source_next:
            self.known.passed(next_offset)
            self.is_dirty = True
