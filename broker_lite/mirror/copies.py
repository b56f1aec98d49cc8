"""The state of the partitions that a mirror copies from the source to the target cluster. No I/O.
Only the mirror's thread uses it."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_lite.client.fetch.position import KAFKA_LOG, FetchPosition
from broker_lite.errors import LogbusError
from broker_lite.mirror.log import MirrorLog
from broker_lite.mirror.offset_map import OffsetMap, Run
from broker_lite.mirror.rewrite import RewrittenBatch
from broker_lite.model import TopicPartition


@dataclass(slots=True)
class Copy:
    """The state of one partition's copy.

    ``source_id`` and ``target_id`` are the topic's ids at the source and at the target. ``known``
    maps source offsets to target offsets, in runs of consecutive offsets. ``unsaved`` has the runs
    that are not stored on the target yet, and ``is_dirty`` is True if any of the state is not
    stored."""

    tp: TopicPartition
    source_id: str
    target_id: str
    known: OffsetMap
    position: FetchPosition = field(init=False)
    """The next offset to fetch from the source. Records before it may still wait to be written to
    the target."""
    unsaved: list[Run] = field(default_factory=list)
    refused_since_ms: float = 0.0
    """The monotonic time (ms) since which all fetches of the partition have failed; 0 if the last
    one succeeded."""
    is_dirty: bool = True
    is_cut: bool = False
    """Whether the state stored on the target still contains the copies of records that the source
    has lost."""
    copied: int = 0
    """Number of records that this mirror has written."""
    already: int = 0
    """Number of records that an earlier mirror had already written when it was killed before it
    could store its position."""
    foreign: int = 0
    """Number of records in the copy that do not come from the source: another client wrote them."""
    aged_out: int = 0
    """Number of source offsets that retention deleted before the mirror could copy them."""

    def __post_init__(self) -> None:
        self.position = FetchPosition(self.tp, self.source_id, policy=KAFKA_LOG)

    def lost(self, source_end: int, epoch: int) -> None:
        """Forget the copies of the records from ``source_end`` on, which the source has lost, and
        fetch again from there. ``epoch`` is the leader epoch of the record before ``source_end``
        (-1: unknown)."""
        self.known.cut_source(source_end)
        self.unsaved = [run for run in self.unsaved if run.source < source_end]
        self.is_dirty = self.is_cut = True
        self.position.seek(source_end, epoch)

    def record_write(self, piece: RewrittenBatch, offset: int) -> int:
        """Record that a batch was written to the target, at ``offset`` there. Return how many
        records of other producers the target has between the mirror's previous batch and this
        one."""
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
        """Record that no source record before ``next_offset`` is left to copy."""
        if next_offset > self.known.source_next:
            self.known.passed(next_offset)
            self.is_dirty = True


class Copies(dict[TopicPartition, Copy]):
    """The partitions that a mirror copies."""

    def __init__(self, log: MirrorLog) -> None:
        super().__init__()
        self._log = log
        self.aside: dict[str, LogbusError] = {}
        """The topics that the mirror does not copy any more, and why."""
        self.counted: dict[TopicPartition, int] = {}
        """For each partition, the number of records that this mirror had copied when an error made
        it start again. It continues to count from this number."""

    def restart(self) -> None:
        """Forget the partitions, because the mirror starts again, but not how many records of each
        it has copied."""
        self.counted = {tp: copy.copied for tp, copy in self.items()}
        self.clear()

    def set_aside(self, topic: str, error: LogbusError) -> None:
        """Stop copying a topic because of ``error``, until the mirror is started again."""
        self.aside[topic] = error
        for tp in [tp for tp in self if tp.topic == topic]:
            del self[tp]
        self._log.write(
            f"topic {topic} is not copied any more: {error.message}. Correct this (for a recreated "
            "topic: delete the copy) and start the mirror again"
        )
