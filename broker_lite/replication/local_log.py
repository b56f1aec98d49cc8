"""The offsets of a replica's own log, as the disk's answers report them in order.

The roles of a replica share one ``LocalLog``: an operation that starts in one role can complete in
the next. The shell owns the log itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_lite.model import NO_EPOCH, PartitionKey, ReplicaId
from broker_lite.replication.events import Truncated


@dataclass(slots=True)
class LocalLog:
    """Offsets of the local log: ``high_watermark`` <= ``flushed_end`` <= ``log_end_offset``.

    All three are exclusive end offsets.
    """

    key: PartitionKey
    replica: ReplicaId
    log_end_offset: int
    flushed_end: int
    high_watermark: int
    last_epoch: int = NO_EPOCH
    """The newest epoch in the epoch file."""
    writes_in_flight: int = 0
    """Number of Append, AppendFetched, Truncate and StartAt effects without an answer."""
    damaged_from: int | None = None
    """First offset of a damaged batch that was flushed, or None. The replica does not trust its log
    from this offset on."""
    starting_at: int | None = None
    """Offset of the StartAt effect in flight, or None."""

    @property
    def is_settled(self) -> bool:
        """Whether no write is in flight and all written bytes are on disk."""
        return self.writes_in_flight == 0 and self.flushed_end == self.log_end_offset

    def written(self, next_offset: int) -> None:
        """Record the answer to an append: the log ends at ``next_offset`` or later."""
        self.writes_in_flight -= 1
        if next_offset > self.log_end_offset:
            self.log_end_offset = next_offset

    def synced(self, flushed_end: int) -> bool:
        """Record a flushed end offset. Return whether it is higher than before."""
        if flushed_end <= self.flushed_end:
            return False
        self.flushed_end = flushed_end
        if flushed_end > self.log_end_offset:
            self.log_end_offset = flushed_end
        return True

    def truncated(self, event: Truncated) -> None:
        """Record that the log was truncated, or restarted at another offset."""
        self.writes_in_flight -= 1
        self.log_end_offset = event.log_end_offset
        self.flushed_end = event.flushed_end
        self.last_epoch = event.last_epoch
        if event.flushed_end < self.high_watermark or event.log_end_offset == self.starting_at:
            # Deleted records were committed, so a log that restarts at the leader's log start
            # offset has that offset as its high watermark.
            self.high_watermark = event.flushed_end
        self.starting_at = None
        if self.damaged_from is not None and event.log_end_offset <= self.damaged_from:
            self.damaged_from = None
