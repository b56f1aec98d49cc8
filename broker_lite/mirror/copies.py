"""``Copy``: one partition on its way from the source to the target, and what is known of it.

A value of the mirror's thread; it asks and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_lite.client.consuming.lineage import Lineage
from broker_lite.client.received import Walked
from broker_lite.mirror.offset_map import OffsetMap, Run
from broker_lite.mirror.rewrite import Piece
from broker_lite.model import TopicPartition


@dataclass(slots=True)
class Copy:
    """``source_id`` and ``target_id`` are of its topics. ``fetch_from`` runs ahead of what is
    written; ``unsaved`` are runs that are not noted yet, and ``is_dirty``: something is not."""

    where: TopicPartition
    source_id: str
    target_id: str
    known: OffsetMap
    lineage: Lineage = field(default_factory=Lineage)
    """Of what was fetched up to ``fetch_from``."""
    fetch_from: int = 0
    unsaved: list[Run] = field(default_factory=list)
    refused_since_ms: float = 0.0
    """Since when the source has not given what is next, by the monotonic clock; 0: it does."""
    is_dirty: bool = True
    is_cut: bool = False
    """What was noted last is of records that the source has lost."""
    copied: int = 0
    """Records that this mirror wrote."""
    already: int = 0
    """Records that were found written behind what was noted."""
    foreign: int = 0
    """Records at the target that are not of the source."""
    aged_out: int = 0
    """Offsets that the source did not have any more when their turn came."""

    def fetched(self, walked: Walked) -> None:
        """The next fetch goes on behind it."""
        if walked.batches:
            self.lineage.read(walked.batches, self.fetch_from, walked.leader_epoch)
        self.fetch_from = walked.next_offset

    def lost(self, source_end: int, epoch: int) -> None:
        """What was copied from ``source_end`` on is not at the source any more; what it has there
        instead is fetched. ``epoch``: of the record before (-1: not known)."""
        self.known.cut_source(source_end)
        self.unsaved = [run for run in self.unsaved if run.source < source_end]
        self.is_dirty = self.is_cut = True
        self.lineage.begin(source_end, epoch)
        self.fetch_from = source_end

    def wrote(self, piece: Piece, offset: int) -> int:
        """Take in a piece whose first record is at ``offset`` of the target; how many records of
        somebody else stand before it."""
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
        """The source has nothing more to copy below ``next_offset``."""
        if next_offset > self.known.source_next:
            self.known.passed(next_offset)
            self.is_dirty = True
