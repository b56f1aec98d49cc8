"""What a replica knows of its own log: the disk's answers, in the order in which they came.

Shared by the roles, so that what was asked for in one role is accounted for in the next. The log
itself is the shell's.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_lite.model import NO_EPOCH, PartitionKey, ReplicaId
from broker_lite.replication.events import Truncated


@dataclass(slots=True)
class LocalLog:
    """``high_watermark`` <= ``flushed_end`` <= ``log_end_offset``, all exclusive."""

    key: PartitionKey
    replica: ReplicaId
    log_end_offset: int
    flushed_end: int
    high_watermark: int
    last_epoch: int = NO_EPOCH
    """The newest epoch in the epoch file."""
    writes_under_way: int = 0
    """Append, AppendFetched, Truncate and StartAt that are not answered yet."""
    damaged_from: int | None = None
    """A flushed batch here is not what was written; nothing from here on can be vouched for."""
    starting_at: int | None = None
    """Where the StartAt that is under way begins."""

    @property
    def is_settled(self) -> bool:
        """Nothing is being written, and everything written is on disk."""
        return self.writes_under_way == 0 and self.flushed_end == self.log_end_offset

    def written(self, next_offset: int) -> None:
        """A write was answered; the log's end is at least ``next_offset``."""
        self.writes_under_way -= 1
        if next_offset > self.log_end_offset:
            self.log_end_offset = next_offset

    def synced(self, flushed_end: int) -> bool:
        """Whether more is on disk than was known."""
        if flushed_end <= self.flushed_end:
            return False
        self.flushed_end = flushed_end
        if flushed_end > self.log_end_offset:
            self.log_end_offset = flushed_end
        return True

    def truncated(self, event: Truncated) -> None:
        """The disk has cut the log, or begun it anew at another offset."""
        self.writes_under_way -= 1
        self.log_end_offset = event.log_end_offset
        self.flushed_end = event.flushed_end
        self.last_epoch = event.last_epoch
        if event.flushed_end < self.high_watermark or event.log_end_offset == self.starting_at:
            # What the leader deleted was committed, so a log that begins behind it starts there.
            self.high_watermark = event.flushed_end
        self.starting_at = None
        if self.damaged_from is not None and event.log_end_offset <= self.damaged_from:
            self.damaged_from = None
