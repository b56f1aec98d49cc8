"""``Copy``: the state of one partition that is copied from the source to the target.

A value of the mirror's thread, without I/O.
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

    ``source_id`` and ``target_id`` are topic ids. ``position`` runs ahead of the written offset.
    ``unsaved`` holds runs that are not stored yet; ``is_dirty`` marks any state that is not stored.
    """

    tp: TopicPartition
    source_id: str
    target_id: str
    known: OffsetMap
    position: FetchPosition = field(init=False)
    """The next fetch of the source."""
    unsaved: list[Run] = field(default_factory=list)
    refused_since_ms: float = 0.0
    """Monotonic milliseconds since when the source has refused the next fetch; 0 if it has not."""
    is_dirty: bool = True
    is_cut: bool = False
    """Whether the stored position covers records that the source has lost."""
    copied: int = 0
    """Records that this mirror wrote."""
    already: int = 0
    """Records found at the target after the stored position, which a killed mirror wrote."""
    foreign: int = 0
    """Records at the target that did not come from the source."""
    aged_out: int = 0
    """Source offsets that retention deleted before they were copied."""

    def __post_init__(self) -> None:
        self.position = FetchPosition(self.tp, self.source_id, policy=KAFKA_LOG)

    def lost(self, source_end: int, epoch: int) -> None:
        """Fetch again from ``source_end``, because the source lost the records from there on.
        ``epoch`` is the leader epoch of the record before ``source_end`` (-1: unknown)."""
        self.known.cut_source(source_end)
        self.unsaved = [run for run in self.unsaved if run.source < source_end]
        self.is_dirty = self.is_cut = True
        self.position.seek(source_end, epoch)

    def wrote(self, piece: RewrittenBatch, offset: int) -> int:
        """Record that a batch was written at ``offset`` of the target. Return the number of foreign
        records before it."""
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
