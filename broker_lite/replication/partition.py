"""One replica of one partition: Leader, Follower or Offline. ``step(now_ms, event) -> effects``.

Owned by one shell on one thread; holds no file, socket or clock.
"""

from __future__ import annotations

from broker_lite.model import PartitionKey, ReplicaId
from broker_lite.replication.effects import Effect
from broker_lite.replication.events import Event


class Partition:
    """``log_end_offset`` and ``flushed_end`` are those of the local log at the start.

    ``high_watermark`` is the checkpointed one, or the log start offset.
    """

    def __init__(
        self,
        key: PartitionKey,
        local: ReplicaId,
        *,
        log_end_offset: int,
        flushed_end: int,
        high_watermark: int,
    ) -> None: ...

    key: PartitionKey
    local: ReplicaId
    high_watermark: int
    log_end_offset: int
    flushed_end: int

    def step(self, now_ms: int, event: Event) -> list[Effect]: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def leader_epoch(self) -> int:
        """The highest epoch that the metadata named, whoever leads; -1 before the first."""

    @property
    def in_flight_count(self) -> int:
        """Produces that wait for an append or for the high watermark."""

    def check_leader(self, leader_epoch: int = -1) -> None:
        """Raise what a fetch or a listing must answer: NotLeaderError, FencedLeaderEpochError,
        UnknownLeaderEpochError, StorageError. ``leader_epoch`` is the client's; -1: any."""

    def latest_offset(self) -> int:
        """The high watermark; OffsetNotAvailableError while it is below the epoch's start."""
