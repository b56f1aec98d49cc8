"""The offsets of a replica's own log, updated by each result of a disk effect.

The leader and follower roles of a replica share one ``LocalLog``: an operation that starts in one
role can complete in the next. The log itself belongs to the caller, which does the I/O."""

from __future__ import annotations

from dataclasses import dataclass

from broker_lite.model import NO_EPOCH, PartitionKey, ReplicaId
from broker_lite.replication.events import Truncated


@dataclass(slots=True)
class LocalLog:
    """The offsets after the last committed, the last flushed and the last appended record of the
    local log: ``high_watermark`` <= ``flushed_end`` <= ``log_end_offset``."""

    key: PartitionKey
    replica: ReplicaId
    log_end_offset: int
    flushed_end: int
    high_watermark: int
    last_epoch: int = NO_EPOCH
    """The newest leader epoch in the epoch file; -1 if it has none."""
    writes_in_flight: int = 0
    """Number of Append, AppendFetched, Truncate and StartAt effects that are not complete."""
    damaged_from: int | None = None
    """Offset of the first batch that became corrupt after its flush. Batches from this offset on
    are not trusted."""
    starting_at: int | None = None
    """Offset at which the log, emptied by the effect StartAt, is to begin; None otherwise."""

    @property
    def is_settled(self) -> bool:
        """Whether no write is in flight and all written bytes are on disk."""
        return self.writes_in_flight == 0 and self.flushed_end == self.log_end_offset

    def written(self, next_offset: int) -> None:
        """Set the log end offset after an append that ends at ``next_offset``. A batch that a
        producer repeated ends below the log end offset, which stays unchanged."""
        self.writes_in_flight -= 1
        if next_offset > self.log_end_offset:
            self.log_end_offset = next_offset

    def synced(self, flushed_end: int) -> bool:
        """Raise the flushed end to ``flushed_end`` after a flush. Return whether it has risen."""
        if flushed_end <= self.flushed_end:
            return False
        self.flushed_end = flushed_end
        if flushed_end > self.log_end_offset:
            self.log_end_offset = flushed_end
        return True

    def truncated(self, event: Truncated) -> None:
        """Set the offsets after a completed Truncate or StartAt."""
        self.writes_in_flight -= 1
        self.log_end_offset = event.log_end_offset
        self.flushed_end = event.flushed_end
        self.last_epoch = event.last_epoch
        if event.flushed_end < self.high_watermark or event.log_end_offset == self.starting_at:
            # A log that restarts at the leader's log start offset has that offset as its high
            # watermark: the leader deletes only committed records.
            self.high_watermark = event.flushed_end
        self.starting_at = None
        if self.damaged_from is not None and event.log_end_offset <= self.damaged_from:
            self.damaged_from = None
